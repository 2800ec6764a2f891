"""The route of arrays: the exact values of an image file, 8 or 16 bits, 1 to 16 channels, resized in floating point.

Values are packed as stored: colour profiles are ignored, alpha and grey stay channels, and grey of 1, 2 or 4 bits has
the values 0 to 1, 3 or 15. Palettes become RGB, and palettes with alpha RGBA; a transparent colour becomes alpha. Files
that no reader decodes exactly are refused: TIFFs of signed numbers or with white as 0, BMPs of 16 bits. Each format has
an exact reader:

    Pillow       up to 8 bits of JPEG, PNG, TIFF, WebP, BMP and GIF; 16 bits of PNG and TIFF in one channel
    imagecodecs  PNG with 16 bits in several channels, which Pillow reduces to 8
    tifffile     TIFF with 16 bits in several channels, or more channels than Pillow knows

The extra "multichannel" installs the latter two. Sources: W3C PNG 11.2.2 (IHDR); TIFF 6.0.
"""

from __future__ import annotations

import io
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from shardflow._masks import check_palette
from shardflow._orientation import load_tiff, orientation_of, turn_array
from shardflow._pillow import (
    BITS_TAG,
    PHOTOMETRIC_TAG,
    SAMPLE_FORMAT_TAG,
    UNSIGNED,
    WHITE_IS_ZERO,
    map_codec_errors,
    open_image,
)
from shardflow.errors import DecodeError, TooLargeError
from shardflow.formats import image_array
from shardflow.formats.image_array import MOST_CHANNELS, Array
from shardflow.formats.image_limits import check_array, check_image
from shardflow.formats.image_types import PACKED_TYPES, image_type, type_named
from shardflow.formats.statistics import PixelSums
from shardflow.packing.recipe import FILTERS, Recipe

from .encoded_image import EncodedImage, Geometry, Size, describe, upright_size
from .pillow import has_more_frames

_EXACT_MODES = ("L", "LA", "RGB", "RGBA", "I;16", "I;16B")
_CONVERTED = {"1": "L", "P": "RGB"}
_WITH_ALPHA = {"L": "LA", "P": "RGBA", "RGB": "RGBA"}
_GREY_STEPS = {1: 255, 2: 85, 4: 17}
"""Bits of grey in a PNG → the factor by which Pillow scales the values."""
_EXACT_FORMATS = ("JPEG", "MPO", "PNG", "TIFF", "WEBP", "BMP", "GIF")
_GREY, _RGB, _PALETTE, _YCBCR = 1, 2, 3, 6  # TIFF 6.0: PhotometricInterpretation
_COMPRESSION_TAG, _ORIENTATION_TAG, _SAMPLES_TAG, _COLORMAP_TAG, _EXTRA_SAMPLES_TAG = 259, 274, 277, 320, 338
_JPEG = 7  # TIFF Technical Note 2: Compression
_ASSOCIATED_ALPHA = 1  # TIFF 6.0: colours are multiplied by alpha


def pack_array(data: bytes, recipe: Recipe) -> EncodedImage:
    """Pack the values of an image file; raise DecodeError, EncodeError or TooLargeError if they cannot be packed."""
    with map_codec_errors(DecodeError):
        found = _read_array(data, recipe.max_pixels)
    target, stored = PACKED_TYPES["npy"], (found.pixels.shape[1], found.pixels.shape[0])
    geometry = Geometry.of(stored, found.orientation, recipe, target)
    resized = _resize_array(found.pixels, upright_size(geometry.resized, found.orientation), FILTERS[recipe.filter])
    left, top, right, bottom = geometry.window
    image = image_array.to_bytes(turn_array(resized, found.orientation)[top:bottom, left:right])
    turned = found.turned or found.orientation != 1
    return describe(image, target, data, geometry, PixelSums(), first_frame=found.more_frames, turned=turned)


class _StoredArray(NamedTuple):
    """The values of an image file."""

    pixels: Array  # uint8 or uint16 [H, W, C], as stored
    orientation: int = 1  # how to turn them upright, 1 … 8, as in EXIF
    turned: bool = False  # whether the values are already upright
    more_frames: bool = False  # whether the file has more images, which are left out


