"""Seek tables: a segment of a JPEG that says where stretches of its MCUs begin in the entropy-coded data.

With it a crop is decoded without the rest of the image; readers that do not know the segment pass over it. The native
kernel makes and uses tables; here is what needs no decoding: to find, to insert and to read one. docs/format.md
specifies the bytes.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardflow.errors import FormatError

from .jpeg_header import header_segments

VERSION = 1
"""Of the segment, and of the choice of stretches: raised when either changes, for then packed bytes change."""

_APP9 = 0xE9
_NAME = b"sf-seek\0"
_HEADER = struct.Struct(">2x H 8s B HHHH I B")
"""Marker, length, name, version, MCUs per row, rows, stretch, stretches per row, bytes of the scan, components."""
_SUM_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SeekTable:
    """Where stretches of MCUs begin.

    Attributes:
        columns, rows: Size of the image in MCUs.
        stretch: MCUs from one place to the next in a row, whose last stretch goes on to its end.
        per_row: Stretches of a row.
        scan_bytes: Size of the entropy-coded data.
        bits: int64 [N], where each begins, in bits of the entropy-coded data as it lies in the file.
        predictions: int16 [N, components], the DC predictors there.
    """

    columns: int
    rows: int
    stretch: int
    per_row: int
    scan_bytes: int
    bits: npt.NDArray[np.int64]
    predictions: npt.NDArray[np.int16]


def find(jpeg: bytes | memoryview) -> bytes | None:
    """Return the segment of the seek table that a JPEG is decoded with, None if it has none.

    It is the first one of this version. Where there are other bytes than segments in front of the scan, none counts.
    """
    name = _NAME + bytes([VERSION])
    found = (bytes(jpeg[start:end]) for _, start, end in header_segments(jpeg) if _is_table(jpeg[start:end]))
    return next((segment for segment in found if segment[4:].startswith(name)), None)


def read(segment: bytes) -> SeekTable:
    """Return the seek table of a segment; FormatError if it is none of this version, or its sum is wrong.

    Whether it is that of a scan only decoding the scan tells.
    """
    if not _is_table(segment) or len(segment) < _HEADER.size + _SUM_BYTES or segment[12] != VERSION:
        raise FormatError(f"not a seek table of version {VERSION}")
    found, expected = int.from_bytes(segment[-_SUM_BYTES:], "big"), zlib.adler32(segment[4:-_SUM_BYTES])
    if found != expected:
        raise FormatError(f"its Adler-32 is {found:08x}, that of its bytes {expected:08x}")
    _, _, _, columns, rows, stretch, per_row, scan_bytes, components = _HEADER.unpack_from(segment)
    widths = segment[_HEADER.size : _HEADER.size + 1 + components]
    entries = np.frombuffer(segment[_HEADER.size + 1 + components : -_SUM_BYTES], np.uint8)
    count = rows * per_row
    bits = np.unpackbits(entries)[: (count - 1) * sum(widths)].astype(np.int64)
    # Each step is at least one bit: without that a header could promise billions of entries of none.
    has_steps = count == 1 or (count > 1 and widths[:1] > b"\0")
    if not has_steps or len(widths) != 1 + components or len(bits) != (count - 1) * sum(widths):
        raise FormatError("its entries are not as many as its header says")
    fields = np.split(bits.reshape(count - 1, -1), np.cumsum([*widths])[:-1], axis=1)
    steps = np.stack([field @ (1 << np.arange(field.shape[1])[::-1]) for field in fields], axis=1)
    signs = np.array([0, *(1 << width >> 1 for width in widths[1:])])
    places = np.concatenate([np.zeros((1, 1 + components), np.int64), np.cumsum((steps ^ signs) - signs, axis=0)])
    return SeekTable(
        columns=columns,
        rows=rows,
        stretch=stretch,
        per_row=per_row,
        scan_bytes=scan_bytes,
        bits=places[:, 0],
        predictions=places[:, 1:].astype(np.int16),
    )


def insert(jpeg: bytes, segment: bytes) -> bytes:
    """Return a JPEG with this seek table, in front of its scan, in place of those that it has; with b"" without any.

    One in which no table would count (`find`), because of other bytes between its segments, is returned as it is.
    """
    found = header_segments(jpeg)
    if not found:
        return jpeg
    kept = b"".join(jpeg[start:end] for _, start, end in found[:-1] if not _is_table(jpeg[start:end]))
    return jpeg[:2] + kept + segment + jpeg[found[-1].begin :]


def _is_table(segment: bytes | memoryview) -> bool:
    return segment[1] == _APP9 and bytes(segment[4:12]) == _NAME
