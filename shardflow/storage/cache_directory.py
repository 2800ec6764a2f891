"""The directory of a cache: its files, and the locks by which processes share it.

    blobs/SHA256               complete and verified; the modification time is the time of the last use
    partial/NAME.TOKEN         a download that is not complete; it belongs to the process that holds the lock NAME
    locks/NAME                 locked (`flock(2)`) while a process downloads NAME, then deleted; its size, of which no
                               byte is written, is the space that is reserved for NAME
    decoded/NAME               decoded images of a shard, where a loader keeps them, within a limit of their own

The kernel releases a lock when its process ends, so a process that waits for a killed downloader goes on at once.
There is no daemon, no shared memory, and no state besides these files. All of them may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shardflow.errors import ConfigError, StoreError

from .local_files import flock, map_os_errors, pause

_POLL_S = 0.02


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
            if (now := sum(map(size_of, self.partials().get(name, ())))) != written:
                written, since = now, time.monotonic()
            if time.monotonic() - since >= stall_timeout_s:
                yield False
                return
            pause(_POLL_S)
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

    def _is_lock(self, name: str, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.lstat(f"{self.locks}/{name}"))
        except FileNotFoundError:
            return False


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
