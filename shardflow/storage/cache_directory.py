"""The directory of a cache: its files, and the locks by which processes share it.

    CACHEDIR.TAG               marks the directory as a cache, for backup programs too (https://bford.info/cachedir);
                               without it, a directory that holds anything else is refused
    blobs/SHA256               complete and verified; the modification time is the time of the last use, and the access
                               time is 0 from when a run has read it for this epoch until it is read again
    partial/NAME.TOKEN         a download that is not complete; it belongs to the process that holds the lock NAME
    locks/NAME                 locked (`flock(2)`) while a process downloads NAME, then deleted; a sparse file whose
                               size is the space that is reserved for NAME
    locks/eviction             locked while a process counts and evicts
    decoded/NAME               decoded images of a shard, where a loader keeps them, within a separate limit

The kernel releases a lock when its process ends, so a process that waits for a killed downloader continues at once.
A stopped process keeps its locks. So a downloader touches its lock every second, and a waiting process deletes a lock
that has not changed for `STUCK_AFTER_S`, and takes over. This is safe even if the stopped process continues: each
process writes a separate file, publishes it only while it holds the lock, and verifies the bytes.

The cache has no daemon, no shared memory, and no state except these files. All of them may be deleted at any time. A
file that cannot be used, for its mode or its owner, is deleted; if that fails too, it stays and is logged once. Files
with other names, in the directory or below it, are neither counted nor touched.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shardflow.errors import ConfigError, StoreError

from .local_files import flock, map_os_errors, pause
from .retry import current_wait

logger = logging.getLogger(__name__)

STUCK_AFTER_S = 5.0
"""How long a lock may stay unchanged before its process counts as stuck: longer than a busy machine delays a thread
that touches a file every second."""

_TOUCH_S = 1.0
_LONGEST_LOOK_S = 0.5  # counted between two looks at a lock: the waiting process may have been stopped meanwhile
_POLL_S = 0.02

TAG_NAME = "CACHEDIR.TAG"
_UNFINISHED_TAG = f".tmp-{TAG_NAME}"
_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55\n"
_OWNER = b"# shardflow cache, version "
_TAG = _SIGNATURE + _OWNER + b"1\n# Backups can leave it out, see https://bford.info/cachedir/\n"

EVICTION_LOCK = "eviction"
_MODE = 0o700
_BLOB = re.compile(r"[0-9a-f]{64}")
_DOWNLOAD = re.compile(r"[0-9a-f]{64}|private-[0-9a-f]{16}")
_PARTIAL = re.compile(rf"({_DOWNLOAD.pattern})\.[0-9a-f]{{16}}")
_LOCK = re.compile(rf"{EVICTION_LOCK}|{_DOWNLOAD.pattern}")
_FORMS = {"blobs": _BLOB, "partial": _PARTIAL, "locks": _LOCK, "decoded": _BLOB}
"""The directories of a cache, and the form of the names of all files that it writes there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedFile:
    """A file of the cache."""

    path: Path
    bytes: int
    used_ns: int  # time of the last use or renewal, in ns since 1970
    is_finished: bool = False  # whether the run that used it last needs it again only in its next epoch


