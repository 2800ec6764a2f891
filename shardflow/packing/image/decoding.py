"""Decoding: an image file as plain pixels, already at the target size where the native kernel can do both at once.

JPEGs are decoded at 1/2, 1/4 or 1/8 by libjpeg's DCT scaling, as long as twice the target is left for the filter.

Grey and RGB JPEGs that change their size are decoded and resized by the native kernel wherever it was built: half of
Pillow's time on small originals. Decoder and filter are the same, rounding is not: few values differ, by one level,
seldom by two (docs/packing.md, "How exact"). So a recipe's digest names the kernel in use, and a pack that is resumed
with another starts anew rather than mixing the two. A file that the kernel refuses is left to Pillow.
"""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageFile

from shardflow import native
from shardflow._colour import to_8_bits
from shardflow._pillow import open_image
from shardflow.errors import TooLargeError
from shardflow.formats.image_types import IMAGE_TYPES, is_jpeg

from .geometry import Size

Filter = native.Interpolation
FILTERS: dict[Filter, Image.Resampling] = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "lanczos": Image.Resampling.LANCZOS,
}
"""The filters that kernel and Pillow have in common, all antialiased."""

# JPEG is not among them: phones store a gain map or a second view behind the image.
_ANIMATED = frozenset(each.name for each in IMAGE_TYPES if each.animated)


def decode_resized(
    image: ImageFile.ImageFile, data: bytes, size: Size, resampling: Filter, *, as_cmyk: bool, max_pixels: int
) -> Image.Image:
    """Return the pixels of an opened image, resized to `size`: "L", "RGB", or "CMYK" with `as_cmyk`."""
    if size != image.size and is_jpeg(data) and native.available():
        pixels = np.empty((size[1], size[0], 3), np.uint8)
        problem = native.decode_resized(data, pixels, interpolation=resampling, max_pixels=max_pixels)
        if problem is None:
            return Image.fromarray(pixels)
        if problem.status is native.Status.TOO_LARGE:
            raise TooLargeError(problem.message)
    drafted = image.draft(None, (2 * size[0], 2 * size[1]))
    image.load()
    unsized = image if as_cmyk else to_8_bits(image)
    if unsized.size == size:
        return unsized
    # DCT scaling rounds up a size that 8 does not divide; the box leaves out the added pixels.
    return unsized.resize(size, FILTERS[resampling], box=drafted[1] if drafted else None)


def has_more_frames(image: Image.Image, data: bytes, max_pixels: int) -> bool:
    """Whether an opened image is the first of several in its file."""
    if image.format not in _ANIMATED:
        return False
    try:
        # `is_animated` moves a GIF to its second frame, so another copy is asked: this one is still to be decoded.
        probe = open_image(data, max_pixels=max_pixels, formats=("GIF",)) if image.format == "GIF" else image
        return bool(getattr(probe, "is_animated", False))
    except Exception:  # a damaged second frame behind an intact one
        return False
