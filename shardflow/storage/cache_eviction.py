"""Cache eviction: the cache stays within its limit, and leaves some of the disk free.

A process that has opened a file can read it after its deletion. So eviction need not ask the readers.

If a dataset is larger than the cache, LRU eviction would evict each file just before the next epoch needs it. The order
is instead:

    1. files that no run has used or renewed for an hour, the least recently used first
    2. files that a run has read for this epoch, in descending order of SHA-256: so the same files stay in each epoch,
       in all runs over a dataset, and the datasets in use share the cache in proportion to their sizes
    3. files that are prefetched or being read, the least recently used first
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from .cache_directory import EVICTION_LOCK, CachedFile, CacheDirectory, age, size_of
from .local_files import pause

_LEAST_FREE_SHARE = 0.02
_LEAST_FREE_BYTES = 10 * 10**9
_UNUSED_S = 3600
RENEW_S = 1200
"""How often a run renews its files, so that a slow or paused run does not lose them."""

_LOCK_TIMEOUT_S = 60.0
_POLL_S = 0.001  # about as long as the files take to count


class Evictor:
    """Counts the files of a cache, and evicts some. Any number of threads and processes may do so at once."""

    def __init__(self, directory: CacheDirectory) -> None:
        self._directory = directory
        self._sizes: dict[str, int] = {}

    def make_room(self, size: int, limit_bytes: int) -> bool:
        """Evict until `size` more bytes, which are already reserved, fit into the limit; return whether they fit."""
        if size > limit_bytes:
            return False

        def fits(held: int) -> bool:
            return held + reserved <= limit_bytes and spare_bytes(self._directory.path) >= max(0, reserved - written)

        with self._exclusively():
            reserved, written = self._remove_leftovers()
            return fits(self._held_bytes()) or fits(self._evict(eviction_order(self._directory.list_blobs()), fits)[1])

    def prune(self, limit_bytes: int) -> list[CachedFile]:
        """Remove leftovers, and evict blobs and decoded images, least recently used first, until they fit a limit.

        Return the evicted files.
        """
        with self._exclusively():
            self._remove_leftovers()
            files = sorted(self._directory.list_blobs() + self._directory.list_decoded(), key=age)
            return self._evict(files, lambda held: held <= limit_bytes)[0]

    def _held_bytes(self) -> int:
        """Return the size of all blobs. Each is measured once: files of one name have one size."""
        known = self._sizes  # deleted ones are forgotten: a damaged file may have had another size
        self._sizes = {
            name: known.get(name) or size_of(f"{self._directory.blobs}/{name}") for name in self._directory.blob_names()
        }
        return sum(self._sizes.values())

    def _remove_leftovers(self) -> tuple[int, int]:
        """Remove the files of killed processes; return the bytes that live processes have reserved, and written."""
        partials = self._directory.partials()
        reserved = written = 0
        for name in {*self._directory.lock_names(), *partials}:
            files = partials.get(name, ())
            try:
                descriptor = self._directory.try_lock(name)
            except OSError as error:
                if not self._directory.is_unusable(error):
                    raise
                continue  # `remove` has named it
            if descriptor is None:
                reserved += size_of(f"{self._directory.locks}/{name}")
                written += sum(map(size_of, files))
                continue
            try:
                for leftover in files:
                    self._directory.remove(leftover)
            finally:
                self._directory.unlock(name, descriptor)
        return reserved, written

    @contextlib.contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Let one process at a time count and evict. After a timeout, run without the lock and perhaps evict more."""
        deadline, descriptor = time.monotonic() + _LOCK_TIMEOUT_S, None
        try:
            while (descriptor := self._directory.try_lock(EVICTION_LOCK)) is None and time.monotonic() < deadline:
                pause(_POLL_S)
        except OSError as error:
            if not self._directory.is_unusable(error):
                raise
        try:
            yield
        finally:
            if descriptor is not None:
                self._directory.unlock(EVICTION_LOCK, descriptor)

    def _evict(self, files: list[CachedFile], fits: Callable[[int], bool]) -> tuple[list[CachedFile], int]:
        """Delete files in order until the bytes of the others fit; return the deleted files, and those bytes."""
        held, evicted = sum(file.bytes for file in files), []
        for file in files:
            if fits(held):
                break
            if self._directory.remove(file.path):
                evicted.append(file)
                held -= file.bytes
        return evicted, held


def eviction_order(blobs: Iterable[CachedFile]) -> list[CachedFile]:
    """Return blobs in the order in which they are evicted."""
    unused_ns = time.time_ns() - _UNUSED_S * 10**9

    def order(blob: CachedFile) -> tuple[int, int, Path]:
        if blob.used_ns < unused_ns:
            return 0, blob.used_ns, blob.path
        if blob.is_finished:
            return 1, -int(blob.path.name, 16), blob.path
        return 2, blob.used_ns, blob.path

    return sorted(blobs, key=order)


def spare_bytes(directory: Path) -> int:
    """Return how many bytes may still be written to the disk of a directory; negative if too little is free."""
    disk = os.statvfs(directory)
    least = min(_LEAST_FREE_BYTES, int(_LEAST_FREE_SHARE * disk.f_blocks * disk.f_frsize))
    return disk.f_bavail * disk.f_frsize - least
