"""Seek tables: read as docs/format.md specifies them, and made with entries of any kind, under a right sum."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from shardflow import native
from shardflow.errors import FormatError
from shardflow.formats import seek_table

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


def read(segment: bytes) -> SeekTable:
    """Return the seek table of a segment; FormatError if it is none of this version, or its sum is wrong.

    Whether it is that of a scan only decoding the scan tells.
    """
    is_table = segment[1] == 0xE9 and segment[4:12] == b"sf-seek\0"
    if not is_table or len(segment) < _HEADER.size + _SUM_BYTES or segment[12] != seek_table.VERSION:
        raise FormatError(f"not a seek table of version {seek_table.VERSION}")
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


def table_of(jpeg: bytes) -> bytes:
    """Return the segment of a JPEG that can have one."""
    segment = native.seek_table(jpeg)
    assert segment is not None
    return segment


def with_sum(body: bytes) -> bytes:
    """Return a segment of these bytes, under a right sum."""
    return struct.pack(">HH", 0xFFE9, len(body) + 6) + body + struct.pack(">I", zlib.adler32(body))


def segment_of(table: SeekTable) -> bytes:
    """Return the segment with the entries of a table."""
    places = np.column_stack([table.bits, table.predictions.astype(np.int64)])
    entries = np.diff(places, axis=0)
    widths = [int(entries[:, 0].max()).bit_length(), *[16] * (places.shape[1] - 1)]
    header = (table.columns, table.rows, table.stretch, table.per_row, table.scan_bytes, len(widths) - 1, *widths)
    digits = "".join(
        format(value & ((1 << width) - 1), f"0{width}b")
        for entry in entries.tolist()
        for value, width in zip(entry, widths, strict=True)
    )
    padded = digits.ljust(-(-len(digits) // 8) * 8, "0")
    packed = bytes(int(padded[at : at + 8], 2) for at in range(0, len(padded), 8))
    return with_sum(b"sf-seek\0\1" + struct.pack(f">HHHHIB{len(widths)}B", *header) + packed)


def shifted(segment: bytes, entries: slice, by: int) -> bytes:
    """Return a segment with other predictors in some entries: with all of them, one that deceives."""
    table = read(segment)
    predictions = table.predictions.copy()
    predictions[entries] += by
    return segment_of(replace(table, predictions=predictions))


def deceiving(jpeg: bytes) -> bytes:
    """Return a JPEG with a table that gives most crops other pixels."""
    return seek_table.insert(jpeg, shifted(table_of(jpeg), slice(1, None), 60))
