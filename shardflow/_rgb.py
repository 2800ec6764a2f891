"""RGB pixels: an image file as packing would store it, for images that are read without packing.

Most JPEG decoders ignore metadata: they neither turn an image upright nor convert its colours. `is_plain_jpeg` says
which files they may decode; Pillow decodes the others.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
from PIL import Image

from ._colour import conversion_to_8_bits, profile_conversion, unchanged
from ._orientation import load_stored, opened_size, orientation_of, stored_view
from ._pillow import bands, map_codec_errors, open_image
from .errors import DecodeError, SampleError, TooLargeError
from .formats.image_limits import MAX_PIXELS
from .formats.image_types import image_size, image_type
from .formats.jpeg_header import plain_header

_PNG_METADATA = re.compile(rb"eXIf|XML:com\.adobe\.xmp|Raw profile type")


def rgb_pixels(image: Image.Image) -> npt.NDArray[np.uint8]:
    """Return the pixels of an opened image, upright and in sRGB, alpha on white: uint8 [H, W, 3].

    Packing without a resize encodes the same pixels. Call this within `map_codec_errors`.

    Raises:
        DecodeError: The pixel values have no defined range.
    """
    colours = profile_conversion(image.info.get("icc_profile"), image.mode)
    orientation = load_stored(image)
    convert = unchanged if colours.mode == "CMYK" else conversion_to_8_bits(image)[1]
    height, width = (image.width, image.height) if orientation >= 5 else (image.height, image.width)
    pixels = np.empty((height, width, 3), np.uint8)
    stored = stored_view(pixels, orientation)
    for top, band in bands(image):
        stored[top : top + band.height] = np.asarray(colours.apply(convert(band)))
    return pixels


def is_plain_jpeg(payload: memoryview | bytes, max_pixels: int = MAX_PIXELS) -> bool:
    """Return whether a JPEG is grey or RGB, in sRGB and upright, so that its metadata change nothing.

    A damaged JPEG counts as plain: every decoder refuses it.
    """
    data = bytes(payload)
    if (header := plain_header(data)) is not None:
        return profile_conversion(header.profile, header.mode).transform is None
    try:
        with map_codec_errors(DecodeError), open_image(data, max_pixels=max_pixels) as image:
            is_converted = profile_conversion(image.info.get("icc_profile"), image.mode).transform is not None
            return image.mode in ("L", "RGB") and not is_converted and orientation_of(image) == 1
    except SampleError as error:
        return not isinstance(error, TooLargeError)


def upright_size(payload: memoryview | bytes) -> tuple[int, int]:
    """Return the width and height of the upright image; (0, 0) if the header cannot be read."""
    size = image_size(payload)
    if size[0] and not may_be_turned(payload):
        return size
    try:
        with map_codec_errors(DecodeError), open_image(payload) as image:
            return opened_size(image)
    except SampleError:
        return size


def may_be_turned(payload: memoryview | bytes) -> bool:
    """Return whether an image may have orientation metadata; False is certain."""
    kind = image_type(payload)
    if kind is None or kind.name == "NPY":
        return False
    if kind.name == "PNG":
        return _PNG_METADATA.search(payload) is not None
    return kind.name != "JPEG" or plain_header(bytes(payload)) is None
