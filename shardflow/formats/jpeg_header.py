"""The headers of plain JPEGs, which need no Pillow to be packed.

A plain JPEG says in its headers how it is coded, and perhaps has a colour profile and a comment: as most tools write
them. All that could turn an image or end in an error is not plain: Exif and XMP, several pictures, damage. Pillow opens
those.

Sources: ITU-T T.81, B.2; ICC.1:2022, B.4 (a profile in a JPEG).
"""

from __future__ import annotations

from dataclasses import dataclass

_SOI, _SOS, _APP0, _APP2, _APP14 = 0xD8, 0xDA, 0xE0, 0xE2, 0xEE
_FRAMES = frozenset((0xC0, 0xC1, 0xC2))
_TABLES_AND_COMMENTS = frozenset((0xC4, 0xDB, 0xDD, 0xFE))
_MODES = {1: "L", 3: "RGB"}
_PROFILE = b"ICC_PROFILE\0\1\1"  # the first of one part
_LEAST_BYTES = {_APP0: 16, _APP14: 14}  # of JFIF and of Adobe's segment


@dataclass(frozen=True, slots=True, kw_only=True)
class JpegHeader:
    """The headers of a plain JPEG: its size, Pillow's name of its mode ("L" or "RGB"), and its colour profile."""

    size: tuple[int, int]
    mode: str
    profile: bytes | None


def plain_header(data: bytes) -> JpegHeader | None:
    """Return the headers of a plain JPEG; None for any other image."""
    if data[:2] != bytes((0xFF, _SOI)):
        return None
    size, mode, profile = (0, 0), "", None
    position = 2
    while position + 4 <= len(data) and data[position] == 0xFF:
        marker, length = data[position + 1], int.from_bytes(data[position + 2 : position + 4], "big")
        end = position + 2 + length
        if length < 2 or end > len(data):
            return None
        if marker in _TABLES_AND_COMMENTS:
            pass
        elif marker in _LEAST_BYTES:
            if length < _LEAST_BYTES[marker]:
                return None
        elif marker in _FRAMES and not mode and length > 7:
            height, width = (int.from_bytes(data[at : at + 2], "big") for at in (position + 5, position + 7))
            size, mode = (width, height), _MODES.get(data[position + 9], "")
        elif marker == _APP2 and profile is None and not mode and data.startswith(_PROFILE, position + 4):
            profile = data[position + 4 + len(_PROFILE) : end]
        elif marker == _SOS and mode and min(size) > 0:
            return JpegHeader(size=size, mode=mode, profile=profile)
        else:
            return None
        position = end
    return None
