"""Decoding: an image file as plain pixels, already at the size wanted where the native kernel can do both at once.

JPEGs are decoded at 1/2, 1/4 or 1/8 by libjpeg's DCT scaling, as long as twice the target is left for the filter.

Grey and RGB JPEGs that change their size are decoded and resized by the native kernel wherever it was built: half of
Pillow's time on small originals. The decoder and the filter are the same, rounding is not: of 1,000 values 3 differ
(150 where Pillow begins with the other axis, in pictures more than twice as tall as wide), by one level, seldom by
two; both are equally near to a resize in floating point (docs/packers.md). So a recipe's digest names the kernel that
is in use: a pack that was begun with it and goes on without it, or the other way round, starts anew rather than mixing
the two. Whatever the kernel finds fault with, Pillow decides on, as without a kernel.
"""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageFile

from shardflow import native
from shardflow.formats.image_types import IMAGE_TYPES, is_jpeg

from .colour import plain
from .geometry import Size
from .safe_open import safe_open

Filter = native.Interpolation
FILTERS: dict[Filter, Image.Resampling] = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "lanczos": Image.Resampling.LANCZOS,
}
"""The filters that kernel and Pillow have in common, all antialiased."""

_ORIENTATION_TAG = 0x0112
# Not JPEG: phones put a gain map or a second view behind the picture.
_ANIMATED = frozenset(each.name for each in IMAGE_TYPES if each.animated)


def decode_at(image: ImageFile.ImageFile, data: bytes, size: Size, by: Filter, *, as_cmyk: bool) -> Image.Image:
    """Return an opened image's pixels, resized to `size`: "L", "RGB", or "CMYK" if that is wanted as it is.

    Raises:
        DecodeError: Its pixels have no defined range. Besides, whatever the codec raises.
    """
    if size != image.size and is_jpeg(data) and native.available():
        pixels = np.empty((size[1], size[0], 3), np.uint8)
        if native.decode_resized(data, pixels, interpolation=by) is None:
            return Image.fromarray(pixels)
    drafted = image.draft(None, (2 * size[0], 2 * size[1]))
    image.load()
    unsized = image if as_cmyk else plain(image)
    if unsized.size == size:
        return unsized
    # A size that 8 does not divide is rounded up by the DCT scaling; the box leaves out what was added.
    return unsized.resize(size, FILTERS[by], box=drafted[1] if drafted else None)


def orientation_of(image: Image.Image) -> int:
    """Return the EXIF orientation of a loaded image, 1 … 8; a PNG may have it after the pixels."""
    try:
        found = image.getexif().get(_ORIENTATION_TAG, 1)
        return int(found) if found in range(1, 9) else 1
    except Exception:  # broken metadata around a sound image
        return 1


def has_more_frames(image: Image.Image, data: bytes) -> bool:
    """Whether an opened image is the first of several in its file."""
    if image.format not in _ANIMATED:
        return False
    try:
        # Asked, a GIF goes on to its second frame: one that was opened for nothing else, as this one is to be decoded.
        asked = safe_open(data, ("GIF",)) if image.format == "GIF" else image
        return bool(getattr(asked, "is_animated", False))
    except Exception:  # a damaged second frame behind a sound one
        return False