def _read_array(data: bytes, max_pixels: int) -> _StoredArray:
    """Return the values of an image file.

    Raises:
        DecodeError: The file is damaged, or no reader decodes its exact values.
        TooLargeError: The image exceeds the limit.
    """
    kind = image_type(data)
    name = "" if kind is None else kind.name
    if name == "NPY":
        check_image(data, max_pixels)
        return _StoredArray(image_array.pixels(data))
    if name == "PNG" and data[24:25] == b"\x10" and data[25:26] != b"\0":
        return _read_png(data, max_pixels)
    if name == "TIFF":
        try:
            found = _read_pillow(data, max_pixels)
        except TooLargeError:
            raise
        except Exception:  # Pillow raises any exception for an unknown TIFF
            found = None
        return _read_tiff(data, max_pixels) if found is None else found
    found = _read_pillow(data, max_pixels)
    if found is None:
        raise DecodeError(
            f"the exact values of this {name or 'file'} are not known here; packed as arrays are 8 bits of JPEG, PNG, "
            "TIFF, WebP, BMP and GIF, without CMYK, and 16 bits of PNG and TIFF, unsigned, where 0 is black"
        )
    return found


def _read_pillow(data: bytes, max_pixels: int) -> _StoredArray | None:
    """Return the values that Pillow decodes; None if they are not exact."""
    with open_image(data, max_pixels=max_pixels) as image:
        bits = data[24] if image.format == "PNG" else 8
        is_scaled = bits in _GREY_STEPS and image.mode in ("1", "L")
        has_key = image.has_transparency_data and image.mode not in ("LA", "RGBA")
        mode = (_WITH_ALPHA if has_key else _CONVERTED).get(image.mode, image.mode)
        is_deep = mode.startswith("I;16")
        if image.format not in _EXACT_FORMATS or mode not in _EXACT_MODES or (has_key and (is_deep or is_scaled)):
            return None
        if image.format == "BMP" and _bmp_bits(data) == 16:  # five or six bits per colour
            return None
        if image.format == "TIFF" and not _is_exact(image):
            return None
        channels = Image.getmodebands(mode)
        check_array(image.height, image.width, channels, 2 if is_deep else 1, max_pixels)
        more_frames = has_more_frames(image, type_named(image.format or ""), data, max_pixels)
        turned = image.format == "TIFF" and load_tiff(image)
        image.load()
        check_palette(image)
        exact = image if mode == image.mode else image.convert(mode)
        pixels = np.asarray(exact)
        if is_deep:
            pixels = pixels.astype(np.uint16)
        elif is_scaled or (image.mode == "1" and image.format == "TIFF"):
            pixels = pixels // _GREY_STEPS[bits if is_scaled else 1]
        orientation = 1 if turned or image.format == "TIFF" else orientation_of(image)
        return _StoredArray(np.atleast_3d(pixels), orientation, turned, more_frames)


def _bmp_bits(data: bytes) -> int:
    """Return the bits per pixel of a BMP; the older header has 12 bytes."""
    at = 24 if data[14:18] == b"\x0c\0\0\0" else 28
    return int.from_bytes(data[at : at + 2], "little")


