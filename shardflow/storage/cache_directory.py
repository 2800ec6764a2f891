"""The directory of a cache: its files, the locks by which processes share it, and the eviction that keeps its limit.

    blobs/SHA256               complete and verified; the modification time is the time of the last use
    partial/NAME.TOKEN         a download that is not complete; it belongs to the process that holds the lock NAME
    locks/NAME                 locked (`flock(2)`) while a process downloads NAME, then deleted; its size, of which no
                               byte is written, is the space that is reserved for NAME
    decoded/NAME               decoded images of a shard, where a loader keeps them, within a limit of their own

The kernel releases a lock when its process ends, so a process that waits for a killed downloader goes on at once.
There is no daemon, no shared memory, and no state besides these files. All of them may be deleted at any time.

A process that has opened a file keeps its bytes. So eviction only deletes names, and need not ask the readers.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shardflow.errors import ConfigError, StoreError

from .local_files import flock, map_os_errors

_POLL_S = 0.02
_LEAST_FREE_SHARE = 0.02
_LEAST_FREE_BYTES = 10 * 10**9
_EVICTION_TIMEOUT_S = 60.0
_EVICTION_POLL_S = 0.001  # about as long as the files take to count


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedFile:
    """A file of the cache: its path, its size in bytes, and when it was last used, in ns since 1970."""

    path: Path
    bytes: int
    used_ns: int


class CacheDirectory:
    """A directory with mode 0700 that belongs to the user. Any number of threads and processes may use it at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        names = ("blobs", "partial", "locks", "decoded")
        self.blobs, self.partial, self.locks, self.decoded = (path / name for name in names)
        self._sizes: dict[str, int] = {}

    def create(self) -> None:
        """Create the directories that do not exist; ConfigError for an unsafe one, StoreError where this fails."""
        try:
            _create(self.path, parents=True)
            for path in (self.blobs, self.partial, self.locks, self.decoded):
                _create(path)
        except StoreError as error:
            remedy = "or choose another cache directory (by default it is below XDG_CACHE_HOME)"
            raise type(error)(f"{error}, {remedy}") from error

    def is_deleted(self, error: OSError) -> bool:
        """Return whether an error comes from the deletion of the cache, which is allowed at any time."""
        return isinstance(error, FileNotFoundError) and str(self.path) in str(error)

    def list_blobs(self) -> list[CachedFile]:
        """Return the shards and indexes, the least recently used first."""
        return _list(self.blobs, lambda status: status.st_size)

    def list_decoded(self) -> list[CachedFile]:
        """Return the files of decoded images, the least recently used first, with the disk space of each."""
        return _list(self.decoded, lambda status: 512 * status.st_blocks)  # they are sparse

    def partials(self) -> dict[str, list[str]]:
        """Return the paths of all incomplete downloads by the names of their locks."""
        found: dict[str, list[str]] = {}
        for name in os.listdir(self.partial):
            found.setdefault(name.partition(".")[0], []).append(f"{self.partial}/{name}")
        return found

    @contextlib.contextmanager
    def lock(self, name: str, size: int, *, stall_timeout_s: float) -> Iterator[bool]:
        """Hold the lock of a name, with `size` bytes reserved; yield False if another process keeps it.

        It keeps the lock as long as its download has grown within `stall_timeout_s`.
        """
        self.create()
        descriptor = self.try_lock(name)
        written, since = -1, time.monotonic()
        while descriptor is None:
            if (now := sum(map(_size, self.partials().get(name, ())))) != written:
                written, since = now, time.monotonic()
            if time.monotonic() - since >= stall_timeout_s:
                yield False
                return
            time.sleep(_POLL_S)
            descriptor = self.try_lock(name)
        try:
            os.ftruncate(descriptor, size)
            yield True
        finally:
            self.unlock(name, descriptor)

    def try_lock(self, name: str) -> int | None:
        """Return a descriptor that holds the lock of a name, None if another process holds it."""
        while True:
            descriptor = os.open(f"{self.locks}/{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not flock(descriptor):
                os.close(descriptor)
                return None
            if self._is_lock(name, descriptor):
                return descriptor
            # The previous holder deleted this file when it released the lock, so another file is the lock now.
            os.close(descriptor)

    def unlock(self, name: str, descriptor: int) -> None:
        """Release a lock, and delete its file."""
        if self._is_lock(name, descriptor):
            # Deleted, so that a forked process that inherited the descriptor does not hold the lock of this name.
            unlink(f"{self.locks}/{name}")
        os.close(descriptor)

    def make_room(self, size: int, limit_bytes: int) -> bool:
        """Evict until `size` more bytes, which are reserved already, fit into the limit; return whether they do."""
        if size > limit_bytes:
            return False

        def fits(held: int) -> bool:
            return held + reserved <= limit_bytes and spare_bytes(self.path) >= max(0, reserved - written)

        with self._exclusively():
            reserved, written = self._remove_leftovers()
            return fits(self._held_bytes()) or fits(_evict(self.list_blobs(), fits)[1])

    def prune(self, limit_bytes: int) -> list[CachedFile]:
        """Evict blobs and decoded images until they are within a limit, remove leftovers; return the evicted files."""
        with self._exclusively():
            self._remove_leftovers()
            files = sorted(self.list_blobs() + self.list_decoded(), key=_age)
            return _evict(files, lambda held: held <= limit_bytes)[0]

    def _is_lock(self, name: str, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.lstat(f"{self.locks}/{name}"))
        except FileNotFoundError:
            return False

    def _held_bytes(self) -> int:
        """Return the size of all blobs. Each is measured once: files of one name have one size."""
        known = self._sizes  # deleted ones are forgotten: a damaged file may have had another size
        self._sizes = {name: known.get(name) or _size(f"{self.blobs}/{name}") for name in os.listdir(self.blobs)}
        return sum(self._sizes.values())

    def _remove_leftovers(self) -> tuple[int, int]:
        """Remove the files of killed processes; return the bytes that live ones reserved, and have written so far."""
        partials = self.partials()
        reserved = written = 0
        for name in {*os.listdir(self.locks), *partials}:
            files = partials.get(name, ())
            if (descriptor := self.try_lock(name)) is None:
                reserved += _size(f"{self.locks}/{name}")
                written += sum(map(_size, files))
                continue
            try:
                for leftover in files:
                    unlink(leftover)
            finally:
                self.unlock(name, descriptor)
        return reserved, written

    @contextlib.contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Let one process at a time count and evict. After a timeout it goes on: that is safe, but evicts too much."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        deadline = time.monotonic() + _EVICTION_TIMEOUT_S
        try:
            while not flock(descriptor) and time.monotonic() < deadline:
                time.sleep(_EVICTION_POLL_S)
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked process may have inherited the descriptor
            os.close(descriptor)


def spare_bytes(directory: Path) -> int:
    """Return how many bytes may still be written to the disk of a directory; negative if too little is free already."""
    disk = os.statvfs(directory)
    least = min(_LEAST_FREE_BYTES, int(_LEAST_FREE_SHARE * disk.f_blocks * disk.f_frsize))
    return disk.f_bavail * disk.f_frsize - least


def unlink(path: str) -> None:
    """Delete a file. A missing one is no error."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _list(directory: Path, size: Callable[[os.stat_result], int]) -> list[CachedFile]:
    found = []
    with contextlib.suppress(FileNotFoundError), map_os_errors(directory), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                found.append(CachedFile(path=Path(entry.path), bytes=size(status), used_ns=status.st_mtime_ns))
    return sorted(found, key=_age)


def _age(file: CachedFile) -> tuple[int, Path]:
    return file.used_ns, file.path


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _evict(files: list[CachedFile], fits: Callable[[int], bool]) -> tuple[list[CachedFile], int]:
    """Delete files in order until the bytes of the others fit; return the deleted files, and those bytes."""
    held, evicted = sum(file.bytes for file in files), []
    for file in files:
        if fits(held):
            break
        file.path.unlink(missing_ok=True)
        evicted.append(file)
        held -= file.bytes
    return evicted, held


def _create(path: Path, *, parents: bool = False) -> None:
    """Create a directory for this user alone, or make sure that an existing one is safe."""
    with map_os_errors(path):
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"the cache {path} is a link or a file; name the directory itself")
    if status.st_uid != os.geteuid():
        raise ConfigError(f"the cache {path} belongs to user {status.st_uid}; use a cache directory of your own")
    if status.st_mode & 0o022:
        raise ConfigError(f"others can write to the cache {path}; `chmod 700` it, or use a cache directory of your own")
