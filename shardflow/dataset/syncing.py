"""Sync: copies a dataset to another place, verified in transit, the manifest last.

It copies the files that the manifest names, including columns, and the receipts, records of removals and quarantine
that exist. The copy has the same bytes and the same fingerprint.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardflow.errors import ConfigError, DatasetExistsError, NotFoundError
from shardflow.formats import manifest
from shardflow.formats.columns import ColumnFile
from shardflow.formats.shard import OnShard, Shard
from shardflow.formats.virtual_roots import name_of_other_tar
from shardflow.storage.interface import TEMPORARY, Storage
from shardflow.storage.local_files import file_sha256
from shardflow.storage.resolve import open_storage
from shardflow.storage.transfers import TransferPool
from shardflow.storage.virtual import virtual_storage

from .leftovers import remove_leftovers
from .open_dataset import open_dataset
from .shard_rows import read_index_bytes
from .write_lock import FILE_NAME as LOCK_NAME
from .write_lock import WriteLock, abort_uploads, acquire, clean_up, refuse_purged

_SHARDS_AT_A_TIME = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """The result of a sync.

    Attributes:
        copied, copied_bytes: Number and size of the tars that were copied.
        found, found_bytes: Number and size of the tars that `dst` had already.
        fingerprint: The dataset's fingerprint.
    """

    copied: int
    copied_bytes: int
    found: int
    found_bytes: int
    fingerprint: str


def sync(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    version: str | None = None,
    src_options: Mapping[str, Any] | None = None,
    dst_options: Mapping[str, Any] | None = None,
    progress: OnShard = None,
) -> SyncReport:
    """Copy the dataset at `src` to `dst`, each a directory or a URL. After an interruption, the same call continues.

    One version is copied, without the manifests of others. The copy of a virtual dataset includes the whole tars, in
    `bases/`, and keeps the fingerprint.

    >>> report = shardflow.sync("photos256", "s3://bucket/copy256")

    Args:
        src: A dataset.
        dst: A new or empty directory or URL, or a copy of the same dataset, finished or not. Into a finished copy, only
            missing indexes, and missing tars and columns or those of another size, are copied; `verify` finds other
            damage.
        version: Fingerprint of the version to copy; by default the newest.
        src_options, dst_options: Options of fsspec's file systems for `src` and `dst`, if these are URLs.
        progress: Called with each shard after it was copied or found, in this thread.

    Raises:
        NotFoundError: The dataset, the version or one of its shards does not exist.
        IntegrityError: A shard differs from the packed one; it is not copied.
        FormatError: The quarantine is damaged, or its length differs from the manifest.
        DatasetExistsError: `dst` is another dataset.
        ConfigError: `dst` has other files.
        StoreError: `src` cannot be read, or `dst` cannot be written.
    """
    dataset = open_dataset(src, storage_options=src_options, version=version)
    roots = {name: replace(root, url=f"bases/{name}") for name, root in dataset.manifest.roots.items()}
    source, own = dataset.storage, open_storage(dst, dst_options, to_write=True)
    target, shards = virtual_storage(own, dst, roots, dst_options), dataset.shards
    # Shards of a virtual dataset can share a tar: it is copied with the first of them.
    first_of_tar = set({target.url(shard.name): shard.name for shard in reversed(shards)}.values())
    with own.exclusive_writer() as writer:
        finished = target.version(manifest.FILE_NAME) is not None
        if not finished:
            dataset.quarantine()  # raises an error if it is damaged, before anything is copied
        lock = None if finished else _begin(own, dataset.fingerprint)
        if finished and manifest.from_bytes(target.read(manifest.FILE_NAME)).fingerprint != dataset.fingerprint:
            raise DatasetExistsError(f"{target} already holds another dataset; choose another destination")
        # A listing shows the files that a finished copy has lost; reading them is for `verify`.
        sizes = {own.url(name): listed.size for name, listed in own.listing().items()} if finished else {}

        def has_tar(shard: Shard) -> bool:
            return sizes.get(target.url(shard.name)) == shard.bytes if finished else _is_copied(target, shard)

        def fetch_and_put(name: str, size: int, sha256: str) -> None:
            path = writer.staging / f"{TEMPORARY}{name.replace('/', '-')}.{secrets.token_hex(4)}"
            source.get(name, path, size=size, sha256=sha256)
            target.put(name, path)

        def confirm(*published: str) -> None:
            if lock is not None:
                lock.confirm(published)
            elif not roots:  # no command purges the tars of virtual datasets
                refuse_purged(target, dataset.fingerprint, published)

        def copy(shard: Shard) -> bool:
            """Copy the missing files of a shard; return whether its tar was copied."""
            is_missing = shard.name in first_of_tar and not has_tar(shard)
            lacks_index = target.url(shard.index_name) not in sizes
            if is_missing:
                fetch_and_put(shard.name, shard.bytes, shard.sha256)
            if lacks_index:
                target.put(shard.index_name, read_index_bytes(source, shard))
            if is_missing or lacks_index:
                confirm(shard.name, shard.index_name)
            return is_missing

        def copy_column(file: ColumnFile) -> None:
            if sizes.get(target.url(file.name)) != file.bytes:
                fetch_and_put(file.name, file.bytes, file.sha256)
                confirm(file.name)

        copied_bytes: list[int] = []
        found_bytes: list[int] = []
        with TransferPool(_SHARDS_AT_A_TIME) as pool:
            copies = [pool.submit(copy, shard) for shard in shards]
            columns = [pool.submit(copy_column, file) for split in dataset.values() for file in split.columns.files()]
            for shard, copied in zip(shards, copies, strict=True):
                was_copied = copied.result()
                if shard.name in first_of_tar:
                    (copied_bytes if was_copied else found_bytes).append(shard.bytes)
                if progress is not None:
                    progress(shard)
            for copied_column in columns:
                copied_column.result()
        remove_leftovers(own.local_path(""))
        if lock is None:
            clean_up(target)
        else:
            packed = [shard for shard in shards if roots and not name_of_other_tar(dataset.manifest.roots, shard.name)]
            receipts = (shard.receipt_name for shard in packed if shard.name in first_of_tar)
            records = (*dataset.manifest.receipt_names, *dataset.manifest.removal_names, *receipts)
            for name in records:
                with contextlib.suppress(NotFoundError):
                    target.put(name, source.read(name))
            lock.confirm(records)
            if (record := dataset.read_quarantine()) is not None:
                lock.put(*record)
            lock.check()
            abort_uploads(target, {shard.name for shard in shards})
            target.put(manifest.FILE_NAME, replace(dataset.manifest, roots=roots).to_bytes(), new=True)
            lock.release()
    return SyncReport(
        copied=len(copied_bytes),
        copied_bytes=sum(copied_bytes),
        found=len(found_bytes),
        found_bytes=sum(found_bytes),
        fingerprint=dataset.fingerprint,
    )


def _is_copied(target: Storage, shard: Shard) -> bool:
    """Return whether an earlier attempt copied a shard, by its size; on a disk, also by its SHA-256."""
    if (found := target.version(shard.name)) is None or found.size != shard.bytes:
        return False
    path = target.local_path(shard.name)
    return path is None or file_sha256(path) == shard.sha256


def _begin(target: Storage, fingerprint: str) -> WriteLock:
    """Acquire the write lock for this copy, in an empty target or one where this copy was stopped."""
    names = target.listing()
    foreign = [name for name in names if not name.startswith(f"{TEMPORARY}{LOCK_NAME}.")]  # of a killed `acquire`
    if foreign and LOCK_NAME not in names:
        raise ConfigError(f"{target} is not empty: it has {foreign[0]!r}; choose an empty or a new destination")
    return acquire(target, lambda: fingerprint)