def _is_exact(image: Image.Image) -> bool:
    """Return whether Pillow keeps the values of a TIFF: it may scale or invert them, or divide them by alpha."""
    tags: Any = image.tag_v2  # type: ignore[attr-defined]
    bits, photometric = set(tags.get(BITS_TAG, (1,))), tags.get(PHOTOMETRIC_TAG, WHITE_IS_ZERO)
    if tags.get(_SAMPLES_TAG, 1) != len(image.getbands()):
        return False
    if tags.get(_EXTRA_SAMPLES_TAG, (0,))[0] == _ASSOCIATED_ALPHA:
        return False
    if tags.get(SAMPLE_FORMAT_TAG, (UNSIGNED,))[0] != UNSIGNED:
        return False
    if image.mode == "P":
        # Pillow keeps the high bytes of the palette. Most writers repeat them in the low bytes, or leave these 0.
        return photometric == _PALETTE and all(one % 256 in (0, one // 256) for one in tags.get(_COLORMAP_TAG, (1,)))
    if image.mode in ("RGB", "RGBA"):
        is_jpeg = photometric == _YCBCR and tags.get(_COMPRESSION_TAG) == _JPEG
        return bits == {8} and (photometric == _RGB or is_jpeg)
    return photometric == _GREY and bits == {{"1": 1, "L": 8, "LA": 8}.get(image.mode, 16)}


def _read_png(data: bytes, max_pixels: int) -> _StoredArray:
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    channels = {2: 3, 3: 3, 4: 2, 6: 4}.get(data[25], 0)
    if not channels or not width or not height:
        raise DecodeError("not a PNG")
    check_array(height, width, channels, 2, max_pixels)
    pixels = _imported("imagecodecs", "16 bits in several channels").png_decode(data)
    _check(pixels, (height, width, channels))
    with open_image(data, max_pixels=max_pixels) as image:
        image.load()  # metadata may follow the pixels
        return _StoredArray(pixels, orientation_of(image))


def _read_tiff(data: bytes, max_pixels: int) -> _StoredArray:
    tifffile = _imported("tifffile", "more than 8 bits or four channels")
    _imported("imagecodecs", "compressed TIFFs")
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        page = file.pages[0]
        height, width, channels = int(page.imagelength), int(page.imagewidth), int(page.samplesperpixel)
        if channels > MOST_CHANNELS or page.imagedepth != 1 or int(page.photometric) not in (_GREY, _RGB):
            raise DecodeError(
                f"a TIFF of {channels} channels, {page.imagedepth} deep, in colours {page.photometric}; arrays have up "
                f"to {MOST_CHANNELS} channels, one deep, of grey or RGB"
            )
        if page.dtype not in (np.uint8, np.uint16) or page.bitspersample not in (8, 16):
            raise DecodeError(f"values of {page.bitspersample} bits, {page.dtype}; arrays have uint8 and uint16")
        # A tile or strip is decoded whole, however small the image is.
        for tall, wide in ((height, width), (page.tilelength, page.tilewidth)):
            check_array(int(tall), int(wide), channels, page.dtype.itemsize, max_pixels)
        pixels = page.asarray(maxworkers=1)
        if page.axes == "SYX":
            pixels = pixels.transpose(1, 2, 0)
        pixels = np.atleast_3d(pixels)
        _check(pixels, (height, width, channels))
        tag: Any = page.tags.get(_ORIENTATION_TAG)
        orientation = tag.value if tag is not None and tag.value in range(1, 9) else 1
        return _StoredArray(pixels, int(orientation), more_frames=_has_second_page(file))


def _has_second_page(file: Any) -> bool:
    try:
        return file.pages[1] is not None
    except Exception:  # the second page is missing or damaged
        return False


def _check(pixels: npt.NDArray[Any], expected: tuple[int, int, int]) -> None:
    if pixels.shape != expected:
        raise DecodeError(f"decoded to {list(pixels.shape)}, where the header says {list(expected)}")


def _imported(module: str, what: str) -> ModuleType:
    try:
        if module == "tifffile":
            import tifffile

            return tifffile
        import imagecodecs

        return imagecodecs
    except ImportError:
        raise DecodeError(f"{what} are read after pip install 'shardflow[multichannel]'") from None


def _resize_array(pixels: Array, size: Size, resampling: Image.Resampling) -> Array:
    """Return a resized array: each channel is resized in floating point, antialiased, and then rounded."""
    if size == pixels.shape[1::-1]:
        return pixels
    resized = np.empty((size[1], size[0], pixels.shape[2]), dtype=pixels.dtype)
    most = np.iinfo(pixels.dtype).max
    for channel in range(pixels.shape[2]):
        values = Image.fromarray(pixels[..., channel].astype(np.float32)).resize(size, resampling)
        resized[..., channel] = np.rint(np.asarray(values)).clip(0, most)
    return resized
