"""Residency: how much of a dataset is at hand, in the page cache or in the cache of remote shards.

The page cache is asked with mincore(2). For the files of others the kernel answers that everything is in memory, lest
one user learn what another reads; so those are not asked about.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from shardflow.dataset.dataset import Split
from shardflow.errors import StoreError
from shardflow.storage.local_files import map_os_errors


def in_memory_bytes(paths: Iterable[Path]) -> int | None:
    """Return how many bytes of these files the page cache holds; None when the kernel does not say.

    A missing file holds none. Asking reads nothing, so it leaves the page cache as it is.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    total = 0
    for path in paths:
        try:
            with map_os_errors(path), open(path, "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_uid != os.geteuid() and not os.access(path, os.W_OK, effective_ids=True):
                    return None
                if status.st_size:
                    total += _resident_bytes(libc, file.fileno(), status.st_size)
        except FileNotFoundError:
            continue
        except StoreError:
            return None
    return total


def cached_bytes(split: Split) -> int:
    """Return how many bytes of a split's shards are in its cache now."""
    return sum(shard.bytes for number, shard in enumerate(split.shards) if split.reader.is_local(number))


def _resident_bytes(libc: ctypes.CDLL, descriptor: int, size: int) -> int:
    pages = np.empty(-(-size // mmap.PAGESIZE), dtype=np.uint8)
    # A private writable map, because ctypes takes the address of no other; nothing is written.
    with mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY) as mapped:
        start = ctypes.c_char.from_buffer(mapped)
        address, vector = ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_void_p(pages.ctypes.data)
        failed = libc.mincore(address, ctypes.c_size_t(size), vector)
        del start  # the map cannot be closed while anything points into it
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    resident = int(np.count_nonzero(pages & 1))
    return min(size, resident * mmap.PAGESIZE)
