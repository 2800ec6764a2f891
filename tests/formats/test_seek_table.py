from __future__ import annotations

import contextlib
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.errors import FormatError
from shardflow.formats import seek_table
from tests.helpers.examples import examples
from tests.helpers.seek_tables import read

# Two rows of three MCUs, stretches of one and two, a scan of 100 bytes, two components; widths of 8, 4 and 3 bits.
BODY = b"sf-seek\0\1" + bytes([0, 3, 0, 2, 0, 1, 0, 2, 0, 0, 0, 100, 2, 8, 4, 3])
ENTRIES = "000100000111111", "111111111000000", "000000010000011"


def segment(entries: str = "".join(ENTRIES), body: bytes = BODY) -> bytes:
    """Return a segment with these entries, in binary digits."""
    padded = entries.ljust(-(-len(entries) // 8) * 8, "0")
    content = body + int("1" + padded, 2).to_bytes(1 + len(padded) // 8, "big")[1:]
    return b"\xff\xe9" + (len(content) + 6).to_bytes(2, "big") + content + zlib.adler32(content).to_bytes(4, "big")


SEGMENT = segment()
HEADER = b"\xff\xd8" + b"\xff\xe0\0\4ab" + b"\xff\xe9\0\4cd"
SCAN = b"\xff\xda\0\6xxxx" + bytes(100) + b"\xff\xd9"


def test_read() -> None:
    """Entries are steps and signed differences, their bits one behind the other; the first stretch has none."""
    table = read(SEGMENT)
    assert (table.columns, table.rows, table.stretch, table.per_row, table.scan_bytes) == (3, 2, 1, 2, 100)
    assert table.bits.tolist() == [0, 16, 271, 272]
    assert table.predictions.tolist() == [[0, 0], [7, -1], [-1, -1], [-1, 2]]
    assert (table.bits.dtype, table.predictions.dtype) == (np.int64, np.int16)


@examples(300)
@given(body=st.binary(max_size=40), entries=st.text("01", max_size=80))
def test_reading_anything(body: bytes, entries: str) -> None:
    """What is no table is a FormatError, under a right sum as well."""
    for content in (body, BODY[:9] + body, BODY[:9] + bytes(7) + body):
        with contextlib.suppress(FormatError):
            read(segment(entries, content))


@pytest.mark.parametrize("components", [0, 2])
def test_entries_without_bits_are_refused(components: int) -> None:
    """A header of a few bytes does not make a reader allocate space for billions of entries that have no bits."""
    size = b"\xff\xff" * 4  # MCUs and stretches
    with pytest.raises(FormatError, match="not as many as its header says"):
        read(segment("", BODY[:9] + size + bytes(4) + bytes([components]) + bytes(1 + components)))


def test_every_flipped_bit_is_found() -> None:
    """A table with one wrong bit behind its length is none."""
    for bit in range(32, 8 * len(SEGMENT)):
        damaged = bytearray(SEGMENT)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            read(bytes(damaged))


def test_insert() -> None:
    """A table stands in front of the scan, in place of an older one, and without it the JPEG is as it was."""
    jpeg = HEADER + SCAN
    with_table = seek_table.insert(jpeg, SEGMENT)
    assert with_table == HEADER + SEGMENT + SCAN
    assert seek_table.find(with_table) == SEGMENT
    assert seek_table.find(jpeg) is None
    assert seek_table.insert(HEADER + segment("1" * 45) + SCAN, SEGMENT) == with_table
    filled = b"\xff\xd8\xff" + jpeg[2:]
    assert seek_table.insert(filled, SEGMENT) == filled


@examples(200)
@given(data=st.binary(max_size=60), cut=st.integers(0, 200))
def test_finding_in_anything(data: bytes, cut: int) -> None:
    """Bytes that are no JPEG, and cut ones, have no table or a whole one."""
    assert seek_table.find(b"\xff\xd8\xff\xe9" + data) is None
    assert seek_table.find((HEADER + SEGMENT + SCAN)[:cut]) in (None, SEGMENT)
