"""The write lock: which process may write to a destination.

On a local disk it is `local_files.lock_directory`, which leaves no file and ends with its processes. Object stores have
no locks, and machines that share a file system do not see each other's. There a writer first creates a blob with a
digest of its plan, and deletes it after writing the manifest. A writer that finds the blob of other work stops. A
writer that finds its own work continues: it resumes a run, or is a twin that writes the same bytes under the same
names.

The name of the blob names the version for which it counts: `unfinished.json` before the first one,
`unfinished-DIGEST.json` for the extension of a version. Versions never come back, so the blob of a version that is not
current is void, and may be deleted at any time. No program deletes the blob of the current version. So everything that
is written next to a version is the work of one blob, however late its writer wakes up.
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
    """The right to write to a storage until a dataset, or a version of it, is committed."""

    storage: Storage
    extends: str | None  # fingerprint of the version that is extended; None for a new dataset
    blob: bytes | None  # the content of the lock's blob; None if the kernel's lock keeps all other writers out

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
        message = f"{self.storage.url(self.name)}, the write lock of this run, was removed or replaced"
        raise StoreError(f"{message}; run the same command again, and keep the file until it ends")

    def confirm(self, published: Collection[str]) -> None:
        """Check the lock after files were published; withdraw them if another version was committed meanwhile.

        A purge removes void locks before it lists files: either it finds these files, or this check finds no lock.
        """
        try:
            self.check()
        except DatasetExistsError:
            withdraw(self.storage, published)
            raise

    def read_version(self) -> tuple[bytes, str]:
        """Return the manifest of the extended version, and its tag; DatasetExistsError if it is not current."""
        version = self.storage.version(manifest.FILE_NAME)  # before the content, so that the tag is not a later one
        found = self.storage.read(manifest.FILE_NAME)
        if version is None or manifest.from_bytes(found).fingerprint != self.extends:
            message = f"{self.storage} was extended by another process meanwhile"
            raise DatasetExistsError(f"{message}; run the same command again")
        return found, version.tag

    def put(self, name: str, data: bytes) -> None:
        """Publish a blob that later versions replace, such as the quarantine, but never after a later version."""
        if self.blob is None:
            self.storage.put(name, data)
            return
        for attempt in range(_ATTEMPTS):
            version = self.storage.version(name)
            with contextlib.suppress(NotFoundError):
                if version is not None and self.storage.read(name) == data:
                    return
            self.check()  # after reading the tag, which changes if a version is committed later
            try:
                if version is None:
                    self.storage.put(name, data, new=True)
                elif version.tag:
                    self.storage.put(name, data, replaces=version.tag)
                else:  # without conditional writes, only the check protects
                    self.storage.put(name, data)
                self.confirm([name])
                return
            except DatasetExistsError:  # a twin was faster
                if attempt == _ATTEMPTS - 1:
                    raise

    def replace_version(self, fingerprint: str, data: bytes, bad: bytes | None) -> None:
        """Publish a new version in place of the extended one, which is kept next to it.

        Args:
            fingerprint: The new version's fingerprint.
            data: Its manifest.
            bad: Its quarantine; None without one.

        Raises:
            DatasetExistsError: Another version was published meanwhile.
        """
        assert self.extends is not None
        found, tag = self.read_version()
        if bad is not None:
            self.put(quarantine.version_name(fingerprint), bad)
        with contextlib.suppress(DatasetExistsError):  # kept by an attempt that was killed
            self.storage.put(manifest.kept_name(self.extends), found, new=True)
        self.storage.put(manifest.FILE_NAME, data, replaces=tag)

    def release(self) -> None:
        """Delete the blob, if there is one, after the commit."""
        self.storage.remove(self.name)


def acquire(storage: Storage, content: Callable[[], str], writer: Writer | None = None) -> WriteLock:
    """Lock a storage until a dataset is committed; may be repeated with the same content, a digest of the work.

    An exclusive writer writes no blob, but respects an existing one. Without a `writer` the blob is always written, as
    the mark of an unfinished copy.

    Raises:
        DatasetExistsError: The storage has a dataset.
        ConfigError: The storage is locked for other content.
        StoreError: The storage ignores the conditions of writes.
    """
    lock = _acquire(storage, None, content, writer)
    refuse_dataset(storage)  # after the lock, because writers release it only after writing the manifest
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
        message = f"{storage}: this kind of storage has no conditional writes, which extending needs"
        raise StoreError(f"{message}; extend a copy on a disk or S3, and `shardflow sync` it to a new place")
    lock = _acquire(storage, fingerprint, content, writer)
    try:
        lock.read_version()  # after the lock, which counts only for this version
    except (DatasetExistsError, NotFoundError):
        lock.release()
        raise
    return lock


def refuse_dataset(storage: Storage, remedy: str = "choose another destination") -> None:
    """Raise DatasetExistsError if there is a dataset, after removing leftovers of its commit."""
    if storage.version(manifest.FILE_NAME) is not None:
        clean_up(storage)
        raise DatasetExistsError(f"{storage} already holds a dataset; {remedy}")


def refuse_purged(storage: Storage, version: str, published: Collection[str] = ()) -> None:
    """Raise DatasetExistsError if a version was purged, after withdrawing its files."""
    current = manifest.from_bytes(storage.read(manifest.FILE_NAME))
    if current.fingerprint != version and storage.version(manifest.kept_name(version)) is None:
        withdraw(storage, published)
        raise DatasetExistsError(f"{storage}: this version was purged by another process; run the command again")


def is_lock(name: str) -> bool:
    """Return whether a blob of this name is a lock."""
    return bool(_LOCK.fullmatch(name))


def clean_up(storage: Storage) -> None:
    """Remove the leftovers of writers that were killed at their commit, as far as possible."""
    with contextlib.suppress(StoreError, ManifestError):  # such as a read-only disk
        # The listing comes first, so that locks in it that are not for the current version are for older ones.
        left = [name for name in storage.listing() if is_lock(name) or name.startswith(_LEFTOVER)]
        current = manifest.from_bytes(storage.read(manifest.FILE_NAME)).fingerprint
        for name in left:
            # An extension of the current version is running, or can be resumed.
            if name != _name(current) and (name.startswith(_LEFTOVER) or _CONTENT.fullmatch(storage.read(name))):
                storage.remove(name)


def abort_uploads(storage: Storage, names: Collection[str]) -> None:
    """Abort uploads of shards that killed writers left open; call this before the commit.

    A twin that still uploads one of them fails. If listing uploads is not allowed, they are left to the bucket's
    lifecycle rule.
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
        raise TransientError(f"{storage.url(name)} appears and disappears; run the same command again later")
    if found != ours:
        begun = f"{storage} has unfinished work, maybe of a running process, with other inputs or settings"
        remedy = "choose another destination, or remove all files below it"
        if extends is not None:
            remedy = f"or, if no process works on it, remove {storage.url(name)}"
        raise ConfigError(f"{begun}; finish it with the command and the inputs that began it, {remedy}")
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
    """Raise StoreError if a write succeeds although its condition does not hold."""
    for _ in range(_ATTEMPTS):  # several, because a void lock may be cleaned up between two writes
        try:
            write()
        except DatasetExistsError:
            return
    storage.remove(name)
    message = f"{storage} ignores the conditions of writes (If-None-Match, If-Match), so writers could mix their shards"
    raise StoreError(f"{message}; write to a disk, and copy the files there, {manifest.FILE_NAME} last")


def _name(extends: str | None) -> str:
    if extends is None:
        return FILE_NAME
    return f"{FILE_NAME.removesuffix('.json')}-{extends.removeprefix('sha256:')}.json"
