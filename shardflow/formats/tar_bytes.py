"""The bytes of a tar, read by position: a tar is walked by this alone, wherever it lies and however long it is."""

from __future__ import annotations

import zlib
from typing import Protocol

_CHUNK_BYTES = 1 << 20


class TarBytes(Protocol):
    """The bytes of a tar."""

    @property
    def size(self) -> int:
        """Number of bytes of the tar."""
        ...

    def read(self, offset: int, size: int) -> memoryview:
        """Return `size` bytes from an offset on, fewer where the tar ends before; none before its start.

        Memory is taken for these bytes: the caller checks a size that comes from a header.
        """
        ...


class TarInMemory:
    """A tar whose bytes are in memory, see `TarBytes`."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self.size = len(self._data)

    def read(self, offset: int, size: int) -> memoryview:
        """Return `size` bytes from an offset on, fewer where the tar ends before."""
        return self._data[offset : offset + size] if offset >= 0 else self._data[:0]


def first_nonzero(tar: TarBytes, offset: int) -> int | None:
    """Return where a tar has a byte that is not zero, from an offset on; None where there is none."""
    for at in range(offset, tar.size, _CHUNK_BYTES):
        chunk = bytes(tar.read(at, _CHUNK_BYTES))
        if rest := chunk.lstrip(b"\0"):
            return at + len(chunk) - len(rest)
    return None


def crc32(tar: TarBytes, offset: int, size: int) -> int:
    """Return the CRC-32 of a range of a tar, which is read in pieces."""
    value = 0
    for at in range(offset, offset + size, _CHUNK_BYTES):
        value = zlib.crc32(tar.read(at, min(_CHUNK_BYTES, offset + size - at)), value)
    return value
