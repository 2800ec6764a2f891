"""Remaking: a shard's job is done once more, by its receipt, to get the very bytes that were packed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from shardflow.dataset.dataset import Dataset
from shardflow.errors import FormatError, IntegrityError, NotFoundError
from shardflow.formats.manifest import Shard
from shardflow.formats.receipt import Receipt, from_bytes
from shardflow.storage.local_files import file_sha256
from shardflow.storage.staging import temporary_staging

from .append import recipe_of, renumbered
from .executors import ExecutorMaker
from .image.codecs import codecs
from .jobs import Job
from .sources import Source
from .sources.items import Item, Items


class Remaking:
    """Packs shards of a dataset again from what they were packed from.

    Args:
        dataset: The dataset, with the receipts of the shards that are to be made.
        source: What it was packed from, listed; it may have grown since.
        make_executor: Who does the shards' jobs.

    Raises:
        ConfigError: This version of shardflow does not know the recipe, or only one of the two has classes.
    """

    def __init__(self, dataset: Dataset, source: Source, make_executor: ExecutorMaker) -> None:
        self._storage = dataset.storage
        self._tools = dataset.manifest.tools
        self._recipe = recipe_of(dataset.manifest)
        self._make_executor = make_executor
        _, self._source = renumbered(source, dataset.classes)

    def __call__(self, shard: Shard, target: Path) -> None:
        """Write the tar of a shard to a path.

        Raises:
            NotFoundError: The receipt is missing, or an input is.
            IntegrityError: What was made is not what was packed; the message says what differs.
        """
        try:
            receipt = from_bytes(self._storage.read(shard.receipt_name))
            items = self._items_of(shard, receipt)
        except FormatError as error:
            raise IntegrityError(f"{shard.receipt_name}: {error}; restore it, or repair from a copy") from error
        with temporary_staging() as (folder, lock):
            job = Job(
                name=shard.name.removesuffix(".tar"),
                first=receipt.first,
                items=items,
                reader=self._source.reader,
                dst=str(folder),
                spool=folder,
                recipe=self._recipe,
            )
            if job.items_sha256 != receipt.items_sha256:
                raise IntegrityError(f"the inputs of {shard.name} have changed since they were packed")
            self._make_executor(lock).run([job], lambda _: None)
            made = folder / shard.name
            if not made.exists() or file_sha256(made) != shard.sha256:
                ours = codecs()
                theirs = {name: self._tools.get(name) for name in ours}
                reason = "its inputs have changed since" if ours == theirs else f"packed with {theirs}, here are {ours}"
                raise IntegrityError(f"{shard.name} came out with other bytes: {reason}")
            shutil.move(made, target)

    def _items_of(self, shard: Shard, receipt: Receipt) -> Sequence[Item]:
        items = self._source.splits.get(shard.name.partition("/")[0], Items.of(()))
        paths = receipt.inputs()
        rows: dict[str, list[int]] = {path: [] for path in paths}
        for row, item in enumerate(items):
            if item.path in rows:
                rows[item.path].append(row)
        for path, found in rows.items():
            if not found:
                raise NotFoundError(f"the source has no {path!r}, from which {shard.name} was packed")
            if len(found) > 1:
                raise IntegrityError(
                    f"the source has {len(found)} inputs {path!r}, and no receipt says from which of them {shard.name} "
                    "was packed; repair it from a copy"
                )
        return items.take(np.array([rows[path][0] for path in paths], dtype=np.int64))
