"""The cache: a directory of verified files named by their SHA-256, shared by all processes of a user on a host.

Experiments, ranks, splits and copies of a dataset share what has the same content, and nothing else: base names mean
nothing here. Who opens a file keeps its bytes, so eviction is nothing but unlinking, and needs no word with readers.

    blobs/SHA256               whole and verified when they were linked into place; mtime is when they were last used
    partial/NAME.TOKEN         on their way; each belongs to the holder of the lock NAME
    locks/NAME                 locked (`flock(2)`) while somebody fetches NAME, and gone afterwards; its size, of which
                               not a byte is written, is what has been promised to NAME
    decoded/NAME               images of a shard as pixels, where a loader keeps them, within a limit of their own

A lock is the kernel's and ends with its process, so whoever waits for a downloader that was killed goes on at once.
There is no daemon, no shared memory, and no state besides these files: all of it may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import logging
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from shardflow.errors import ConfigError, StoreError

from .local_files import file_sha256, map_os_errors

logger = logging.getLogger(__name__)

LIMIT = "100GB"
PATIENCE_S = 60.0
"""How long a reader waits for a downloader whose file does not grow. Live ones grow or fail sooner, by the store's own
deadlines; this is for those that were stopped."""

_LEAST_FREE_SHARE = 0.02
_LEAST_FREE_BYTES = 10 * 10**9
_POLL_S = 0.02
_COUNTING_S = 0.001  # about as long as it takes
_ATTEMPTS = 3  # at fetching into a directory that others delete meanwhile
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}

Fill = Callable[[Path], None]
"""Makes a new file with the content that was named, verified; leaves none when it raises."""


class Fetched(enum.Enum):
    """What became of an attempt to have a file in the cache without waiting."""

    HERE = enum.auto()
    BUSY = enum.auto()
    FULL = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """One file of the cache; `used` is when it was last used, in nanoseconds since 1970."""

    path: Path
    bytes: int
    used: int


class Cache:
    """A bounded cache in a directory. Safe to use from any number of threads and processes at once.

    Args:
        directory: Made if it does not exist, with mode 0700; by default `shardflow` below the user's cache directory.
            One that cannot be made is an error when something is to be kept in it.
        limit: The most bytes that it may hold, as a number or as in "500 MB", "1.5TB", "64GiB". 2 % of the disk, or
            10 GB where that is less, stay free as well.
        pixels: The most bytes that decoded images may take in it, beside the limit; None to keep none.

    Raises:
        ConfigError: A limit is no size, or the directory is a link, or somebody else's.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        limit: int | str = LIMIT,
        pixels: int | str | None = None,
    ) -> None:
        self.directory = Path(directory) if directory is not None else default_directory()
        self.limit_bytes = size_in_bytes(limit)
        self.pixel_limit_bytes = None if pixels is None else size_in_bytes(pixels)
        self._blobs, self._partial, self._locks = (self.directory / name for name in ("blobs", "partial", "locks"))
        self.decoded_directory = self.directory / "decoded"
        self._sizes: dict[str, int] = {}
        self._warned = False
        with contextlib.suppress(StoreError):  # who only asks what a dataset holds needs none; who does is told then
            self._make_directories()

    def open(self, sha256: str, size: int | None, fill: Fill) -> IO[bytes]:
        """Return the file of that content, open for reading; made by `fill` if nobody has it or is at it.

        When there is no room, the file is a private one, which is gone when it is closed and no longer mapped.

        Args:
            sha256: Names the content.
            size: In bytes; None when it is small and not known.
            fill: Makes the file. It is called by one process at a time.

        Raises:
            StoreError: There is no room at all; and whatever `fill` raises.
        """
        with map_os_errors(self.directory):
            for _ in range(_ATTEMPTS):
                if (file := self._cached(sha256, size)) is not None:
                    return file
                try:
                    with self._lock(sha256, size or 0, patience_s=PATIENCE_S) as held:
                        if not held:
                            break
                        if (file := self._cached(sha256, size)) is not None:
                            return file
                        if self._make_room(size or 0):
                            return self._fill(sha256, fill, size, keep=True)
                    self._warn_of_no_room()
                    break
                except OSError as error:
                    if _is_full(error):
                        self._warn_of_no_room()
                        break
                    if not self._is_deleted(error):
                        raise
            return self._private(size or 0, fill)

    def fetch(self, sha256: str, size: int | None, fill: Fill, *, patience_s: float = 0) -> Fetched:
        """Have a file in the cache, but do not do without room.

        Others who are at it are waited for until their file has not grown for `patience_s`.

        Raises:
            StoreError: And whatever else `fill` raises.
        """
        with map_os_errors(self.directory):
            try:
                file = self._cached(sha256, size)
                if file is None:
                    with self._lock(sha256, size or 0, patience_s=patience_s) as held:
                        if not held:
                            return Fetched.BUSY
                        file = self._cached(sha256, size)
                        if file is None:
                            if not self._make_room(size or 0):
                                return Fetched.FULL
                            file = self._fill(sha256, fill, size, keep=True)
                file.close()
            except OSError as error:
                if _is_full(error):
                    return Fetched.FULL
                if self._is_deleted(error):
                    return Fetched.BUSY
                raise
            return Fetched.HERE

    def has(self, sha256: str) -> bool:
        """Return whether a file of that content is here now."""
        return os.path.exists(self._blobs / sha256)

    def arriving(self, sha256: str) -> IO[bytes] | None:
        """Return the file of that content as far as it has been made, not verified; None when nobody is at it."""
        with map_os_errors(self.directory), contextlib.suppress(FileNotFoundError):  # made, or all deleted, meanwhile
            for path in self._partials().get(sha256, ()):
                if (descriptor := self._try_lock(sha256)) is None:
                    return open(path, "rb")
                self._unlock(sha256, descriptor)
        return None

    def blobs(self) -> list[Blob]:
        """Return what the cache holds, the least recently used first."""
        return _files(self._blobs, lambda status: status.st_size)

    def decoded(self) -> list[Blob]:
        """Return the files of decoded images, the least recently used first, with the space that each takes."""
        return _files(self.decoded_directory, lambda status: 512 * status.st_blocks)  # they have holes

    def prune(self, limit_bytes: int) -> list[Blob]:
        """Evict the least recently used until no more than that is held, clear away leftovers; return what went.

        What is counted and evicted are shards and decoded images together.
        """
        self._make_directories()
        with map_os_errors(self.directory), self._evicting():
            self._clear_leftovers()
            blobs = sorted(self.blobs() + self.decoded(), key=_age)
            held, gone = sum(blob.bytes for blob in blobs), []
            for blob in blobs:
                if held <= limit_bytes:
                    break
                blob.path.unlink(missing_ok=True)
                gone.append(blob)
                held -= blob.bytes
        return gone

    def prune_damaged(self) -> list[Blob]:
        """Read everything, remove what is not the content that its name says, and return that."""
        return [blob for blob in self.blobs() if self.discard_damaged(blob.path.name)]

    def discard_damaged(self, sha256: str) -> bool:
        """Read the file of that content and remove it if it is another; return whether it was."""
        path = self._blobs / sha256
        with contextlib.suppress(FileNotFoundError), map_os_errors(path):
            if file_sha256(path) != sha256:
                path.unlink(missing_ok=True)
                return True
        return False

    def _cached(self, sha256: str, size: int | None) -> IO[bytes] | None:
        """Open a file and mark it as used; one of the wrong size, such as a crash of the host leaves, is none."""
        path = self._blobs / sha256
        try:
            file = open(path, "rb")  # noqa: SIM115 - it is handed out
        except FileNotFoundError:
            return None
        if size is not None and os.fstat(file.fileno()).st_size != size:
            file.close()
            path.unlink(missing_ok=True)
            return None
        with contextlib.suppress(OSError):  # a full disk may refuse even that
            os.utime(file.fileno())
        return file

    def _fill(self, name: str, fill: Fill, size: int | None, *, keep: bool) -> IO[bytes]:
        """Make a file and open it before others see it, so that no eviction can come in between."""
        for left in self._partials().get(name, ()):  # by a holder of the lock that was killed
            _unlink(left)
        partial = self._partial / f"{name}.{secrets.token_hex(8)}"
        try:
            fill(partial)
            file = open(partial, "rb")  # noqa: SIM115 - it is handed out
            try:
                if keep and (size is not None or self._has_room(name, os.fstat(file.fileno()).st_size)):
                    os.replace(partial, self._blobs / name)
                    self._sizes.pop(name, None)  # of a damaged one, that lay there before
            except BaseException:
                file.close()
                raise
            return file
        finally:
            partial.unlink(missing_ok=True)

    def _has_room(self, name: str, size: int) -> bool:
        """Promise room to a file whose size was not known before it was made; return whether there is any."""
        try:
            os.truncate(self._locks / name, size)
            return self._make_room(size)
        except FileNotFoundError:  # the cache was deleted at this moment
            return False

    def _private(self, size: int, fill: Fill) -> IO[bytes]:
        """Make a file without a name, here or among the system's temporary files."""
        name = f"private-{secrets.token_hex(8)}"
        try:
            with self._lock(name, size, patience_s=PATIENCE_S):
                return self._fill(name, fill, size, keep=False)
        except OSError as error:
            if not (_is_full(error) or self._is_deleted(error)):
                raise
        try:
            with tempfile.TemporaryDirectory(prefix="shardflow-") as directory:
                fill(Path(directory) / name)
                return open(Path(directory) / name, "rb")
        except OSError as error:
            if not _is_full(error):
                raise
            message = f"neither {self.directory} nor {tempfile.gettempdir()} has room for {size} bytes"
            raise StoreError(f"{message}; free some space, or choose a cache_dir on another disk") from error

    def _warn_of_no_room(self) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "the cache %s has no room (limit %d bytes): shards go into private temporary files, each process "
                "fetches its own; free some space, raise cache_limit, or choose a cache_dir on another disk",
                self.directory,
                self.limit_bytes,
            )

    def _make_room(self, size: int) -> bool:
        """Evict until `size` more bytes, which have been promised already, fit; return whether they do."""
        if size > self.limit_bytes:
            return False
        with self._evicting():
            promised, written = self._clear_leftovers()
            if self._fits(self._held(), promised, written):
                return True
            blobs = self.blobs()
            held = sum(blob.bytes for blob in blobs)
            for blob in blobs:
                if self._fits(held, promised, written):
                    return True
                blob.path.unlink(missing_ok=True)
                held -= blob.bytes
            return self._fits(held, promised, written)

    def _held(self) -> int:
        """Return the bytes of all blobs, each asked for its size once: what has one name has one size."""
        names = os.listdir(self._blobs)
        for name in names:
            if name not in self._sizes and (size := _size(f"{self._blobs}/{name}")):
                self._sizes[name] = size
        return sum(self._sizes.get(name, 0) for name in names)

    def _fits(self, held: int, promised: int, written: int) -> bool:
        return held + promised <= self.limit_bytes and spare_bytes(self.directory) >= max(0, promised - written)

    def _clear_leftovers(self) -> tuple[int, int]:
        """Remove what killed processes left; return the bytes promised to live ones, and written by them so far."""
        partials = self._partials()
        promised = written = 0
        for name in {*os.listdir(self._locks), *partials}:
            if (descriptor := self._try_lock(name)) is None:
                promised += _size(f"{self._locks}/{name}")
                written += sum(map(_size, partials.get(name, ())))
                continue
            try:
                for left in partials.get(name, ()):
                    _unlink(left)
            finally:
                self._unlock(name, descriptor)
        return promised, written

    def _partials(self) -> dict[str, list[str]]:
        """Return the paths of the files that are on their way, by the names of their locks."""
        found: dict[str, list[str]] = {}
        for name in os.listdir(self._partial):
            found.setdefault(name.partition(".")[0], []).append(f"{self._partial}/{name}")
        return found

    @contextlib.contextmanager
    def _evicting(self) -> Iterator[None]:
        """Let one process at a time count and evict. Without it they would still be safe, but evict too much."""
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        deadline = time.monotonic() + PATIENCE_S
        try:
            while not _flock(descriptor) and time.monotonic() < deadline:
                time.sleep(_COUNTING_S)
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a fork may have inherited it
            os.close(descriptor)

    @contextlib.contextmanager
    def _lock(self, name: str, size: int, *, patience_s: float) -> Iterator[bool]:
        """Hold the lock of a name and be promised `size` bytes; False when its holder seems to have stopped."""
        self._make_directories()
        descriptor = self._try_lock(name)
        written, since = -1, time.monotonic()
        while descriptor is None:
            if (now := sum(map(_size, self._partials().get(name, ())))) != written:
                written, since = now, time.monotonic()
            if time.monotonic() - since >= patience_s:
                yield False
                return
            time.sleep(_POLL_S)
            descriptor = self._try_lock(name)
        try:
            os.ftruncate(descriptor, size)
            yield True
        finally:
            self._unlock(name, descriptor)

    def _try_lock(self, name: str) -> int | None:
        while True:
            descriptor = os.open(f"{self._locks}/{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not _flock(descriptor):
                os.close(descriptor)
                return None
            if self._is_lock(name, descriptor):
                return descriptor
            # The holder before took the name away as it let go: whoever comes next makes another file.
            os.close(descriptor)

    def _unlock(self, name: str, descriptor: int) -> None:
        if self._is_lock(name, descriptor):
            # Gone by name, so that a fork which inherited the descriptor holds nothing that others could meet.
            _unlink(f"{self._locks}/{name}")
        os.close(descriptor)

    def _is_lock(self, name: str, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.lstat(f"{self._locks}/{name}"))
        except FileNotFoundError:
            return False

    def _is_deleted(self, error: OSError) -> bool:
        """Return whether an error comes of somebody deleting the cache, as they may."""
        return isinstance(error, FileNotFoundError) and str(self.directory) in str(error)

    def _make_directories(self) -> None:
        try:
            _make_directory(self.directory, parents=True)
            for path in (self._blobs, self._partial, self._locks, self.decoded_directory):
                _make_directory(path)
        except StoreError as error:
            remedy = "or choose another cache_dir (by default it is below XDG_CACHE_HOME)"
            raise type(error)(f"{error}, {remedy}") from error


def as_cache(cache: Cache | str | os.PathLike[str] | None) -> Cache:
    """Return a cache as it is, the cache in a directory, or for None the one in the user's cache directory."""
    return cache if isinstance(cache, Cache) else Cache(cache)


def default_directory() -> Path:
    """Return the user's cache directory, as the XDG Base Directory Specification has it, and `shardflow` below it."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "shardflow"


def size_in_bytes(size: int | str) -> int:
    """Return a number of bytes written as 10**9, "1GB", "1.5 TB" or "64GiB".

    Raises:
        ConfigError: It is none.
    """
    if isinstance(size, int) and size >= 0:
        return size
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmgt]?i?)b?", str(size).strip().lower())
    if found is None or found[2] not in _UNITS:
        raise ConfigError(f"a size is a number of bytes, or as in '500MB', '1.5TB', '64GiB'; found {size!r}")
    return int(float(found[1]) * _UNITS[found[2]])


def spare_bytes(directory: Path) -> int:
    """Return what may still be written to the disk of a directory; negative where too little is free already."""
    disk = os.statvfs(directory)
    least = min(_LEAST_FREE_BYTES, int(_LEAST_FREE_SHARE * disk.f_blocks * disk.f_frsize))
    return disk.f_bavail * disk.f_frsize - least


def _files(directory: Path, taken: Callable[[os.stat_result], int]) -> list[Blob]:
    found = []
    with contextlib.suppress(FileNotFoundError), map_os_errors(directory), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                found.append(Blob(path=Path(entry.path), bytes=taken(status), used=status.st_mtime_ns))
    return sorted(found, key=_age)


def _size(path: str) -> int:
    """Return the size of a file, 0 when it is gone."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _age(blob: Blob) -> tuple[int, Path]:
    return blob.used, blob.path


def _make_directory(path: Path, *, parents: bool = False) -> None:
    """Make a directory that is ours alone, or see that it is one."""
    with map_os_errors(path):
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"the cache {path} is a link or a file; name the directory itself as cache_dir")
    if status.st_uid != os.geteuid():
        raise ConfigError(f"the cache {path} belongs to user {status.st_uid}; choose a cache_dir of your own")
    if status.st_mode & 0o022:
        raise ConfigError(f"others can write to the cache {path}; choose a cache_dir of your own, or `chmod 700` it")


def _flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_full(error: BaseException | None) -> bool:
    """Return whether an error goes back to a disk, or a share of one, that is full."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False