class CacheDirectory:
    """A directory with mode 0700 that belongs to the user. Any number of threads and processes may use it at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.blobs, self.partial, self.locks, self.decoded = (path / name for name in _FORMS)
        # The time of the last look at the locks, and for each lock its state and the seconds without a change.
        self._seen: tuple[float, dict[str, tuple[_LockState, float]]] = 0.0, {}
        self._warned: set[str] = set()

    def create(self) -> None:
        """Create the directories that do not exist, and mark the cache.

        Raises:
            ConfigError: A directory is unsafe, or holds other files and is not marked as a cache.
            StoreError: A directory or the mark cannot be written.
        """
        try:
            _create(self.path, parents=True)
            with map_os_errors(self.path):
                self._mark()
            for path in (self.blobs, self.partial, self.locks, self.decoded):
                _create(path)
        except StoreError as error:
            remedy = "or choose another cache directory (by default it is below XDG_CACHE_HOME)"
            raise type(error)(f"{error}, {remedy}") from error

    def _mark(self) -> None:
        """Mark the directory as a cache unless it is marked; raise ConfigError if it holds other files."""
        if self._is_marked():
            return
        # The tag is written first. If only the tag is missing, the cache is being deleted, or was deleted in part.
        if (other := self._other_file()) is not None and not self._is_marked():
            raise ConfigError(
                f"{self.path} is not empty, and no {TAG_NAME} marks it as a cache of shardflow: it holds {other!r}; "
                "choose an empty or a new directory for the cache"
            )
        self._write_tag()

    def _other_file(self) -> str | None:
        """Return the name of a file that does not belong to a cache; None if there is none."""
        for name in sorted(set(os.listdir(self.path)) - {TAG_NAME, _UNFINISHED_TAG}):
            if (form := _FORMS.get(name)) is None:
                return name
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(self.path / name)
                if not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o777 != _MODE:
                    return name
                with os.scandir(self.path / name) as entries:
                    for entry in entries:
                        # An empty directory in the place of a file cannot hold data: the cache works around it.
                        is_filled = entry.is_dir(follow_symlinks=False) and os.listdir(entry.path)
                        if not form.fullmatch(entry.name) or is_filled:
                            return f"{name}/{entry.name}"
        return None

    def _is_marked(self) -> bool:
        """Return whether the tag exists; raise ConfigError if another program or a newer shardflow wrote it."""
        try:
            descriptor = os.open(self.path / TAG_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        with open(descriptor, "rb") as file:
            found = file.read(len(_TAG))
        if found.splitlines()[:2] == _TAG.splitlines()[:2]:
            return True
        if found.startswith(_SIGNATURE + _OWNER):
            raise ConfigError(f"a newer shardflow uses the cache {self.path}; update, or choose another directory")
        raise ConfigError(f"{self.path} is the cache of another program; choose another directory for the cache")

    def _write_tag(self) -> None:
        """Publish the whole tag. All processes write the same bytes to the same file, so any of them may finish it."""
        unfinished = self.path / _UNFINISHED_TAG
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as file:
            file.write(_TAG)
        try:
            os.replace(unfinished, self.path / TAG_NAME)
        except FileNotFoundError:
            if not self._is_marked():  # by another process
                raise

    def is_deleted(self, error: OSError) -> bool:
        """Return whether an error comes from the deletion of the cache, which is allowed at any time."""
        return isinstance(error, FileNotFoundError) and str(self.path) in str(error)

    def is_unusable(self, error: OSError) -> bool:
        """Return whether an error comes from a cache file that cannot be used: its mode, owner, kind or disk."""
        if isinstance(error, StoreError) or str(self.path) not in str(error):
            return False
        return error.errno in (errno.EACCES, errno.EPERM, errno.EISDIR, errno.EIO, errno.ESTALE)

    def remove(self, path: str | Path) -> bool:
        """Delete a file if possible; return whether it is gone."""
        try:
            Path(path).unlink(missing_ok=True)
        except OSError as error:
            if not self.is_unusable(error):
                raise
            self.warn_of(error)
            return False
        return True

    def warn_of(self, error: OSError) -> None:
        """Log once that a file cannot be used, with the remedy."""
        path, message = error.filename2 or error.filename, "the cache cannot use %s (%s) and works around it: %s"
        self.warn_once(path, message, path, error.strerror, "delete it, or choose another cache directory")

    def warn_once(self, subject: str, message: str, *arguments: object) -> None:
        """Log a warning, unless this process has logged one about the same subject."""
        if subject not in self._warned:
            self._warned.add(subject)
            logger.warning(message, *arguments)

    def list_blobs(self) -> list[CachedFile]:
        """Return the shards and indexes, the least recently used first."""
        return _list(self.blobs, lambda status: status.st_size)

    def blob_names(self) -> list[str]:
        """Return the names of the shards and indexes."""
        return [name for name in os.listdir(self.blobs) if _BLOB.fullmatch(name)]

    def lock_names(self) -> list[str]:
        """Return the names of all downloads that have a lock file, also of killed processes."""
        return [name for name in os.listdir(self.locks) if _DOWNLOAD.fullmatch(name)]

    def list_decoded(self) -> list[CachedFile]:
        """Return the files of decoded images, the least recently used first, with the disk space of each."""
        return _list(self.decoded, lambda status: 512 * status.st_blocks)  # they are sparse

    def partials(self) -> dict[str, list[str]]:
        """Return the paths of all incomplete downloads by the names of their locks."""
        found: dict[str, list[str]] = {}
        for name in os.listdir(self.partial):
            if matched := _PARTIAL.fullmatch(name):
                found.setdefault(matched[1], []).append(f"{self.partial}/{name}")
        return found

    @contextlib.contextmanager
    def lock(self, name: str, size: int, *, stall_timeout_s: float) -> Iterator[int | None]:
        """Hold the lock of a name, with `size` bytes reserved; yield its descriptor, None if another process keeps it.

        Wait while the download of the other process grows, and give up when the current wait has had no progress for
        `stall_timeout_s`. Take the lock over from a process that is stuck.
        """
        self.create()
        descriptor = self.try_lock(name)
        wait, most = current_wait(), 0
        while descriptor is None:
            if (arrived := sum(map(size_of, self.partials().get(name, ())))) > most:
                most = arrived
                wait.progress()
            if wait.idle_s() >= stall_timeout_s:
                yield None
                return
            pause(_POLL_S)
            descriptor = self.try_lock(name)
        try:
            os.ftruncate(descriptor, size)
            with _touchers.setdefault(os.getpid(), _Toucher()).touching(descriptor):
                yield descriptor
        finally:
            self.unlock(name, descriptor)

    def try_lock(self, name: str) -> int | None:
        """Return a descriptor that holds the lock of a name; None if another process holds it and is not stuck."""
        path = f"{self.locks}/{name}"
        while True:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                if self.is_unusable(error) and os.path.lexists(path) and self.remove(path):
                    continue
                raise
            is_stuck = False
            try:
                if (is_free := flock(descriptor)) and self.holds(name, descriptor):
                    os.utime(path)
                    return descriptor
                if not is_free:
                    is_stuck = self._is_stuck(name, descriptor)
            except OSError as error:  # it was deleted just now, or its owner was changed
                os.close(descriptor)
                error.filename = path  # which `os.utime` leaves out
                if isinstance(error, FileNotFoundError) or (self.is_unusable(error) and self.remove(path)):
                    continue
                raise
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
            # A free lock that we do not hold was deleted by its previous holder: the lock is another file now.
            if not is_free and not (is_stuck and self.remove(path)):
                return None

    def unlock(self, name: str, descriptor: int) -> None:
        """Release a lock, and delete its file."""
        try:
            if self.holds(name, descriptor):
                # Deleted, so that a forked process that inherited the descriptor does not hold the lock of this name.
                self.remove(f"{self.locks}/{name}")
        finally:
            os.close(descriptor)

    def holds(self, name: str, descriptor: int) -> bool:
        """Return whether a locked file is still the lock of a name: it may have been deleted."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.lstat(f"{self.locks}/{name}"))
        except FileNotFoundError:
            return False

    def _is_stuck(self, name: str, descriptor: int) -> bool:
        """Return whether a held lock has not changed for `STUCK_AFTER_S`; log once that its process is stuck."""
        self._look_at_locks()
        state, unchanged_s = self._seen[1].get(name, (None, 0.0))
        if unchanged_s < STUCK_AFTER_S or state != _lock_state(os.fstat(descriptor)):
            return False
        self.warn_once(
            "stuck",
            "%s keeps %s and does nothing; if it was stopped, end it or let it continue: others do its work meanwhile",
            _holder(descriptor),
            f"{self.locks}/{name}",
        )
        return True

    def _look_at_locks(self) -> None:
        """Note for how long each lock has not changed; of all locks, so that several stuck ones cost only one wait."""
        looked, before = self._seen
        passed = time.monotonic() - looked
        if passed < _POLL_S / 2:
            return
        seen = {}
        with os.scandir(self.locks) as entries:
            for entry in entries:
                if not _LOCK.fullmatch(entry.name):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    state = _lock_state(entry.stat(follow_symlinks=False))
                    known, unchanged_s = before.get(entry.name, (None, 0.0))
                    seen[entry.name] = state, unchanged_s + min(passed, _LONGEST_LOOK_S) if known == state else 0.0
        self._seen = looked + passed, seen


