"""Orientation: images whose EXIF or XMP metadata says that they are stored rotated or mirrored.

EXIF counts where it has an orientation, XMP otherwise, as in Pillow. Sources: TIFF 6.0, section 8 (the numbers 1 … 8);
XMP specification, part 2 (`tiff:Orientation`).
"""

from __future__ import annotations

import contextlib
import re

from PIL import Image

_EXIF_TAG = 0x0112
_XMP_TAG = 700
_XMP_SEGMENT = b"http://ns.adobe.com/xap/1.0/\0"
_XMP_ORIENTATION = re.compile(rb"tiff:Orientation\s*(?:=\s*[\"']|>)\s*([1-8])")

_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def orientation_of(image: Image.Image) -> int:
    """Return the orientation of an image, 1 … 8; 1 is upright. It must be loaded: a PNG may end in its metadata.

    A TIFF is turned as it is loaded, see `load_tiff`.
    """
    with contextlib.suppress(Exception):  # broken metadata around an intact image
        if (found := _exif_orientation(image)) is not None:
            return found
    with contextlib.suppress(Exception):
        if (match := _XMP_ORIENTATION.search(_xmp(image))) is not None:
            return int(match[1])
    return 1


def load_tiff(image: Image.Image) -> bool:
    """Load a TIFF, and return whether Pillow has turned it upright, which it does with no other format."""
    orientation = None
    with contextlib.suppress(Exception):  # broken metadata around an intact image
        orientation = _exif_orientation(image)
    image.load()
    return orientation is not None and orientation != 1


def apply_orientation(image: Image.Image, orientation: int) -> Image.Image:
    """Return a stored image upright."""
    transpose = _TRANSPOSES.get(orientation)
    return image if transpose is None else image.transpose(transpose)


def upright(image: Image.Image) -> Image.Image:
    """Return an opened image upright, loaded."""
    if image.format == "TIFF" and load_tiff(image):
        return image
    image.load()
    return apply_orientation(image, orientation_of(image))


def _exif_orientation(image: Image.Image) -> int | None:
    found = image.getexif().get(_EXIF_TAG, 0)
    return int(found) if found in range(1, 9) else None


def _xmp(image: Image.Image) -> bytes:
    """Return the XMP packet of an image, wherever its format and this version of Pillow have it; b"" for none."""
    for name in ("xmp", "XML:com.adobe.xmp"):
        if packet := image.info.get(name):
            return packet.encode() if isinstance(packet, str) else bytes(packet)
    if raw := image.info.get("Raw profile type xmp"):  # PNGs by ImageMagick: name, length and hexadecimal digits
        return bytes.fromhex("".join(raw.split("\n")[3:]))
    for _, segment in getattr(image, "applist", ()):  # of JPEGs
        if segment.startswith(_XMP_SEGMENT):
            return bytes(segment.removeprefix(_XMP_SEGMENT))
    return bytes(getattr(image, "tag_v2", {}).get(_XMP_TAG, b""))
