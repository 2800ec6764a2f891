"""The cache of remote shards: verified files, named by their SHA-256, that all processes of a user on a host share.

Experiments, ranks, splits and copies of a dataset share the files of the same content. `cache_directory` has the
files and locks, `cache_eviction` keeps the limit.
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
"""How many copies a reader tries. Each was verified on its way into the cache, so it means a broken disk."""

_NO_ROOM = (
    "the cache %s has no room (limit %d bytes): each process downloads shards into private temporary files; free some "
    "space, raise the limit of the cache, or choose a cache directory on another disk"
)


def stall_timeout_s(storage: Storage) -> float:
    """Return how long a reader waits for another process whose download from a storage does not grow.

    It has a quarter of its time left for its own download then. Stopped processes are noticed sooner.
    """
    return _STALL_SHARE * storage.idle_timeout_s


Download = Callable[[Path], None]
"""Writes the expected content to a new file and verifies it; leaves no file when it raises."""


class FetchResult(enum.Enum):
    """The result of an attempt to put a file into the cache."""

    CACHED = enum.auto()  # the file is in the cache
    BUSY = enum.auto()  # another process is downloading the file
    FULL = enum.auto()  # the cache, or its disk, has no room


class Cache:
    """A cache directory with a limit. Any number of threads and processes may use it at once.

    Args:
        directory: New, empty, or a cache already; created with mode 0700 if it does not exist. By default `shardflow`
            in the user's cache directory. A directory that cannot be created is an error when the first file is
            fetched.
        limit: The most bytes that shards may take, as a number or as in "500 MB", "1.5TB", "64GiB". The cache also
            leaves 2 % of the disk free, or 10 GB where that is less.
        pixels: The most bytes of decoded images for each split and decoder, in addition to `limit`; None to keep none.
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
        """Return the file of this content, open for reading; download it if no process has done so or is doing so.

        If the disk has no room, or an unusable file is in the way, the file is a private one. It is gone when it
        is closed and no longer mapped.

        Args:
            sha256: Of the content.
            size: In bytes; None for a small file of unknown size.
            download: Called by one process at a time.
            stall_timeout_s: How long the download of another process is waited for while it does not grow.

        Raises:
            StoreError: No disk has room; and any error of `download`.
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
        """Return this content, see `open`; a damaged copy is downloaded again. Messages name it by its URL.

        Raises:
            IntegrityError: One copy after the other is damaged.
        """
        for _ in range(MOST_COPIES):
            with self.open(sha256, size, download, stall_timeout_s=stall_timeout_s) as file:
                with contextlib.suppress(OSError):
                    if hashlib.sha256(data := file.read()).hexdigest() == sha256:
                        return data
                self.discard(sha256, os.fstat(file.fileno()))
        raise self.damaged_copies(url)

    def fetch(self, sha256: str, size: int | None, download: Download, *, stall_timeout_s: float = 0) -> FetchResult:
        """Put the file of this content into the cache, if there is room; see `open`.

        A download of another process is waited for until it has not grown for `stall_timeout_s`.
        """
        with map_os_errors(self.directory):
            file = self._obtain(sha256, size, download, stall_timeout_s)
        if file is None or isinstance(file, FetchResult):
            return file or FetchResult.BUSY
        file.close()
        return FetchResult.CACHED

    def has(self, sha256: str) -> bool:
        """Return whether the file of this content is in the cache now."""
        return os.path.exists(self._files.blobs / sha256)

    def finish(self, sha256: str) -> None:
        """Say that a file is not needed before the next epoch; eviction always keeps the same ones of these."""
        with contextlib.suppress(OSError):
            os.utime(self._files.blobs / sha256, ns=(0, time.time_ns()))

    def renew(self, sha256s: Container[str]) -> None:
        """Say that a run still needs the files of these contents, as far as they are here, now or in its next epoch."""
        recent = time.time_ns() - RENEW_S * 10**9 // 2  # another process of the run may have said so just now
        for blob in self.blobs():
            if blob.used_ns < recent and blob.path.name in sha256s:
                with contextlib.suppress(OSError):
                    accessed_ns = 0 if blob.is_finished else time.time_ns()
                    os.utime(blob.path, ns=(accessed_ns, time.time_ns()))

    def open_partial(self, sha256: str) -> IO[bytes] | None:
        """Return the file of this content as far as it has arrived, not verified; None if no process downloads it."""
        # Not found: the file is complete, or the cache was deleted, meanwhile.
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
        """Return the shards and indexes in the cache, the least recently used first."""
        return self._files.list_blobs()

    def decoded(self) -> list[CachedFile]:
        """Return the files of decoded images, the least recently used first, with the disk space of each."""
        return self._files.list_decoded()

    def prune(self, limit_bytes: int) -> list[CachedFile]:
        """Evict shards and decoded images until they are within a limit, remove leftovers; return the evicted files."""
        with map_os_errors(self.directory):
            try:
                self._files.create()
                return self._evictor.prune(limit_bytes)
            except OSError as error:
                if not self._files.is_deleted(error):
                    raise
                return []

    def prune_damaged(self) -> list[CachedFile]:
        """Read all blobs, remove those that do not have the SHA-256 of their name, and return them."""
        with map_os_errors(self.directory):
            self._files.create()
            return [blob for blob in self.blobs() if self._is_damaged(blob.path) and self._files.remove(blob.path)]

    def remove_contents(self, sha256s: Container[str]) -> list[CachedFile]:
        """Remove the files of these contents, and all decoded images, whose names do not say which images they hold.

        Return the files that were removed. A process that reads one can read it to the end.
        """
        if not self.directory.is_dir():
            return []
        with map_os_errors(self.directory):
            self._files.create()
            for partials in (paths for sha256, paths in self._files.partials().items() if sha256 in sha256s):
                for path in partials:
                    self._files.remove(path)
            files = [*(blob for blob in self.blobs() if blob.path.name in sha256s), *self.decoded()]
            return [file for file in files if self._files.remove(file.path)]

    def discard(self, sha256: str, damaged: os.stat_result) -> None:
        """Remove a blob that turned out to be damaged, unless another file has taken its place."""
        path = self._files.blobs / sha256
        with contextlib.suppress(FileNotFoundError), map_os_errors(path):
            if os.path.samestat(os.lstat(path), damaged):
                self._files.remove(path)

    def damaged_copies(self, url: str) -> ShardflowError:
        """Return the error of a file whose copies were all damaged."""
        message = (
            f"{MOST_COPIES} copies of it, each verified on its way into the cache {self.directory}, were damaged when "
            "they were read: check the disk, or choose another cache directory"
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
        """Return the file from the cache, after a download if need be; None if others have deleted it meanwhile."""
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
        """Open a blob and mark it as used; delete one of the wrong size, such as a crash of the host leaves."""
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

        It is published if its `lock` is still held then: another process may have taken over meanwhile. None if the
        file was cut short meanwhile.
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
        """Reserve room for a file whose size was unknown before its download; return whether there is any."""
        if lock is None:
            return False
        os.ftruncate(lock, size)
        try:
            return self._evictor.make_room(size, self.limit_bytes)
        except FileNotFoundError:  # the cache was deleted at this moment
            return False

    def _open_private(self, size: int | None, download: Download) -> IO[bytes]:
        """Download a file that has no name afterwards, in the cache or in the system's temporary directory."""
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
            message = f"neither {self.directory} nor {tempfile.gettempdir()} has room for {size or 'its'} bytes"
            raise StoreError(f"{message}; free some space, or choose a cache directory on another disk") from error


def as_cache(cache: Cache | str | os.PathLike[str] | None) -> Cache:
    """Return a cache unchanged, the cache in a directory, or for None the cache in the user's cache directory."""
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
    except RuntimeError as error:  # in a container, often: no HOME, and a user that /etc/passwd does not list
        raise ConfigError(
            f"no directory for the cache: user {os.getuid()} has no home directory; name one by `cache=` (in "
            "commands `--cache-dir`), or set XDG_CACHE_HOME"
        ) from error


def _is_full(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False
