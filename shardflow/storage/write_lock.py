"""The write lock: which process may write to a place.

On a local disk it is the kernel's: `flock` on the directory, which leaves no file and ends with its processes. An
object store has no locks. There a writer first creates a blob, `unfinished.json`, that says what will be written, and
deletes it when the manifest is written. A writer that finds the blob of other work stops. A writer that finds its own
work goes on: it resumes a run, or is its twin, which writes the same bytes under the same names and does no harm.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from shardflow.errors import ConfigError, DatasetExistsError, ManifestError, NotFoundError, StoreError
from shardflow.formats import manifest

from .local_files import flock, map_os_errors, pause
from .storage import TEMPORARY, Storage, Writer

FILE_NAME = "unfinished.json"

LOCK_TIMEOUT_S = 2.0
_POLL_S = 0.02


@contextlib.contextmanager
def lock_directory(path: Path, *, timeout_s: float | None = None) -> Iterator[int]:
    """Create a directory if it does not exist, and lock it; yield the descriptor that holds the lock.

    A process that inherits the descriptor holds the lock too. So after a writer was killed, the lock stays until the
    last of its workers has ended, and none of them can publish a file beside the next writer. The timeout gives such
    workers time to end.
    """
    with map_os_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        deadline = time.monotonic() + (LOCK_TIMEOUT_S if timeout_s is None else timeout_s)
        try:
            while not flock(descriptor):
                if time.monotonic() > deadline:
                    raise StoreError(f"another process is writing to {path}; wait, or choose another destination")
                pause(_POLL_S)
            yield descriptor
        finally:
            os.close(descriptor)


def acquire(storage: Storage, content: str, writer: Writer | None = None) -> None:
    """Lock a storage until a dataset is committed there; may be repeated with the same content, a digest of the work.

    A writer that is alone writes no blob, but respects an existing one. None writes the blob in any case, as the sign
    of an unfinished copy. Raises DatasetExistsError where a dataset is, ConfigError where other content is locked.
    """
    _acquire(storage, {"content": content}, writer)
    # After the lock: a writer that finished meanwhile wrote the manifest before it released its own.
    if storage.size(manifest.FILE_NAME) is not None:
        clean_up(storage)
        raise DatasetExistsError(f"{storage} already holds a dataset; choose another destination or remove it")


def acquire_to_extend(storage: Storage, content: str, fingerprint: str, writer: Writer) -> None:
    """Lock a dataset of this fingerprint until its extension is committed; may be repeated with the same content.

    Raises DatasetExistsError if the dataset has another fingerprint now, ConfigError if it is locked for other content.
    """
    if writer.is_alone:
        return
    _refuse_other_version(storage, fingerprint)
    if _extended_fingerprint(storage) != fingerprint:  # the lock of an extension that is committed
        release(storage)
    _acquire(storage, {"content": content, "extends": fingerprint}, writer)
    try:
        _refuse_other_version(storage, fingerprint)
    except DatasetExistsError:
        release(storage)
        raise


def release(storage: Storage) -> None:
    """Delete the blob of a lock. No other function does."""
    storage.remove(FILE_NAME)


def clean_up(storage: Storage) -> None:
    """Remove what a writer that was killed at its commit left beside the manifest, where this can be done."""
    with contextlib.suppress(StoreError, ManifestError):  # such as a read-only disk
        extended = _extended_fingerprint(storage)
        if extended is not None and extended == manifest.from_bytes(storage.read(manifest.FILE_NAME)).fingerprint:
            return  # an extension of this dataset is running, or can be resumed
        release(storage)
        if (path := storage.local_path(manifest.FILE_NAME)) is not None:  # other storages have no leftovers
            for leftover in path.parent.glob(f"{TEMPORARY}{manifest.FILE_NAME}.*"):
                storage.remove(leftover.name)


def abort_uploads(storage: Storage, names: Collection[str]) -> None:
    """Abort the uploads of shards that killed writers left open; call this before the commit.

    A twin that still uploads one of them fails: the commit has made it useless. Where listing uploads is not allowed,
    they are left to the lifecycle rule of the bucket.
    """
    with contextlib.suppress(StoreError):
        storage.abort_uploads(names)


def _acquire(storage: Storage, content: dict[str, str], writer: Writer | None) -> None:
    ours = json.dumps(content, indent=1).encode() + b"\n"
    try:
        if writer is None or not writer.is_alone:
            storage.put_new(FILE_NAME, ours)
            return
    except DatasetExistsError:
        pass
    try:
        found = storage.read(FILE_NAME)
    except NotFoundError:  # there is none, or its owner has just released it, with a commit or without
        return
    if found != ours:
        raise ConfigError(
            f"{storage} is being written to with other inputs or settings, or was and is unfinished; finish it "
            "with the command that began it, choose another destination, or remove all that is below it"
        )


def _extended_fingerprint(storage: Storage) -> str | None:
    """Return the fingerprint of the dataset that the lock is for extending; None for any other lock, or without one."""
    try:
        found = json.loads(storage.read(FILE_NAME)).get("extends")
    except (NotFoundError, ValueError, AttributeError):
        return None
    return found if isinstance(found, str) else None


def _refuse_other_version(storage: Storage, fingerprint: str) -> None:
    if manifest.from_bytes(storage.read(manifest.FILE_NAME)).fingerprint != fingerprint:
        raise DatasetExistsError(f"{storage} was extended by another process meanwhile; run the same command again")
