"""Seek tables: a segment of a JPEG that says where stretches of its MCUs begin in the entropy-coded data.

With it a crop is decoded without the rest of the image; readers that do not know the segment pass over it. The native
kernel makes and uses tables; this part needs no decoding: to find and to insert one. docs/format.md specifies the
bytes.
"""

from __future__ import annotations

from .jpeg_header import header_segments

VERSION = 1
"""Of the segment, and of the choice of stretches: raised when either changes, for then packed bytes change."""

_APP9 = 0xE9
_NAME = b"sf-seek\0"


def find(jpeg: bytes | memoryview) -> bytes | None:
    """Return the segment of the seek table that a JPEG is decoded with, None if it has none.

    It is the first one of this version. Where there are other bytes than segments in front of the scan, none counts.
    """
    name = _NAME + bytes([VERSION])
    found = (bytes(jpeg[start:end]) for _, start, end in header_segments(jpeg) if _is_table(jpeg[start:end]))
    return next((segment for segment in found if segment[4:].startswith(name)), None)


def insert(jpeg: bytes, segment: bytes) -> bytes:
    """Return a JPEG with this seek table, in front of its scan, in place of those that it has; with b"" without any.

    A JPEG in which no table would count (`find`), because of other bytes between its segments, is returned unchanged.
    """
    found = header_segments(jpeg)
    if not found:
        return jpeg
    kept = b"".join(jpeg[start:end] for _, start, end in found[:-1] if not _is_table(jpeg[start:end]))
    return jpeg[:2] + kept + segment + jpeg[found[-1].begin :]


def _is_table(segment: bytes | memoryview) -> bool:
    return segment[1] == _APP9 and bytes(segment[4:12]) == _NAME
