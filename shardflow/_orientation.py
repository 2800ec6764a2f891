"""Orientation: images whose EXIF or XMP metadata says that they are stored rotated or mirrored.

An orientation in EXIF takes precedence over XMP, as in Pillow. Sources: TIFF 6.0, section 8 (the numbers 1 … 8);
XMP specification, part 2 (`tiff:Orientation`).
"""

from __future__ import annotations

import contextlib
import re
from typing import TypeVar

import numpy as np
import numpy.typing as npt
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


_STEPS = {1: (1, 1), 2: (1, -1), 3: (-1, -1), 4: (-1, 1), 5: (1, 1), 6: (1, -1), 7: (-1, -1), 8: (-1, 1)}
"""Orientation → steps along rows and columns; for 5 … 8, rows and columns are swapped first."""

_Array = TypeVar(
    "_Array", npt.NDArray[np.uint8], npt.NDArray[np.uint16], npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
)


def orientation_of(image: Image.Image) -> int:
    """Return the orientation of a loaded image, 1 … 8; 1 is upright. A PNG may have its metadata after its pixels.

    Pillow turns a TIFF upright while loading it, see `load_tiff`.
    """
    with contextlib.suppress(Exception):  # broken metadata around an intact image
        if (found := _exif_orientation(image)) is not None:
            return found
    with contextlib.suppress(Exception):
        if (match := _XMP_ORIENTATION.search(_xmp(image))) is not None:
            return int(match[1])
    return 1


def load_tiff(image: Image.Image) -> bool:
    """Load a TIFF, and return whether Pillow turned it upright, which it does for no other format."""
    orientation = None
    with contextlib.suppress(Exception):  # broken metadata around an intact image
        orientation = _exif_orientation(image)
    image.load()
    return orientation is not None and orientation != 1


def load_stored(image: Image.Image) -> int:
    """Load an opened image, and return the orientation still to be applied, 1 … 8."""
    if image.format == "TIFF" and load_tiff(image):
        return 1
    image.load()
    return orientation_of(image)


def opened_size(image: Image.Image) -> tuple[int, int]:
    """Return the width and height of an opened image once upright. A PNG may be loaded for this."""
    width, height = image.size
    if getattr(image, "tag_v2", {}).get(_EXIF_TAG) in range(5, 9):
        return width, height  # for a TIFF with this tag, Pillow states the upright size before loading
    return (height, width) if orientation_of(image) >= 5 else (width, height)


def apply_orientation(image: Image.Image, orientation: int) -> Image.Image:
    """Return a stored image upright."""
    transpose = _TRANSPOSES.get(orientation)
    return image if transpose is None else image.transpose(transpose)


def upright(image: Image.Image) -> Image.Image:
    """Return an opened image upright, loaded."""
    return apply_orientation(image, load_stored(image))


def turn_array(pixels: _Array, orientation: int) -> _Array:
    """Return a stored array [H, W, C] upright, as a view of it."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    rows, columns = _STEPS[orientation]
    return pixels[::rows, ::columns]


def stored_view(pixels: npt.NDArray[np.uint8], orientation: int) -> npt.NDArray[np.uint8]:
    """Return an upright array [H, W, C] in the stored orientation, as a view of it."""
    return turn_array(pixels, {6: 8, 8: 6}.get(orientation, orientation))


def _exif_orientation(image: Image.Image) -> int | None:
    found = image.getexif().get(_EXIF_TAG, 0)
    return int(found) if found in range(1, 9) else None


def _xmp(image: Image.Image) -> bytes:
    """Return the XMP packet of an image, wherever its format and this version of Pillow store it; b"" if none."""
    for name in ("xmp", "XML:com.adobe.xmp"):
        if packet := image.info.get(name):
            return packet.encode() if isinstance(packet, str) else bytes(packet)
    if raw := image.info.get("Raw profile type xmp"):  # PNGs by ImageMagick: name, length and hexadecimal digits
        return bytes.fromhex("".join(raw.split("\n")[3:]))
    for _, segment in getattr(image, "applist", ()):  # of JPEGs
        if segment.startswith(_XMP_SEGMENT):
            return bytes(segment.removeprefix(_XMP_SEGMENT))
    return bytes(getattr(image, "tag_v2", {}).get(_XMP_TAG, b""))
