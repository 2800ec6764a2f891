"""The ledger: the receipts in a destination, and whose the files there are.

`quarantine.jsonl` is the first file that a pack writes, and so the sign that a directory is being packed into.
Without it a directory must be empty; with it, only files that have a pack's names are ever replaced or removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from shardflow.errors import ConfigError, DatasetExistsError, FormatError, NotFoundError
from shardflow.formats import manifest
from shardflow.formats.manifest import QUARANTINE_NAME as QUARANTINE
from shardflow.formats.manifest import SPLITS
from shardflow.formats.receipt import Quarantined, Receipt, from_bytes
from shardflow.storage.local import LocalStorage
from shardflow.storage.staging import remove_abandoned
from shardflow.storage.storage import TEMPORARY, Storage
from shardflow.storage.write_lock import FILE_NAME as CLAIM
from shardflow.storage.write_lock import acquire, clean_up

from .jobs import Job, content_of

_SHARD = re.compile(rf"({'|'.join(SPLITS)})/\d{{6,}}\.(tar|npy|json)")
_HALF_DONE = re.compile(rf"(({'|'.join((*SPLITS, 'manifests'))})/)?{re.escape(TEMPORARY)}[^/]+")


class Ledger:
    """The receipts in a store. One writer at a time."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def refuse_dataset(self) -> None:
        """Refuse a destination that holds a dataset.

        What a pack that was killed at the very moment of its commit has left beside the manifest is removed.

        Raises:
            DatasetExistsError: It does.
        """
        if self.storage.size(manifest.FILE_NAME) is not None:
            clean_up(self.storage)
            remove_abandoned()
            raise DatasetExistsError(f"{self.storage} already holds a dataset; choose another destination or remove it")

    def begin(self, jobs: Sequence[Job]) -> None:
        """Mark the destination as being packed into, if it may be.

        Raises:
            DatasetExistsError: It holds a dataset.
            ConfigError: It holds files that no pack wrote, or, where no lock can be held, the beginnings of another.
        """
        self.refuse_dataset()
        names = self.storage.names()
        if QUARANTINE not in names and (CLAIM not in names or isinstance(self.storage, LocalStorage)):
            foreign = [name for name in names if not name.startswith(f"{TEMPORARY}{QUARANTINE}.")]
            if foreign:
                message = f"{self.storage} is not empty: it holds {foreign[0]!r}, which no pack wrote"
                raise ConfigError(f"{message}; choose an empty or a new directory")
        if not isinstance(self.storage, LocalStorage):  # which is locked
            acquire(self.storage, content_of(jobs))
        if self.storage.size(QUARANTINE) is None:
            self.write_quarantine(())

    def finished(self, job: Job) -> Receipt | None:
        """Return the receipt of a job that need not be done again, None when it must be.

        A job is done again when its inputs or its recipe are others, when an input was touched after the receipt was
        written, when a file of the shard is missing or cut, and when an input could not be read, which may be mended.
        """
        name = f"{job.name}.json"
        try:
            receipt = from_bytes(self.storage.read(name))
            written_ns = self.storage.modified_ns(name)
        except (NotFoundError, FormatError):
            return None
        same = receipt.items_sha256 == job.items_sha256 and receipt.recipe_sha256 == job.recipe.digest
        if not same or written_ns is None or any(item.changed_ns > written_ns for item in job.items):
            return None
        if any(bad.stage == "read" for bad in receipt.quarantined):
            return None
        if receipt.shard is not None:
            sizes = (self.storage.size(receipt.shard.name), self.storage.size(receipt.shard.index_name))
            if sizes != (receipt.shard.bytes, receipt.index_bytes):
                return None
        return receipt

    def receipt(self, name: str) -> Receipt:
        """Return the receipt of a finished job.

        Raises:
            NotFoundError: There is none.
            FormatError: It is none of this version.
        """
        return from_bytes(self.storage.read(f"{name}.json"))

    def write_quarantine(self, quarantined: Iterable[Quarantined]) -> None:
        """Write the list of all inputs that were not packed."""
        rows = [json.dumps(bad._asdict(), sort_keys=True) + "\n" for bad in quarantined]
        self.storage.put(QUARANTINE, "".join(rows).encode())

    def remove_strangers(self, names: Iterable[str]) -> None:
        """Remove shards of an earlier attempt that had others than the jobs of these names."""
        planned = set(names)
        for name in self.storage.names():
            if _SHARD.fullmatch(name) and name.rpartition(".")[0] not in planned:
                self.storage.remove(name)

    def remove_temporaries(self) -> None:
        """Remove what a process that ended left half done."""
        for name in self.storage.names():
            if _HALF_DONE.fullmatch(name):
                self.storage.remove(name)
