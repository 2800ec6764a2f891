"""Sync: a dataset copied from one place to another, verified on its way, the manifest last.

What is copied is what the manifest names, and the accounts of how it was packed where they are still there. A sync that
was stopped, by whatever, goes on in the same way; the copy has the same bytes and the same fingerprint.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardflow.errors import ConfigError, DatasetExistsError, NotFoundError
from shardflow.formats import manifest
from shardflow.formats.manifest import Shard
from shardflow.storage.local_files import file_sha256
from shardflow.storage.resolve import open_storage
from shardflow.storage.storage import TEMPORARY, Storage
from shardflow.storage.transfers import TransferPool
from shardflow.storage.virtual import virtual_storage
from shardflow.storage.write_lock import FILE_NAME as LOCK
from shardflow.storage.write_lock import abort_uploads, acquire, clean_up, release

from .dataset import Dataset, open_dataset
from .shard_files import packed_index

_AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """What a sync did: tars copied and tars that were there, their bytes, and the dataset's fingerprint."""

    copied: int
    copied_bytes: int
    found: int
    found_bytes: int
    fingerprint: str


def sync(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    src_options: Mapping[str, Any] | None = None,
    dst_options: Mapping[str, Any] | None = None,
    progress: Callable[[Shard], None] | None = None,
) -> SyncReport:
    """Copy the dataset at `src` to `dst`, each a directory or a URL; the same call goes on where one was stopped.

    Of a dataset that was extended the newest version is copied, without the manifests of the older ones. The copy of a
    view has its own copies of the tars, whole, in `bases/`: it needs nothing else, and keeps the fingerprint.

    Args:
        src: A dataset.
        dst: New, empty, or a copy of the same dataset, whole or not. What is missing of it, or has another size, is
            copied; `verify` finds what is damaged otherwise.
        src_options, dst_options: What fsspec's file systems take, where an end is a URL.
        progress: Called after each shard, in this thread.

    Raises:
        NotFoundError: There is no dataset, or a shard of it is missing.
        IntegrityError: A shard is not the one packed; it is not copied.
        DatasetExistsError: `dst` holds another dataset.
        ConfigError: `dst` holds something else.
        StoreError: One of the ends failed.
    """
    dataset = open_dataset(src, storage_options=src_options)
    bases = {name: replace(base, url=f"bases/{name}") for name, base in dataset.manifest.roots.items()}
    copied = replace(dataset.manifest, roots=bases)
    source, own = dataset.storage, open_storage(dst, dst_options)
    target, shards = virtual_storage(own, bases, dst_options), dataset.shards
    # Several shards of a view may share a tar: the first of them stands for it.
    firsts = set({target.url(shard.name): shard.name for shard in reversed(shards)}.values())
    with own.exclusive_writer() as writer:
        finished = target.size(manifest.FILE_NAME) is not None
        if not finished:
            _begin(own, dataset.fingerprint)
        elif manifest.from_bytes(target.read(manifest.FILE_NAME)).fingerprint != dataset.fingerprint:
            raise DatasetExistsError(f"{target} already holds another dataset; choose another destination")
        # What a finished copy still has is told by a listing alone: reading all of it is what `verify` is for.
        sizes = {own.url(name): listed.size for name, listed in own.listing().items()} if finished else {}

        def has_tar(shard: Shard) -> bool:
            return sizes.get(target.url(shard.name)) == shard.bytes if finished else _is_there(target, shard)

        def copy(shard: Shard) -> bool:
            fresh = shard.name in firsts and not has_tar(shard)
            if fresh:
                _copy_tar(source, target, writer.staging, shard)
            if target.url(shard.index_name) not in sizes:
                target.put(shard.index_name, packed_index(source, shard))
            return fresh

        done: list[tuple[Shard, bool]] = []
        with TransferPool(_AT_ONCE) as pool:
            copies = [pool.submit(copy, shard) for shard in shards]
            for shard, copied_one in zip(shards, copies, strict=True):
                fresh = copied_one.result()
                if shard.name in firsts:
                    done.append((shard, fresh))
                if progress is not None:
                    progress(shard)
        if finished:
            clean_up(target)
            return _report(dataset.fingerprint, done)
        for name in (manifest.QUARANTINE_NAME, *_receipts(dataset)):
            with contextlib.suppress(NotFoundError):
                target.put(name, source.read(name))
        abort_uploads(target, {shard.name for shard in shards})
        target.put_new(manifest.FILE_NAME, copied.to_bytes())
        release(target)
    return _report(dataset.fingerprint, done)


def _copy_tar(source: Storage, target: Storage, staging: Path, shard: Shard) -> None:
    path = staging / f"{TEMPORARY}{shard.name.replace('/', '-')}"
    source.get(shard.name, path, size=shard.bytes, sha256=shard.sha256)
    target.upload(shard.name, path)


def _receipts(dataset: Dataset) -> list[str]:
    """Return the names that the receipts of a dataset have, as far as they are still there; views have none."""
    if dataset.manifest.roots:
        return []
    if dataset.manifest.sharding is None:
        return [shard.receipt_name for shard in dataset.shards]
    # It knows of jobs as well of whose inputs none could be packed.
    return [f"{job}.json" for job in dataset.manifest.sharding.names()]


def _is_there(target: Storage, shard: Shard) -> bool:
    """Return whether an earlier attempt has copied a shard. Stores publish whole blobs; what a disk holds is read."""
    if target.size(shard.name) != shard.bytes:
        return False
    path = target.local_path(shard.name)
    return path is None or file_sha256(path) == shard.sha256


def _begin(target: Storage, fingerprint: str) -> None:
    """Make sure that the target is for this copy."""
    names = target.listing()
    foreign = [name for name in names if not name.startswith(f"{TEMPORARY}{LOCK}.")]  # left by a kill while claiming
    if foreign and LOCK not in names:
        raise ConfigError(f"{target} is not empty: it holds {foreign[0]!r}; choose an empty or a new destination")
    for name in names:
        if name.rpartition("/")[2].startswith(TEMPORARY):
            target.remove(name)
    acquire(target, fingerprint)


def _report(fingerprint: str, done: list[tuple[Shard, bool]]) -> SyncReport:
    copied, found = ([shard.bytes for shard, fresh in done if fresh is wanted] for wanted in (True, False))
    return SyncReport(
        copied=len(copied), copied_bytes=sum(copied), found=len(found), found_bytes=sum(found), fingerprint=fingerprint
    )
