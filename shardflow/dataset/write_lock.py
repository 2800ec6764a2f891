"""The write lock: which process may write to a place.

On a local disk it is `local_files.lock_directory`, which leaves no file and ends with its processes. An object store
has no locks, and machines that share a file system do not see each other's. There a writer first creates a blob with a
digest of its plan, and deletes it when the manifest is written. A writer that finds the blob of other work stops. A
writer that finds its own work continues: it resumes a run, or is its twin, which writes the same bytes under the same
names and does no harm.

The name of the blob says for which version of the dataset it counts: `unfinished.json` where there is none yet,
`unfinished-DIGEST.json` for the extension of a version. A version never comes back, so the blob of a version that is
not the current one is void, and anyone may delete it at any time. The blob of the current version is never deleted by a
program. So all that is ever written next to one version is the work of one blob, however late its writer wakes up.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from shardflow.errors import ConfigError, DatasetExistsError, ManifestError, NotFoundError, StoreError, TransientError
from shardflow.formats import manifest, quarantine
from shardflow.storage.interface import TEMPORARY, Storage, Writer

from .own_files import withdraw

FILE_NAME = "unfinished.json"
_LOCK = re.compile(r"unfinished(-[0-9a-f]{64})?\.json")
_CONTENT = re.compile(rb'\{\s*"content": ".*"\s*\}\s*')
_LEFTOVER = f"{TEMPORARY}{manifest.FILE_NAME}."
_NO_TAG = f'"{"0" * 32}"'  # of no blob

_ATTEMPTS = 8  # one is enough unless other writers begin or end at the same moment


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteLock:
    """The right to write to a storage until a dataset, or a version of it, is committed there."""

    storage: Storage
    extends: str | None  # fingerprint of the version to which something is added; None where there is no dataset yet
    blob: bytes | None  # what the lock's blob holds; None where the kernel's lock keeps all other writers out

    @property
    def name(self) -> str:
        """Name of the blob."""
        return _name(self.extends)

    def check(self) -> None:
        """Raise an error unless the lock is held.

        Raises:
            DatasetExistsError: The dataset, or another version of it, is committed.
            StoreError: The blob was removed, which no program does.
        """
        if self.blob is None:
            return
        with contextlib.suppress(NotFoundError):
            if self.storage.read(self.name) == self.blob:
                return
        if self.extends is None:
            refuse_dataset(self.storage)
        else:
            self.read_version()
        message = f"{self.storage.url(self.name)}, the write lock of this run, was removed or replaced meanwhile"
        raise StoreError(f"{message}; keep it while a process writes there, and run the same command again")

    def confirm(self, published: Collection[str]) -> None:
        """Check the lock after files were published; withdraw them if another version was committed meanwhile.

        A purge removes void locks before it lists files: it finds these files, or this finds the lock gone.
        """
        try:
            self.check()
        except DatasetExistsError:
            withdraw(self.storage, published)
            raise

    def read_version(self) -> tuple[bytes, str]:
        """Return the manifest of the version that is extended, and its tag; DatasetExistsError if another is there."""
        version = self.storage.version(manifest.FILE_NAME)  # before the content, so that it is not of a later one
        found = self.storage.read(manifest.FILE_NAME)
        if version is None or manifest.from_bytes(found).fingerprint != self.extends:
            message = f"{self.storage} was extended by another process meanwhile"
            raise DatasetExistsError(f"{message}; run the same command again")
        return found, version.tag

    def put(self, name: str, data: bytes) -> None:
        """Publish a blob that later versions replace, such as the quarantine: never after one of them is committed."""
        if self.blob is None:
            self.storage.put(name, data)
            return
        for attempt in range(_ATTEMPTS):
            version = self.storage.version(name)
            with contextlib.suppress(NotFoundError):
                if version is not None and self.storage.read(name) == data:
                    return
            self.check()  # after the tag was read: when a version is committed later, the blob has another tag
            try:
                if version is None:
                    self.storage.put(name, data, new=True)
                elif version.tag:
                    self.storage.put(name, data, replaces=version.tag)
                else:  # without conditional writes, the check has to do
                    self.storage.put(name, data)
                self.confirm([name])
                return
            except DatasetExistsError:  # a twin was faster
                if attempt == _ATTEMPTS - 1:
                    raise

    def replace_version(self, fingerprint: str, data: bytes, bad: bytes | None) -> None:
        """Publish the version of this fingerprint in place of the one that is extended, which is kept next to it.

        Args:
            fingerprint: Of the new version.
            data: Its manifest.
            bad: Its quarantine; None without one.

        Raises:
            DatasetExistsError: Another version was published meanwhile.
        """
        assert self.extends is not None
        found, tag = self.read_version()
        if bad is not None:
            self.put(quarantine.version_name(fingerprint), bad)
        with contextlib.suppress(DatasetExistsError):  # an attempt that was killed here has kept it
            self.storage.put(manifest.kept_name(self.extends), found, new=True)
        self.storage.put(manifest.FILE_NAME, data, replaces=tag)

    def release(self) -> None:
        """Delete the blob, if there is one, after the commit."""
        self.storage.remove(self.name)


def acquire(storage: Storage, content: Callable[[], str], writer: Writer | None = None) -> WriteLock:
    """Lock a storage until a dataset is committed there; may be repeated with the same content, a digest of the work.

    An exclusive writer writes no blob, but respects an existing one. None writes the blob in any case, as the sign
    of an unfinished copy.

    Raises:
        DatasetExistsError: A dataset is there.
        ConfigError: Other content is locked.
        StoreError: The storage ignores the conditions of writes.
    """
    lock = _acquire(storage, None, content, writer)
    refuse_dataset(storage)  # after the lock: a writer that finished meanwhile wrote the manifest before it released it
    return lock


def acquire_to_extend(storage: Storage, content: Callable[[], str], fingerprint: str, writer: Writer) -> WriteLock:
    """Lock a dataset of this fingerprint until its extension is committed; may be repeated with the same content.

    Raises:
        DatasetExistsError: The dataset has another fingerprint now.
        ConfigError: It is locked for other content.
        StoreError: The storage has no conditional writes, or ignores the conditions.
    """
    if writer.is_exclusive:
        return WriteLock(storage=storage, extends=fingerprint, blob=None)
    if (version := storage.version(manifest.FILE_NAME)) is not None and not version.tag:
        message = f"{storage}: this kind of storage cannot replace a manifest only while it is unchanged"
        raise StoreError(f"{message}; extend a copy on a disk or S3, and `shardflow sync` it to a new place")
    lock = _acquire(storage, fingerprint, content, writer)
    try:
        lock.read_version()  # after the lock, which counts for this version alone
    except (DatasetExistsError, NotFoundError):
        lock.release()
        raise
    return lock


def refuse_dataset(storage: Storage, remedy: str = "choose another destination") -> None:
    """Raise a DatasetExistsError if there is a dataset, after removing leftovers of its commit."""
    if storage.version(manifest.FILE_NAME) is not None:
        clean_up(storage)
        raise DatasetExistsError(f"{storage} already holds a dataset; {remedy}")


def refuse_purged(storage: Storage, version: str, published: Collection[str] = ()) -> None:
    """Raise a DatasetExistsError if the version of a fingerprint was purged, after withdrawing files of it."""
    current = manifest.from_bytes(storage.read(manifest.FILE_NAME))
    if current.fingerprint != version and storage.version(manifest.kept_name(version)) is None:
        withdraw(storage, published)
        raise DatasetExistsError(f"{storage} has another version, and this one was purged; run the command again")


def is_lock(name: str) -> bool:
    """Return whether a blob of this name is a lock."""
    return bool(_LOCK.fullmatch(name))


def clean_up(storage: Storage) -> None:
    """Remove the leftovers next to the manifest of a writer that was killed at its commit, where this can be done."""
    with contextlib.suppress(StoreError, ManifestError):  # such as a read-only disk
        # The listing comes first: a lock in it that is not for the version that is then current is for an older one.
        left = [name for name in storage.listing() if is_lock(name) or name.startswith(_LEFTOVER)]
        current = manifest.from_bytes(storage.read(manifest.FILE_NAME)).fingerprint
        for name in left:
            # The extension of the current one is running, or can be resumed.
            if name != _name(current) and (name.startswith(_LEFTOVER) or _CONTENT.fullmatch(storage.read(name))):
                storage.remove(name)


def abort_uploads(storage: Storage, names: Collection[str]) -> None:
    """Abort the uploads of shards that killed writers left open; call this before the commit.

    A twin that still uploads one of them fails: the commit has made it useless. Where listing uploads is not allowed,
    they are left to the lifecycle rule of the bucket.
    """
    with contextlib.suppress(StoreError):
        storage.abort_uploads(names)


def _acquire(storage: Storage, extends: str | None, content: Callable[[], str], writer: Writer | None) -> WriteLock:
    name = _name(extends)
    is_exclusive = writer is not None and writer.is_exclusive
    if is_exclusive and storage.version(name) is None:
        return WriteLock(storage=storage, extends=extends, blob=None)
    ours = json.dumps({"content": content()}, indent=1).encode() + b"\n"
    for _ in range(_ATTEMPTS):
        if not is_exclusive and _create(storage, name, ours):
            found = ours
            break
        with contextlib.suppress(NotFoundError):  # its owner has just released it
            found = storage.read(name)
            break
    else:
        raise TransientError(f"{storage.url(name)} exists, and then again does not; run the same command again later")
    if found != ours:
        begun = f"{storage} is being written to with other inputs or settings, or was and is unfinished"
        remedy = "choose another destination, or remove all that is below it"
        if extends is not None:
            remedy = f"or, when no process of it is left, remove {storage.url(name)}"
        raise ConfigError(f"{begun}; finish it with the command that began it, {remedy}")
    if extends is not None:
        _refuse_success(storage, name, lambda: storage.put(name, ours, replaces=_NO_TAG))
    return WriteLock(storage=storage, extends=extends, blob=None if is_exclusive else ours)


def _create(storage: Storage, name: str, data: bytes) -> bool:
    """Create the blob of a lock; return False if there is one."""
    try:
        storage.put(name, data, new=True)
    except DatasetExistsError:
        return False
    _refuse_success(storage, name, lambda: storage.put(name, data, new=True))
    return True


def _refuse_success(storage: Storage, name: str, write: Callable[[], None]) -> None:
    """Raise a StoreError if a write succeeds whose condition does not hold: such a storage ignores conditions."""
    for _ in range(_ATTEMPTS):  # several, because a void lock may be cleaned up between two writes
        try:
            write()
        except DatasetExistsError:
            return
    storage.remove(name)
    message = f"{storage} ignores the conditions of writes (If-None-Match, If-Match), so writers could mix their shards"
    raise StoreError(f"{message}; write to a disk, and copy the files there with {manifest.FILE_NAME} as the last")


def _name(extends: str | None) -> str:
    if extends is None:
        return FILE_NAME
    return f"{FILE_NAME.removesuffix('.json')}-{extends.removeprefix('sha256:')}.json"
