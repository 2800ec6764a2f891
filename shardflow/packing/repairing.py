"""Repair: the damaged and missing shards of a dataset are made whole again, and no other file is touched.

The manifest says what each file must be, so whatever puts it back is accepted only if it has the SHA-256 of what was
packed: a copy of the dataset, or the source from which the shard's job is done once more. An index follows from its
shard, and needs neither.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardflow.dataset.dataset import Dataset, open_dataset
from shardflow.dataset.verifying import Finding, verify_dataset, verify_shard
from shardflow.errors import ConfigError, NotFoundError, ShardflowError
from shardflow.formats import shard_index
from shardflow.formats.manifest import Shard
from shardflow.storage.staging import temporary_staging
from shardflow.storage.storage import Storage

from .executors import ExecutorMaker, executor_maker
from .repack import Remaking
from .sources import listed


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """What a repair did.

    Attributes:
        found: Everything that was wrong.
        repaired: Names of the files that were replaced.
        failed: Name of a shard → why it could not be made whole.
        left: What is still wrong.
    """

    found: tuple[Finding, ...]
    repaired: tuple[str, ...]
    failed: Mapping[str, str]
    left: tuple[Finding, ...]


def repair(
    url: str | os.PathLike[str],
    source: Any = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    source_options: Mapping[str, Any] | None = None,
    workers: int | None = None,
    progress: Callable[[Shard], None] | None = None,
) -> RepairReport:
    """Read a whole dataset, and replace the files that are not what was packed.

    Args:
        url: The dataset; its manifest must be sound.
        source: A copy of the dataset, or what it was packed from, as `pack` takes it; None mends indexes alone.
        storage_options, source_options: What fsspec's file systems take, where these are URLs.
        workers: Processes for packing again; None for one per core.
        progress: Called after each shard that was read.

    Raises:
        NotFoundError: There is no dataset, or nothing at `source`.
        ManifestError: The manifest is damaged.
        ConfigError: `source` is neither a copy nor a source, the shards belong to other datasets, or `workers` is
            below 1.
        StoreError: The dataset is out of reach, or another process is writing to it.
    """
    make_executor = executor_maker("processes", workers)
    dataset = open_dataset(url, storage_options=storage_options)
    if roots := dataset.manifest.roots.values():
        places = ", ".join(root.url for root in roots)
        message = f"{dataset.url} has no shards of its own; repair {places}"
        raise ConfigError(f"{message}, or make it anew if an index is lost")
    found = verify_dataset(dataset, progress=progress)
    touched = {finding.file for finding in found}
    broken = [shard for shard in dataset.shards if touched & {shard.name, shard.index_name}]
    repaired: list[str] = []
    failed: dict[str, str] = {}
    left: list[Finding] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(dataset.storage.exclusive_writer())
        donor = None
        if source is not None and broken:
            donor = _donor(dataset, source, source_options, make_executor, stack)
        for shard in broken:
            try:
                repaired += _mend(dataset.storage, shard, donor)
            except ShardflowError as error:
                failed[shard.name] = str(error)
            left += verify_shard(dataset.storage, shard, None if dataset.classes is None else len(dataset.classes))
    return RepairReport(found=tuple(found), repaired=tuple(repaired), failed=failed, left=tuple(left))


Donor = Callable[[Shard, Path], None]
"""Writes the tar of a shard, as it was packed, to a path."""


def _donor(
    dataset: Dataset,
    source: Any,
    options: Mapping[str, Any] | None,
    make_executor: ExecutorMaker,
    stack: contextlib.ExitStack,
) -> Donor:
    """Return who gives the shards, for as long as the stack stands."""
    if isinstance(source, (str, os.PathLike)):
        try:
            return _copy(open_dataset(source, storage_options=options))
        except NotFoundError:  # no copy, so a source
            pass
    return Remaking(dataset, stack.enter_context(listed(source, options)), make_executor)


def _copy(copy: Dataset) -> Donor:
    """Return what fetches a shard from a copy, under whatever name it has there."""
    lines = {shard.sha256: shard for shard in copy.shards}

    def fetch(shard: Shard, target: Path) -> None:
        if shard.sha256 not in lines:
            raise NotFoundError(
                f"{copy.url} has no shard with the content of {shard.name}; is it a copy of this dataset?"
            )
        copy.storage.get(lines[shard.sha256].name, target, size=shard.bytes, sha256=shard.sha256)

    return fetch


def _mend(storage: Storage, shard: Shard, donor: Donor | None) -> list[str]:
    """Replace what is not as it was packed of a shard and its index; return the names."""
    tar, mended = _read(storage, shard.name, shard.sha256), []
    index = _read(storage, shard.index_name, shard.index_sha256)
    with temporary_staging() as (folder, _):
        path = folder / "shard.tar"
        if tar is None:
            if donor is None:
                raise NotFoundError(f"{shard.name} is lost; name a copy of the dataset, or what it was packed from")
            donor(shard, path)
            tar = path.read_bytes()
        rebuilt = shard_index.rebuild(memoryview(tar), shard.index_sha256)
        if path.exists():
            storage.upload(shard.name, path)
            mended.append(shard.name)
        if index is None:
            storage.put(shard.index_name, rebuilt)
            mended.append(shard.index_name)
    return mended


def _read(storage: Storage, name: str, sha256: str) -> bytes | None:
    """Return a file if it is there and as it was packed."""
    try:
        data = storage.read(name)
    except NotFoundError:
        return None
    return data if hashlib.sha256(data).hexdigest() == sha256 else None
