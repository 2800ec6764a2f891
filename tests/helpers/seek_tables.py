"""Seek tables that no writer makes: with entries of any kind, under a right sum."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import numpy as np

from shardflow import native
from shardflow.formats import seek_table


def table_of(jpeg: bytes) -> bytes:
    """Return the segment of a JPEG that can have one."""
    segment = native.seek_table(jpeg)
    assert segment is not None
    return segment


def with_sum(body: bytes) -> bytes:
    """Return a segment of these bytes, under a right sum."""
    return struct.pack(">HH", 0xFFE9, len(body) + 6) + body + struct.pack(">I", zlib.adler32(body))


def segment_of(table: seek_table.SeekTable) -> bytes:
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
    table = seek_table.read(segment)
    predictions = table.predictions.copy()
    predictions[entries] += by
    return segment_of(replace(table, predictions=predictions))


def deceiving(jpeg: bytes) -> bytes:
    """Return a JPEG with a table that gives most crops other pixels."""
    return seek_table.insert(jpeg, shifted(table_of(jpeg), slice(1, None), 60))
