"""Cache eviction: the cache stays within its limit, and leaves some of the disk free.

A process that has opened a file keeps its bytes. So eviction only deletes names, and need not ask the readers.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from .cache_directory import CachedFile, CacheDirectory, age, flock, list_files, size_of, unlink

_LEAST_FREE_SHARE = 0.02
_LEAST_FREE_BYTES = 10 * 10**9
_LOCK_TIMEOUT_S = 60.0
_POLL_S = 0.001  # about as long as the files take to count


class Evictor:
    """Counts the files of a cache, and evicts the least recently used. For any number of threads and processes."""

    def __init__(self, directory: CacheDirectory) -> None:
        self._directory = directory
        self._sizes: dict[str, int] = {}

    def blobs(self) -> list[CachedFile]:
        """Return the shards and indexes in the cache, the least recently used first."""
        return list_files(self._directory.blobs, lambda status: status.st_size)

    def decoded(self) -> list[CachedFile]:
        """Return the files of decoded images, the least recently used first, with the disk space of each."""
        return list_files(self._directory.decoded, lambda status: 512 * status.st_blocks)  # they are sparse

    def make_room(self, size: int, limit_bytes: int) -> bool:
        """Evict until `size` more bytes, which are reserved already, fit into the limit; return whether they do."""
        if size > limit_bytes:
            return False

        def fits(held: int) -> bool:
            is_within = held + reserved <= limit_bytes
            return is_within and spare_bytes(self._directory.path) >= max(0, reserved - written)

        with self._exclusively():
            reserved, written = self._remove_leftovers()
            if fits(self._held_bytes()):
                return True
            blobs = self.blobs()
            held = sum(blob.bytes for blob in blobs)
            for blob in blobs:
                if fits(held):
                    return True
                blob.path.unlink(missing_ok=True)
                held -= blob.bytes
            return fits(held)

    def prune(self, limit_bytes: int) -> list[CachedFile]:
        """Evict blobs and decoded images until they are within a limit, remove leftovers; return the evicted files."""
        with self._exclusively():
            self._remove_leftovers()
            files = sorted(self.blobs() + self.decoded(), key=age)
            held, evicted = sum(file.bytes for file in files), []
            for file in files:
                if held <= limit_bytes:
                    break
                file.path.unlink(missing_ok=True)
                evicted.append(file)
                held -= file.bytes
        return evicted

    def forget_size(self, name: str) -> None:
        """Forget the size of a blob that is replaced: a damaged one may have had another."""
        self._sizes.pop(name, None)

    def _held_bytes(self) -> int:
        """Return the size of all blobs. Each is measured once: files of one name have one size."""
        names = os.listdir(self._directory.blobs)
        for name in names:
            if name not in self._sizes and (size := size_of(f"{self._directory.blobs}/{name}")):
                self._sizes[name] = size
        return sum(self._sizes.get(name, 0) for name in names)

    def _remove_leftovers(self) -> tuple[int, int]:
        """Remove the files of killed processes; return the bytes that live ones reserved, and have written so far."""
        directory = self._directory
        partials = directory.partials()
        reserved = written = 0
        for name in {*os.listdir(directory.locks), *partials}:
            if (descriptor := directory.try_lock(name)) is None:
                reserved += size_of(f"{directory.locks}/{name}")
                written += sum(map(size_of, partials.get(name, ())))
                continue
            try:
                for leftover in partials.get(name, ()):
                    unlink(leftover)
            finally:
                directory.unlock(name, descriptor)
        return reserved, written

    @contextlib.contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Let one process at a time count and evict. After a timeout it goes on: that is safe, but evicts too much."""
        descriptor = os.open(self._directory.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        try:
            while not flock(descriptor) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked process may have inherited the descriptor
            os.close(descriptor)


def spare_bytes(directory: Path) -> int:
    """Return how many bytes may still be written to the disk of a directory; negative if too little is free already."""
    disk = os.statvfs(directory)
    least = min(_LEAST_FREE_BYTES, int(_LEAST_FREE_SHARE * disk.f_blocks * disk.f_frsize))
    return disk.f_bavail * disk.f_frsize - least