_LockState = tuple[int, int, int]


def _lock_state(status: os.stat_result) -> _LockState:
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _holder(descriptor: int) -> str:
    """Return the process that holds a lock, if the kernel tells; see proc_locks(5)."""
    inode = os.fstat(descriptor).st_ino
    with contextlib.suppress(OSError), open("/proc/locks") as locks:
        for line in locks:
            _, kind, _, _, process, place, *_ = line.split()
            if kind == "FLOCK" and place.endswith(f":{inode}"):
                return f"process {process}"
    return "a process"


class _Toucher:
    """Touches files every second, in a thread that lives as long as there are files to touch.

    One thread serves all locks: starting a thread for each would take longer than many downloads.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._descriptors: set[int] = set()
        self._is_running = False

    @contextlib.contextmanager
    def touching(self, descriptor: int) -> Iterator[None]:
        """Touch a file every second while the body runs."""
        with self._mutex:
            self._descriptors.add(descriptor)
            if not self._is_running:
                threading.Thread(target=self._run, name="shardflow-locks", daemon=True).start()
                self._is_running = True
        try:
            yield
        finally:
            with self._mutex:
                self._descriptors.remove(descriptor)

    def _run(self) -> None:
        while True:
            pause(_TOUCH_S)
            with self._mutex:
                if not self._descriptors:
                    self._is_running = False
                    return
                for descriptor in self._descriptors:
                    with contextlib.suppress(OSError):  # a full disk may refuse even this
                        os.utime(descriptor)


_touchers: dict[int, _Toucher] = {}  # by process: after a fork, the mutex may belong to a thread that the child lacks


def _list(directory: Path, size: Callable[[os.stat_result], int]) -> list[CachedFile]:
    found = []
    with contextlib.suppress(FileNotFoundError), map_os_errors(directory), os.scandir(directory) as entries:
        for entry in entries:
            if not _BLOB.fullmatch(entry.name):
                continue
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                finished = status.st_atime_ns == 0
                file = CachedFile(
                    path=Path(entry.path), bytes=size(status), used_ns=status.st_mtime_ns, is_finished=finished
                )
                found.append(file)
    return sorted(found, key=age)


def age(file: CachedFile) -> tuple[int, Path]:
    """Return the sort key by which the least recently used file comes first."""
    return file.used_ns, file.path


def size_of(path: str) -> int:
    """Return the size of a file in bytes, 0 if it is missing."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _create(path: Path, *, parents: bool = False) -> None:
    """Create a directory for this user alone, or raise ConfigError if an existing one is unsafe."""
    with map_os_errors(path):
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=_MODE)
        status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"the cache {path} is a link or a file; name the directory itself")
    if status.st_uid != os.geteuid():
        raise ConfigError(f"the cache {path} belongs to user {status.st_uid}; use your own cache directory")
    if status.st_mode & 0o022:
        raise ConfigError(f"others can write to the cache {path}; `chmod 700` it, or use your own cache directory")
