"""The base version of an extension: a dataset as it is, with all that its files say of its inputs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardflow.dataset.open_dataset import Dataset
from shardflow.errors import ConfigError, FormatError, NotFoundError
from shardflow.formats.manifest import Manifest
from shardflow.formats.quarantine import SKIPPED, Quarantined
from shardflow.formats.receipt import Receipt
from shardflow.formats.shard_layout import Sharding

from .jobs import digest_of
from .known_inputs import KnownInputs, compare_inputs
from .origin import read_receipt
from .sources.source import Source

_TAR = re.compile(r"([^/]+\.tar)(?=[/#])")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseVersion:
    """A version of a dataset to which inputs can be added.

    Attributes:
        manifest: Its manifest.
        sharding: How its inputs were cut into shards.
        receipts: The receipts of all jobs by their names.
        skipped: Images that are not in it because their kind was not read.
    """

    manifest: Manifest
    sharding: Sharding
    receipts: Mapping[str, Receipt]
    skipped: Sequence[Quarantined]

    @classmethod
    def read(cls, dataset: Dataset) -> BaseVersion:
        """Read the records of the inputs of a dataset; see `extend` for the errors."""
        storage, made = dataset.storage, dataset.manifest
        if made.roots:
            message = f"{storage} is made of tars that are elsewhere (`shardflow info {storage}` says where)"
            raise ConfigError(f"{message}: extend the dataset that they belong to, and make this one of it again")
        if (sharding := made.sharding) is None:
            message = f"{storage} does not record how its inputs were divided into shards, so it cannot be extended"
            raise ConfigError(f"{message}; pack it again")
        shards = {shard.name: shard for shard in dataset.shards}
        try:
            receipts = {name: read_receipt(dataset, name, shards.get(f"{name}.tar")) for name in sharding.names()}
        except (NotFoundError, FormatError) as error:
            message = f"extending needs the .json file beside each shard, the list of its inputs ({error})"
            raise NotFoundError(f"{message}; restore them from where it was packed") from error
        skipped = [bad for bad in dataset.quarantine() if bad.stage == SKIPPED]
        if len(skipped) != made.skipped:
            message = f"{storage} lacks its quarantine, which names the {made.skipped} images that were skipped"
            raise NotFoundError(f"{message}; restore it from where it was packed")
        return cls(manifest=made, sharding=sharding, receipts=receipts, skipped=skipped)

    def compare(self, source: Source) -> dict[str, npt.NDArray[np.int8]]:
        """Return the `State` of each input of a source, by split; refuse inputs that have other names in the base."""
        self._refuse_other_names(source)
        if source.is_dataset:
            self._refuse_other_dataset(source)
        return {
            split: compare_inputs(items, KnownInputs(of for _, of in self._of_split(split)), source.reader)
            for split, items in source.splits.items()
        }

    def _refuse_other_names(self, source: Source) -> None:
        """Refuse tars that were packed in the other way: samples have a number in an index, and a key in a tar."""
        packed = _tars(
            (path for receipt in self.receipts.values() for path in receipt.sources), "/" if source.is_dataset else "#"
        )
        given = _tars(
            (item.path for items in source.splits.values() for item in items), "#" if source.is_dataset else "/"
        )
        if both := packed & given:
            first, again = (
                ("by their names", "a pattern of tars") if source.is_dataset else ("by an index", "that index")
            )
            raise ConfigError(
                f"{min(both)!r} is among the tars that were packed {first}, and the source leads to its samples in "
                f"another way, so that old ones cannot be told from new ones; extend with {again}, as before"
            )

    def _refuse_other_dataset(self, source: Source) -> None:
        """Refuse another dataset than the one in the receipts: samples of all datasets have the same names."""
        for split, items in source.splits.items():
            rows = {item.path: row for row, item in enumerate(items)}
            for name, receipt in self._of_split(split):
                paths = receipt.inputs()
                found = items.take(np.array([rows[path] for path in paths if path in rows], dtype=np.int64))
                if len(found) and (len(found) < len(paths) or digest_of(found, receipt.first) != receipt.items_sha256):
                    raise ConfigError(
                        f"the source is another dataset than the one from which shard {name} was packed: its sample "
                        f"{found[0].path!r} has the same name there, so new samples cannot be told from old ones; pack "
                        "it by itself, and combine both with `shardflow merge`"
                    )

    def _of_split(self, split: str) -> Iterator[tuple[str, Receipt]]:
        return ((name, receipt) for name, receipt in self.receipts.items() if name.partition("/")[0] == split)


def _tars(paths: Iterable[str], mark: str) -> set[str]:
    """Return the names of the tars in paths of samples, where this mark follows the name."""
    found = (_TAR.search(path) for path in paths)
    return {match[1] for match in found if match and match.string[match.end()] == mark}
