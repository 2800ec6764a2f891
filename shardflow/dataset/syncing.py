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
from pathlib import Path
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
from .open_dataset import Dataset, open_dataset
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
    own = open_storage(dst, dst_options, to_write=True)
    target = virtual_storage(own, dst, roots, dst_options)
    with own.exclusive_writer() as writer:
        if target.version(manifest.FILE_NAME) is None:
            dataset.quarantine()  # raises an error if it is damaged, before anything is copied
            copy = _Copy(dataset, target, writer.staging, _begin(own, dataset.fingerprint))
        elif manifest.from_bytes(target.read(manifest.FILE_NAME)).fingerprint == dataset.fingerprint:
            # A listing shows the files that a finished copy has lost; reading them is for `verify`.
            sizes = {own.url(name): listed.size for name, listed in own.listing().items()}
            copy = _Copy(dataset, target, writer.staging, None, sizes)
        else:
            raise DatasetExistsError(f"{target} already holds another dataset; choose another destination")
        copied, found = copy.files(progress)
        remove_leftovers(own.local_path(""))
        if copy.lock is None:
            clean_up(target)
        else:
            copy.publish(copy.lock, replace(dataset.manifest, roots=roots))
    return SyncReport(
        copied=len(copied),
        copied_bytes=sum(copied),
        found=len(found),
        found_bytes=sum(found),
        fingerprint=dataset.fingerprint,
    )


class _Copy:
    """Copies the files of a dataset to `target`, the destination and, of a virtual dataset, the places of its tars.

    Attributes:
        lock: The write lock of a copy that is not finished yet; None if it is.
    """

    def __init__(
        self,
        dataset: Dataset,
        target: Storage,
        staging: Path,
        lock: WriteLock | None,
        sizes: Mapping[str, int] | None = None,  # URL → bytes, of a finished copy
    ) -> None:
        self.lock = lock
        self._dataset, self._target, self._staging = dataset, target, staging
        self._sizes = sizes or {}
        # Shards of a virtual dataset can share a tar: it is copied with the first of them.
        tars = {target.url(shard.name): shard.name for shard in reversed(dataset.shards)}
        self._first_of_tar = set(tars.values())

    def files(self, progress: OnShard) -> tuple[list[int], list[int]]:
        """Copy the missing tars, indexes and columns; return the sizes of the tars copied, and of those found."""
        copied: list[int] = []
        found: list[int] = []
        columns = [file for split in self._dataset.values() for file in split.columns.files()]
        with TransferPool(_SHARDS_AT_A_TIME) as pool:
            copies = [pool.submit(self._copy_shard, shard) for shard in self._dataset.shards]
            copies_of_columns = [pool.submit(self._copy_column, file) for file in columns]
            for shard, copy in zip(self._dataset.shards, copies, strict=True):
                was_copied = copy.result()
                if shard.name in self._first_of_tar:
                    (copied if was_copied else found).append(shard.bytes)
                if progress is not None:
                    progress(shard)
            for copy_of_column in copies_of_columns:
                copy_of_column.result()
        return copied, found

    def publish(self, lock: WriteLock, finished: manifest.Manifest) -> None:
        """Copy the records that exist, then write the manifest."""
        roots, shards = self._dataset.manifest.roots, self._dataset.shards
        packed = [shard for shard in shards if roots and not name_of_other_tar(roots, shard.name)]
        receipts = (shard.receipt_name for shard in packed if shard.name in self._first_of_tar)
        records = (*finished.receipt_names, *finished.removal_names, *receipts)
        for name in records:
            with contextlib.suppress(NotFoundError):
                self._target.put(name, self._dataset.storage.read(name))
        lock.confirm(records)
        if (record := self._dataset.read_quarantine()) is not None:
            lock.put(*record)
        lock.check()
        abort_uploads(self._target, {shard.name for shard in shards})
        self._target.put(manifest.FILE_NAME, finished.to_bytes(), new=True)
        lock.release()

    def _copy_shard(self, shard: Shard) -> bool:
        """Copy the missing files of a shard; return whether its tar was copied."""
        is_missing = shard.name in self._first_of_tar and not self._has_tar(shard)
        lacks_index = self._target.url(shard.index_name) not in self._sizes
        if is_missing:
            self._fetch_and_put(shard.name, shard.bytes, shard.sha256)
        if lacks_index:
            self._target.put(shard.index_name, read_index_bytes(self._dataset.storage, shard))
        if is_missing or lacks_index:
            self._confirm(shard.name, shard.index_name)
        return is_missing

    def _copy_column(self, file: ColumnFile) -> None:
        if self._sizes.get(self._target.url(file.name)) != file.bytes:
            self._fetch_and_put(file.name, file.bytes, file.sha256)
            self._confirm(file.name)

    def _fetch_and_put(self, name: str, size: int, sha256: str) -> None:
        path = self._staging / f"{TEMPORARY}{name.replace('/', '-')}.{secrets.token_hex(4)}"
        self._dataset.storage.get(name, path, size=size, sha256=sha256)
        self._target.put(name, path)

    def _confirm(self, *published: str) -> None:
        if self.lock is not None:
            self.lock.confirm(published)
        elif not self._dataset.manifest.roots:  # no command purges the tars of virtual datasets
            refuse_purged(self._target, self._dataset.fingerprint, published)

    def _has_tar(self, shard: Shard) -> bool:
        """Return whether a tar is there, by its size; in an unfinished copy on a disk, also by its SHA-256."""
        if self.lock is None:
            return self._sizes.get(self._target.url(shard.name)) == shard.bytes
        if (found := self._target.version(shard.name)) is None or found.size != shard.bytes:
            return False
        path = self._target.local_path(shard.name)
        return path is None or file_sha256(path) == shard.sha256


def _begin(target: Storage, fingerprint: str) -> WriteLock:
    """Acquire the write lock for this copy, in an empty target or one where this copy was stopped."""
    names = target.listing()
    foreign = [name for name in names if not name.startswith(f"{TEMPORARY}{LOCK_NAME}.")]  # of a killed `acquire`
    if foreign and LOCK_NAME not in names:
        raise ConfigError(f"{target} is not empty: it has {foreign[0]!r}; choose an empty or a new destination")
    return acquire(target, lambda: fingerprint)
