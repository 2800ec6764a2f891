"""Masks: image files of labels per pixel, opened by Pillow in the same way for packing, loading and previews."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile

from ._orientation import orientation_of
from ._pillow import BITS_TAG, PHOTOMETRIC_TAG, SAMPLE_FORMAT_TAG, UNSIGNED, WHITE_IS_ZERO, open_image
from .errors import DecodeError
from .formats.image_limits import MAX_PIXELS
from .formats.image_types import IMAGE_TYPES

MASK_FORMATS = tuple(each.name for each in IMAGE_TYPES if each.for_masks)
MASK_MODES = ("1", "L", "P", "I;16", "RGB")


def open_mask(data: bytes | memoryview, size: tuple[int, int], *, max_pixels: int = MAX_PIXELS) -> ImageFile.ImageFile:
    """Open a mask and read its header, as `open_image` does. Its mode is "1", "L", "P", "I;16" or "RGB".

    `load_mask` returns its values. Call both within `map_codec_errors`.

    Raises:
        DecodeError: Its width and height are not `size`, or its values are not plain labels.
    """
    image = open_image(data, max_pixels=max_pixels, formats=MASK_FORMATS)
    try:
        if image.size != size:
            found, expected = ("{}x{}".format(*each) for each in (image.size, size))
            message = f"the mask has {found} pixels, the upright image {expected}"
            raise DecodeError(f"{message}; make the mask as large as the image")
        if image.mode not in MASK_MODES or _is_rescaled(image, data):
            kinds = "1, 8 or 16 bits of grey, a palette, or 8 bits of RGB"
            raise DecodeError(f"a mask in mode {image.mode} has no plain label values; save it with {kinds}")
    except BaseException:
        image.close()
        raise
    return image


def _is_rescaled(image: Image.Image, data: bytes | memoryview) -> bool:
    """Return whether Pillow changes the values of the file.

    It scales grey of 2 or 4 bits and colour of 16 (W3C PNG 11.2.2). In TIFFs (6.0) it inverts grey of up to 8 bits with
    0 as white, and reads signed integers as unsigned.
    """
    if image.format == "PNG":
        return bytes(data[24:26]) in (b"\x02\x00", b"\x04\x00", b"\x10\x02")
    tags = getattr(image, "tag_v2", None)
    if tags is None:
        return False
    is_inverted = tags.get(PHOTOMETRIC_TAG, WHITE_IS_ZERO) == WHITE_IS_ZERO and image.mode in ("1", "L")
    is_signed = tags.get(SAMPLE_FORMAT_TAG, (UNSIGNED,))[0] != UNSIGNED
    return is_inverted or is_signed or (image.mode == "L" and tags.get(BITS_TAG, (1,))[0] != 8)


def load_mask(image: ImageFile.ImageFile) -> npt.NDArray[Any]:
    """Return the values of a mask from `open_mask`: bool, uint8 or uint16, [H, W], or [H, W, 3] for RGB.

    The values of a palette are indices.

    Raises:
        DecodeError: Its metadata rotate or mirror it, or a value is beyond its palette: tools disagree on such files.
    """
    image.load()
    if orientation_of(image) != 1:
        raise DecodeError("the mask's metadata rotate or mirror it; save it upright, like the image")
    check_palette(image)
    return np.asarray(image)


def check_palette(image: Image.Image) -> None:
    """Raise DecodeError if a loaded image has a palette and a value beyond it."""
    if image.mode != "P":
        return
    colours, (_, most) = len(image.getpalette() or ()) // 3, cast("tuple[int, int]", image.getextrema())
    if most >= colours:
        raise DecodeError(
            f"the value {most} is beyond its palette of {colours} colours; save it with a larger palette, or as grey"
        )


def mask_values(
    data: bytes | memoryview, size: tuple[int, int], *, max_pixels: int = MAX_PIXELS
) -> npt.NDArray[np.uint8] | npt.NDArray[np.uint16]:
    """Return the values of a mask: [H, W], or [H, W, 3] for RGB; arguments and errors as for `open_mask`."""
    with open_mask(data, size, max_pixels=max_pixels) as image:
        values = load_mask(image)
        return values.astype(np.uint8) if values.dtype == np.bool_ else values
