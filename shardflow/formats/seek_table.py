"""Seek tables: a JPEG segment that locates the starts of stretches of MCUs in the entropy-coded data.

With a seek table, a crop is decoded without the rest of the image. Other readers skip the segment. The native kernel
makes and uses seek tables; this module finds and inserts them, which takes no decoding. docs/format.md specifies the
bytes.
"""

from __future__ import annotations

from .jpeg_header import APP9, SEEK_TABLE, header_segments

VERSION = 1
"""The version of the segment and of the choice of stretches. A change of either changes packed bytes, and raises it."""


def find(jpeg: bytes | memoryview) -> bytes | None:
    """Return the segment of the seek table that the decoder uses: the first of this version; None if there is none.

    A JPEG with bytes before its scan that do not belong to a segment does not have a usable table.
    """
    name = SEEK_TABLE + bytes([VERSION])
    found = (bytes(jpeg[start:end]) for _, start, end in header_segments(jpeg) if _is_table(jpeg[start:end]))
    return next((segment for segment in found if segment[4:].startswith(name)), None)


def insert(jpeg: bytes, segment: bytes) -> bytes:
    """Return a JPEG with this seek table before its scan, instead of its earlier tables; b"" only removes them.

    A JPEG that has other bytes between its segments is returned unchanged: `find` would not find a table in it.
    """
    found = header_segments(jpeg)
    if not found:
        return jpeg
    kept = b"".join(jpeg[start:end] for _, start, end in found[:-1] if not _is_table(jpeg[start:end]))
    return jpeg[:2] + kept + segment + jpeg[found[-1].begin :]


def _is_table(segment: bytes | memoryview) -> bool:
    return segment[1] == APP9 and bytes(segment[4:12]) == SEEK_TABLE
