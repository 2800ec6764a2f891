"""Memory in huge pages, so that a fork copies one entry of the page table in place of 512."""

from __future__ import annotations

import ctypes

_HUGE_BYTES = 2 << 20
_MADV_COLLAPSE = 25  # of Linux 6.1; earlier ones say that they do not know it, and nothing changes


def collapse() -> None:
    """Move the anonymous memory of this process into huge pages. With all of torch in memory, a fork takes a third."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    try:
        with open("/proc/self/maps") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:  # elsewhere than on Linux
        return
    for line in lines:
        addresses, rights, _, _, inode, *_ = line.split()
        first, end = (int(address, 16) for address in addresses.split("-"))
        first, end = -(-first // _HUGE_BYTES) * _HUGE_BYTES, end // _HUGE_BYTES * _HUGE_BYTES
        if rights == "rw-p" and inode == "0" and first < end:
            madvise(first, end - first, _MADV_COLLAPSE)
