"""The cache of remote shards: verified files, named by their SHA-256, shared by all processes of a user on a host.

Runs, ranks, splits and copies of a dataset share files of equal content. `cache_directory` manages files and locks,
`cache_eviction` enforces the limit.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import hashlib
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Container
from pathlib import Path
from typing import IO

from shardflow._validation import size_in_bytes
from shardflow.errors import ConfigError, IntegrityError, ShardflowError, StoreError

from .cache_directory import CachedFile, CacheDirectory
from .cache_eviction import RENEW_S, Evictor
from .interface import IDLE_TIMEOUT_S, Storage
from .local_files import file_sha256, map_os_errors
from .staging import temporary_staging
from .urls import is_remote, strip_file_scheme

LIMIT = "100GB"
_STALL_SHARE = 0.75
STALL_TIMEOUT_S = _STALL_SHARE * IDLE_TIMEOUT_S

MOST_COPIES = 3
"""Copies that a reader tries. Each was verified when it was cached, so repeated damage means a broken disk."""

_NO_ROOM = (
    "the cache %s has no room, on its disk or within its limit of %d bytes, so each process downloads shards into "
    "private temporary files; free some space, raise the limit of the cache, or choose a directory on another disk"
)

_EXCEEDED = (
    "the shards that are read at the same time have %d bytes, but the limit of the cache %s is %d: each process keeps "
    "evicted shards on the disk while it reads them, and downloads them again in each epoch; raise the limit, or "
    "lower the shuffle's buffer and streams"
)


def stall_timeout_s(storage: Storage) -> float:
    """Return how long a reader waits for the stalled download of another process, in seconds.

    A quarter of its idle timeout is then left for its own download. Stopped processes are noticed sooner.
    """
    return _STALL_SHARE * storage.idle_timeout_s


Download = Callable[[Path], None]
"""Writes the expected content to a new file and verifies it; leaves no file when it raises."""


class FetchResult(enum.Enum):
    """The result of an attempt to cache a file."""

    CACHED = enum.auto()  # the file is in the cache
    BUSY = enum.auto()  # another process is downloading the file
    FULL = enum.auto()  # the cache, or its disk, has no room


class Cache:
    """A cache directory with a limit. Any number of threads and processes may use it at once.

    Args:
        directory: A new or empty directory, or a cache; created with mode 0700 if it does not exist. By default
            `shardflow` in the user's cache directory. If it cannot be created, fetching the first file raises the
            error.
        limit: Maximum size of the shards: a number of bytes, or "500 MB", "1.5TB", "64GiB". The cache also leaves 2 %
            of the disk free, or 10 GB if that is less.
        pixels: Maximum size of the decoded images of each split and decoder, in addition to `limit`; None to keep none.
            Unused ones stay until `prune`.

    Raises:
        ConfigError: A limit is not a size. The directory is a link, belongs to another user, or holds other files. No
            directory is given, and the user has no home directory.

    Example:
        >>> cache = shardflow.Cache("/nvme/cache", limit="500GB", pixels="50GB")
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        limit: int | str = LIMIT,
        pixels: int | str | None = None,
    ) -> None:
        if directory is not None and is_remote(directory):
            raise ConfigError("the cache must be a local directory, found a URL; name a disk of this machine")
        self.directory = default_directory() if directory is None else Path(strip_file_scheme(directory))
        self.limit_bytes = size_in_bytes(limit)
        self.pixel_limit_bytes = None if pixels is None else size_in_bytes(pixels)
        self._files = CacheDirectory(self.directory)
        self._evictor = Evictor(self._files)
        self.decoded_directory = self._files.decoded
        with contextlib.suppress(StoreError):  # raised later, and only if a file is fetched
            self._files.create()

    def open(
        self, sha256: str, size: int | None, download: Download, *, stall_timeout_s: float = STALL_TIMEOUT_S
    ) -> IO[bytes]:
        """Return the file of this content, open for reading; download it unless another process has it or downloads it.

        If the disk is full, or an unusable file is in the way, the file is a private one without a name.

        Args:
            sha256: SHA-256 of the content.
            size: Size in bytes; None for a small file of unknown size.
            download: Called by one process at a time.
            stall_timeout_s: How long to wait for another process whose download does not grow.

        Raises:
            StoreError: All disks are full. Errors of `download` are passed on.
        """
        with map_os_errors(self.directory):
            for _ in range(3):  # other processes may delete the directory
                try:
                    file = self._obtain(sha256, size, download, stall_timeout_s)
                except OSError as error:
                    if not self._files.is_unusable(error):
                        raise
                    self._files.warn_of(error)
                    break
                if file is FetchResult.FULL:
                    self._files.warn_once("room", _NO_ROOM, self.directory, self.limit_bytes)
                if isinstance(file, FetchResult):
                    break
                if file is not None:
                    return file
            return self._open_private(size, download)

    def read(
        self, sha256: str, size: int | None, download: Download, url: str, *, stall_timeout_s: float = STALL_TIMEOUT_S
    ) -> bytes:
        """Return this content, see `open`; a damaged copy is downloaded again. Messages name the file by `url`.

        Raises:
            IntegrityError: `MOST_COPIES` copies were damaged.
        """
        for _ in range(MOST_COPIES):
            with self.open(sha256, size, download, stall_timeout_s=stall_timeout_s) as file:
                with contextlib.suppress(OSError):
                    if hashlib.sha256(data := file.read()).hexdigest() == sha256:
                        return data
                self.discard(sha256, os.fstat(file.fileno()))
        raise self.damaged_copies(url)

    def fetch(self, sha256: str, size: int | None, download: Download, *, stall_timeout_s: float = 0) -> FetchResult:
        """Cache the file of this content if there is room; arguments as for `open`."""
        with map_os_errors(self.directory):
            file = self._obtain(sha256, size, download, stall_timeout_s)
        if file is None or isinstance(file, FetchResult):
            return file or FetchResult.BUSY
        file.close()
        return FetchResult.CACHED

    def has(self, sha256: str) -> bool:
        """Return whether the file of this content is in the cache."""
        return os.path.exists(self._files.blobs / sha256)

    def finish(self, sha256: str) -> None:
        """Mark a file as not needed before the next epoch; of these files, eviction always keeps the same ones."""
        with contextlib.suppress(OSError):
            os.utime(self._files.blobs / sha256, ns=(0, time.time_ns()))

    def renew(self, sha256s: Container[str]) -> None:
        """Mark the cached files of these contents as still needed by a run, now or in its next epoch."""
        recent = time.time_ns() - RENEW_S * 10**9 // 2  # another process of the run may have marked them just now
        for blob in self.blobs():
            if blob.used_ns < recent and blob.path.name in sha256s:
                with contextlib.suppress(OSError):
                    accessed_ns = 0 if blob.is_finished else time.time_ns()
                    os.utime(blob.path, ns=(accessed_ns, time.time_ns()))

    def warn_if_exceeded(self, bytes_in_use: int) -> None:
        """Warn once if files that are read at the same time exceed the limit, because open ones keep their space."""
        if bytes_in_use > self.limit_bytes:
            self._files.warn_once("limit", _EXCEEDED, bytes_in_use, self.directory, self.limit_bytes)

    def open_partial(self, sha256: str) -> IO[bytes] | None:
        """Return the unverified file of a download in progress; None if no process downloads this content."""
        # Not found: meanwhile the file was completed, or the cache deleted.
        with map_os_errors(self.directory), contextlib.suppress(FileNotFoundError):
            for path in self._files.partials().get(sha256, ()):
                try:
                    if (descriptor := self._files.try_lock(sha256)) is None:
                        return open(path, "rb")
                except OSError as error:
                    if not self._files.is_unusable(error):
                        raise
                    return None
                self._files.unlock(sha256, descriptor)
        return None

    def blobs(self) -> list[CachedFile]:
        """Return the shards and indexes in the cache, least recently used first."""
        return self._files.list_blobs()

    def decoded(self) -> list[CachedFile]:
        """Return the files of decoded images, least recently used first, with the disk space of each."""
        return self._files.list_decoded()

    def prune(self, limit_bytes: int) -> list[CachedFile]:
        """Evict shards and decoded images until they are within a limit, remove leftovers; return the evicted files."""
        return self._unless_deleted(lambda: self._evictor.prune(limit_bytes))

    def prune_damaged(self) -> list[CachedFile]:
        """Read all blobs, remove those that do not have the SHA-256 of their name, and return them."""
        return self._unless_deleted(
            lambda: [blob for blob in self.blobs() if self._is_damaged(blob.path) and self._files.remove(blob.path)]
        )

    def remove_contents(self, sha256s: Container[str]) -> list[CachedFile]:
        """Remove the files of these contents, and all decoded images, whose names do not say which images they hold.

        Return the files that were removed. A process that reads one can read it to the end.
        """

        def remove() -> list[CachedFile]:
            for partials in (paths for sha256, paths in self._files.partials().items() if sha256 in sha256s):
                for path in partials:
                    self._files.remove(path)
            files = [*(blob for blob in self.blobs() if blob.path.name in sha256s), *self.decoded()]
            return [file for file in files if self._files.remove(file.path)]

        return self._unless_deleted(remove) if self.directory.is_dir() else []

    def _unless_deleted(self, work: Callable[[], list[CachedFile]]) -> list[CachedFile]:
        """Create the directories and return the result of `work`; nothing if the cache is deleted meanwhile."""
        with map_os_errors(self.directory):
            try:
                self._files.create()
                return work()
            except OSError as error:
                if not self._files.is_deleted(error):
                    raise
                return []

    def discard(self, sha256: str, damaged: os.stat_result) -> None:
        """Remove a damaged blob, unless another file has replaced it."""
        path = self._files.blobs / sha256
        with contextlib.suppress(FileNotFoundError), map_os_errors(path):
            if os.path.samestat(os.lstat(path), damaged):
                self._files.remove(path)

    def damaged_copies(self, url: str) -> ShardflowError:
        """Return the error of a file whose copies were all damaged."""
        message = (
            f"{MOST_COPIES} copies, each verified when it was cached in {self.directory}, were damaged when they were "
            "read; check the disk, or choose another cache directory"
        )
        return IntegrityError(message).with_location(shard=url)

    def _is_damaged(self, blob: Path) -> bool:
        try:
            return file_sha256(blob) != blob.name
        except FileNotFoundError:
            return False
        except OSError as error:
            if not self._files.is_unusable(error):
                raise
            return True

    def _obtain(
        self, sha256: str, size: int | None, download: Download, stall_timeout_s: float
    ) -> IO[bytes] | FetchResult | None:
        """Return the file from the cache, after a download if necessary; None if it was deleted meanwhile."""
        try:
            if (file := self._open_cached(sha256, size)) is not None:
                return file
            with self._files.lock(sha256, size or 0, stall_timeout_s=stall_timeout_s) as lock:
                if lock is None:
                    return FetchResult.BUSY
                if (file := self._open_cached(sha256, size)) is not None:
                    return file
                if not self._evictor.make_room(size or 0, self.limit_bytes):
                    return FetchResult.FULL
                return self._download(sha256, download, size, lock)
        except OSError as error:
            if _is_full(error):
                return FetchResult.FULL
            if not self._files.is_deleted(error):
                raise
            return None

    def _open_cached(self, sha256: str, size: int | None) -> IO[bytes] | None:
        """Open a blob and mark it as used; delete one of the wrong size, which a crash of the host may leave."""
        path = self._files.blobs / sha256
        try:
            file = open(path, "rb")  # noqa: SIM115 - it is returned
        except FileNotFoundError:
            return None
        except OSError as error:
            if self._files.is_unusable(error) and self._files.remove(path):
                return None
            raise
        status = os.fstat(file.fileno())
        if size is not None and status.st_size != size:
            self.discard(sha256, status)
            file.close()
            return None
        with contextlib.suppress(OSError):  # a full disk may refuse even this
            os.utime(file.fileno())
        return file

    def _download(self, name: str, download: Download, size: int | None, lock: int | None) -> IO[bytes] | None:
        """Download a file, and open it before it is published, so that it cannot be evicted in between.

        It is published if its `lock` is still held, as another process may have taken over. None if the file was
        truncated meanwhile.
        """
        for leftover in self._files.partials().get(name, ()):  # of a process that was killed or stopped
            self._files.remove(leftover)
        partial = self._files.partial / f"{name}.{secrets.token_hex(8)}"
        try:
            download(partial)
            file = open(partial, "rb")  # noqa: SIM115 - it is returned
            try:
                arrived = os.fstat(file.fileno()).st_size
                if size is not None and arrived != size:
                    file.close()
                    return None
                fits = size is not None or self._reserve(lock, arrived)
                if lock is not None and fits and self._files.holds(name, lock):
                    os.replace(partial, self._files.blobs / name)
            except BaseException:
                file.close()
                raise
            return file
        finally:
            partial.unlink(missing_ok=True)

    def _reserve(self, lock: int | None, size: int) -> bool:
        """Reserve room for a downloaded file of previously unknown size; return whether there is enough."""
        if lock is None:
            return False
        os.ftruncate(lock, size)
        try:
            return self._evictor.make_room(size, self.limit_bytes)
        except FileNotFoundError:  # the cache was deleted meanwhile
            return False

    def _open_private(self, size: int | None, download: Download) -> IO[bytes]:
        """Download a file without a name, into the cache or the system's temporary directory."""
        name = f"private-{secrets.token_hex(8)}"
        try:
            with self._files.lock(name, size or 0, stall_timeout_s=0):
                if (file := self._download(name, download, size, None)) is not None:
                    return file
        except OSError as error:
            if not (_is_full(error) or self._files.is_deleted(error) or self._files.is_unusable(error)):
                raise
        try:
            with temporary_staging() as (directory, _):
                download(directory / name)
                return open(directory / name, "rb")
        except OSError as error:
            if not _is_full(error):
                raise
            room = "the file" if size is None else f"{size:,} bytes"
            message = f"neither {self.directory} nor {tempfile.gettempdir()} has room for {room}"
            raise StoreError(f"{message}; free some space, or choose a cache directory on another disk") from error


def as_cache(cache: Cache | str | os.PathLike[str] | None) -> Cache:
    """Return a cache unchanged, or the cache in a directory; None means the user's cache directory."""
    return cache if isinstance(cache, Cache) else Cache(cache)


def default_directory() -> Path:
    """Return `shardflow` in the user's cache directory, as the XDG Base Directory Specification defines it.

    Raises:
        ConfigError: The user has no home directory.
    """
    home = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(home):
        return Path(home) / "shardflow"
    try:
        return Path.home() / ".cache/shardflow"
    except RuntimeError as error:  # often in containers: no HOME, and a user that is not in /etc/passwd
        raise ConfigError(
            f"user {os.getuid()} has no home directory for the cache; name a cache directory with `cache=` or "
            "`--cache-dir`, or set XDG_CACHE_HOME"
        ) from error


def _is_full(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False
