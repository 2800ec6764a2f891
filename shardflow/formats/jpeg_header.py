"""The headers of JPEGs: their segments, the frame that says how large an image is, and which JPEGs are plain.

A plain JPEG says in its headers how it is coded, and perhaps has a colour profile, a comment and a seek table: as most
tools write them, and packing. All that could turn an image or end in an error is not plain: Exif and XMP, several
pictures, damage. Pillow opens those.

Sources: ITU-T T.81, B.2; ICC.1:2022, B.4 (a profile in a JPEG).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

BASELINE, SOS = 0xC0, 0xDA
APP9, SEEK_TABLE = 0xE9, b"sf-seek\0"  # the segment of a seek table, and how its content begins
_SOI, _EOI, _APP0, _APP2, _APP14 = 0xD8, 0xD9, 0xE0, 0xE2, 0xEE
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # DHT, JPG and DAC lie among the SOFn codes
_PROGRESSIVE = frozenset((0xC2, 0xC6, 0xCA, 0xCE))
_PLAIN_FRAMES = frozenset((BASELINE, 0xC1, 0xC2))
_TABLES_AND_COMMENTS = frozenset((0xC4, 0xDB, 0xDD, 0xFE))
_MODES = {1: "L", 3: "RGB"}
_PROFILE = b"ICC_PROFILE\0\1\1"  # the first of one part
_LEAST_BYTES = {_APP0: 16, _APP14: 14}  # of JFIF and of Adobe's segment

_MARKER = re.compile(rb"\xff([\x02-\xcf\xd8-\xfe])")
"""A marker that a segment follows, or SOI or EOI; the others, TEM and RSTn, stand alone."""


class Segment(NamedTuple):
    """A segment of a JPEG: its marker, and where it begins, with the marker, and ends, perhaps beyond the file."""

    marker: int
    begin: int
    end: int


class Frame(NamedTuple):
    """The frame header of a JPEG: its marker, its width and height, and the number of components."""

    marker: int
    width: int
    height: int
    components: int

    @property
    def is_progressive(self) -> bool:
        """Whether each scan refines the whole image."""
        return self.marker in _PROGRESSIVE

    @property
    def pixels(self) -> int:
        """Number of pixels."""
        return self.width * self.height


def segments(jpeg: memoryview | bytes) -> Iterator[Segment]:
    """Yield the segments of a JPEG, of all scans; other bytes are passed over, as by libjpeg."""
    position = 2
    while found := _MARKER.search(jpeg, position):
        marker, begin = found[1][0], found.start()
        if marker in (_SOI, _EOI):
            return
        position = begin + 2 + max(2, int.from_bytes(jpeg[begin + 2 : begin + 4], "big"))
        yield Segment(marker, begin, position)


def header_segments(jpeg: memoryview | bytes) -> list[Segment]:
    """Return the segments in front of the first scan of a JPEG, and the header of the scan.

    Empty if the image is not a JPEG, or has other bytes before its scan. The native kernel walks alike
    (`sf_jpeg_read` in jpeg.c): a seek table that one of the two passes over would be used without having been checked.
    """
    found: list[Segment] = []
    at = 2
    for segment in segments(jpeg) if bytes(jpeg[:at]) == bytes((0xFF, _SOI)) else ():
        if segment.begin != at or segment.end > len(jpeg) or bytes(jpeg[at + 2 : at + 4]) < b"\0\2":
            break
        found.append(segment)
        if segment.marker == SOS:
            return found
        at = segment.end
    return []


def frame_in(jpeg: memoryview | bytes, segment: Segment) -> Frame | None:
    """Return the frame header in a segment; None if it is another segment, or cut short."""
    at = segment.begin
    if segment.marker not in _FRAMES or min(segment.end, len(jpeg)) < at + 9:
        return None
    height, width = (int.from_bytes(jpeg[side : side + 2], "big") for side in (at + 5, at + 7))
    return Frame(segment.marker, width, height, int.from_bytes(jpeg[at + 9 : at + 10], "big"))


def frame_of(jpeg: memoryview | bytes) -> Frame | None:
    """Return the frame header of a JPEG; None if there is none before the first scan."""
    headers = itertools.takewhile(lambda segment: segment.marker != SOS, segments(jpeg))
    return next(filter(None, (frame_in(jpeg, segment) for segment in headers)), None)


class JpegHeader(NamedTuple):
    """The headers of a plain JPEG: its size, Pillow's name of its mode ("L" or "RGB"), and its colour profile."""

    size: tuple[int, int]
    mode: str
    profile: bytes | None


def plain_header(data: bytes) -> JpegHeader | None:
    """Return the headers of a plain JPEG; None for any other image."""
    size, mode, profile = (0, 0), "", None
    for segment in header_segments(data):
        marker, begin, end = segment
        if marker in _TABLES_AND_COMMENTS or (marker == APP9 and data.startswith(SEEK_TABLE, begin + 4)):
            pass
        elif marker in _LEAST_BYTES:
            if end - begin - 2 < _LEAST_BYTES[marker]:
                return None
        elif marker in _PLAIN_FRAMES and not mode and (frame := frame_in(data, segment)) is not None:
            size, mode = (frame.width, frame.height), _MODES.get(frame.components, "")
        elif marker == _APP2 and profile is None and not mode and data.startswith(_PROFILE, begin + 4):
            profile = data[begin + 4 + len(_PROFILE) : end]
        elif marker == SOS and mode and min(size) > 0:
            return JpegHeader(size, mode, profile)
        else:
            return None
    return None
