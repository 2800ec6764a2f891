"""The ledger: the receipts in a destination, and which of its files belong to a pack.

`quarantine.jsonl` is the first file that a pack writes. Without it, a directory must be empty; with it, only files with
a pack's names are replaced, and only files that shardflow wrote are removed. In a bucket no file is removed, because a
delayed process could remove newer files of another process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shardflow.dataset.leftovers import remove_leftovers
from shardflow.dataset.own_files import is_job_name, is_own
from shardflow.dataset.write_lock import FILE_NAME as LOCK
from shardflow.dataset.write_lock import WriteLock, acquire, refuse_dataset
from shardflow.errors import ConfigError, DatasetExistsError, StoreError
from shardflow.formats.quarantine import FILE_NAME as QUARANTINE
from shardflow.formats.receipt import Receipt
from shardflow.formats.shard import Shard
from shardflow.storage.interface import TEMPORARY, BlobVersion, Writer
from shardflow.storage.resolve import open_storage
from shardflow.storage.staging import remove_abandoned
from shardflow.storage.transfers import TransferPool
from shardflow.storage.urls import url_text

from .jobs import Job, content_of, why_unread

_AT_A_TIME = 8


class Ledger:
    """The receipts in a destination, a path or URL; `storage_options` are those of fsspec's file system."""

    def __init__(self, dst: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> None:
        self.url = url_text(dst)
        self.storage_options = storage_options
        self.storage = open_storage(dst, storage_options, to_write=True)
        self._listing: Mapping[str, BlobVersion] | None = None

    @property
    def listing(self) -> Mapping[str, BlobVersion]:
        """All blobs of the destination at the time of the first use."""
        if self._listing is None:  # not a cached_property, whose lock is shared by all ledgers before Python 3.12
            self._listing = self.storage.listing()
        return self._listing

    def refuse_dataset(self) -> None:
        """Raise DatasetExistsError if the destination holds a dataset, after removing leftovers of killed commits."""
        remedy = "choose another destination, remove it, or add images to it with `shardflow extend SRC DST`"
        try:
            refuse_dataset(self.storage, remedy)
        except DatasetExistsError:
            remove_abandoned()
            raise

    def begin(self, jobs: Sequence[Job], writer: Writer) -> WriteLock:
        """Mark the destination as being packed and return its lock; refuse one with other files or other work."""
        self.refuse_dataset()
        if QUARANTINE not in self.listing and LOCK not in self.listing:
            begun = f"{TEMPORARY}{QUARANTINE}."
            if (other := next((name for name in self.listing if not name.startswith(begun)), None)) is not None:
                message = f"{self.storage} is not empty: it holds {other!r}, which no pack wrote"
                raise ConfigError(f"{message}; choose an empty or a new directory")
        lock = acquire(self.storage, lambda: content_of(jobs), writer)
        if QUARANTINE not in self.listing:
            with contextlib.suppress(DatasetExistsError):  # another process with the same work wrote it
                self.storage.put(QUARANTINE, b"", new=True)
        return lock

    def finished(self, job: Job) -> Receipt | None:
        """Return the receipt of a job that need not be repeated, None if it must be.

        A job is repeated if its recipe differs, an input has changed (see `Item.identity`), an unreadable input is now
        readable or fails for another reason, or a file of the shard is missing or has another size.
        """
        receipt = job.receipt(self.storage) if f"{job.name}.json" in self.listing else None
        if receipt is None or receipt.identities != job.identities or not _is_whole(job, receipt, self.listing):
            return None
        slots = zip(receipt.skipped, receipt.quarantined, strict=True)
        unread = [(job.items[slot], bad.reason) for slot, bad in slots if bad.stage == "read"]
        with TransferPool(_AT_A_TIME) as pool:
            fail_alike = all(pool.map(lambda each: why_unread(each[0], job.reader) == each[1], unread))
        return receipt if fail_alike else None

    def confirm(self, jobs: Sequence[Job], shards: Mapping[str, Shard]) -> None:
        """Raise a StoreError unless the storage has these jobs' receipts and their shards, in the right sizes."""
        listing = self.storage.listing()

        def is_own(job: Job) -> bool:
            receipt = job.receipt(self.storage)
            return receipt is not None and receipt.shard == shards.get(job.name) and _is_whole(job, receipt, listing)

        with TransferPool(_AT_A_TIME) as pool:
            for job, is_there in zip(jobs, pool.map(is_own, jobs), strict=True):
                if not is_there:
                    message = f"{self.storage.url(job.name)}.tar was replaced by another process"
                    raise StoreError(f"{message}; when no other process writes there, run the same command again")

    def remove_others(self, names: Iterable[str]) -> None:
        """Remove leftovers of earlier attempts from a disk: temporary files, and shards of jobs not in `names`."""
        planned = set(names)
        for name in self.listing:
            is_other = is_job_name(name) and name.rpartition(".")[0] not in planned
            if is_other and is_own(self.storage, name):
                self.storage.remove(name)
        remove_leftovers(self.storage.local_path(""))


def _is_whole(job: Job, receipt: Receipt, listing: Mapping[str, BlobVersion]) -> bool:
    """Return whether the files of a job's shard, if there is one, have the sizes in its receipt."""
    if receipt.shard is None:
        return True
    sizes = {f"{job.name}.tar": receipt.shard.bytes, f"{job.name}.npy": receipt.index_bytes}
    return all(name in listing and listing[name].size in (-1, size) for name, size in sizes.items())
