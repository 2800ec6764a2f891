"""Arrays: an image file as its exact values, 8 or 16 bits, 1 to 16 channels, and resized in floating point.

Values are packed as they are stored: no colour profile is applied, alpha stays a channel, grey stays one. Palettes
become RGB. Of each format that reader is used which is exact:

    Pillow       8 bits of JPEG, PNG, TIFF, WebP, BMP and GIF; 16 bits of PNG and TIFF in one channel
    imagecodecs  PNG with 16 bits in several channels, which Pillow reduces to 8
    tifffile     TIFF with 16 bits in several channels, or more channels than Pillow knows

The latter two come with the extra "multichannel". Sources: W3C PNG 11.2.2 (IHDR); TIFF 6.0.
"""

from __future__ import annotations

import io
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from shardflow._pillow import BITS_TAG, open_image
from shardflow.errors import DecodeError, TooLargeError
from shardflow.formats import image_array
from shardflow.formats.image_array import MOST_CHANNELS, Array
from shardflow.formats.image_limits import check_array, check_image
from shardflow.formats.image_types import image_type

from .decoding import has_more_frames
from .geometry import Size
from .orientation import load_tiff, orientation_of

_EXACT_MODES = ("L", "LA", "RGB", "RGBA", "I;16", "I;16B")
_CONVERTED = {"1": "L", "P": "RGB"}
_EXACT_FORMATS = ("JPEG", "MPO", "PNG", "TIFF", "WEBP", "BMP", "GIF")
_GREY, _RGB = 1, 2  # TIFF 6.0: PhotometricInterpretation
_PHOTOMETRIC_TAG, _ORIENTATION_TAG, _SAMPLES_TAG, _EXTRA_SAMPLES_TAG = 262, 274, 277, 338
_ASSOCIATED_ALPHA = 1  # TIFF 6.0: colours are multiplied by alpha


class StoredArray(NamedTuple):
    """The values of an image file.

    Attributes:
        pixels: uint8 or uint16 [H, W, C], as stored.
        orientation: How to turn them upright, 1 … 8, as in EXIF.
        turned: Whether they have been turned upright already.
        more_frames: Whether the file has further images, which are left out.
    """

    pixels: Array
    orientation: int = 1
    turned: bool = False
    more_frames: bool = False


def read_array(data: bytes, max_pixels: int) -> StoredArray:
    """Return the values of an image file; call it in `map_codec_errors`.

    Raises:
        DecodeError: The file is damaged, or no reader here has its exact values.
        TooLargeError: It is larger than is allowed.
    """
    if not data:
        raise DecodeError("the file is empty")
    check_image(data, max_pixels)
    kind = image_type(data)
    name = "" if kind is None else kind.name
    if name == "NPY":
        return StoredArray(image_array.pixels(data))
    if name == "PNG" and data[24:25] == b"\x10" and data[25:26] != b"\0":
        return _read_png(data, max_pixels)
    if name == "TIFF":
        try:
            found = _read_pillow(data, max_pixels)
        except TooLargeError:
            raise
        except Exception:  # Pillow raises anything on a TIFF that it does not know
            found = None
        return _read_tiff(data, max_pixels) if found is None else found
    found = _read_pillow(data, max_pixels)
    if found is None:
        raise DecodeError(
            f"the exact values of this {name or 'file'} are not known here; packed as arrays are 8 bits of JPEG, PNG, "
            "TIFF, WebP, BMP and GIF, without CMYK, and 16 bits of PNG and TIFF"
        )
    return found


def _read_pillow(data: bytes, max_pixels: int) -> StoredArray | None:
    """Return the values as Pillow has them; None where these are not exact."""
    with open_image(data, max_pixels=max_pixels) as image:
        mode = _CONVERTED.get(image.mode, image.mode)
        if image.format == "PNG" and mode == "I":  # Pillow before 11: 16 bits of grey
            mode = "I;16"
        is_deep = mode.startswith("I;16")
        if image.format not in _EXACT_FORMATS or mode not in _EXACT_MODES:
            return None
        if image.format == "TIFF" and not _is_exact(image.tag_v2, len(image.getbands()), is_deep=is_deep):
            return None
        channels = len(image.getbands())
        check_array(image.height, image.width, channels, 2 if is_deep else 1, max_pixels)
        more_frames = has_more_frames(image, data, max_pixels)
        turned = image.format == "TIFF" and load_tiff(image)
        image.load()
        exact = image if mode in (image.mode, "I;16") else image.convert(mode)
        pixels = np.asarray(exact)
        if is_deep:
            pixels = pixels.astype(np.uint16)
        orientation = 1 if turned or image.format == "TIFF" else orientation_of(image)
        return StoredArray(np.atleast_3d(pixels), orientation, turned, more_frames)


def _is_exact(tags: Any, bands: int, *, is_deep: bool) -> bool:
    """Return whether Pillow leaves the values of a TIFF as they are: it may drop bits, or divide by alpha."""
    bits, photometric = tags.get(BITS_TAG, (1,)), tags.get(_PHOTOMETRIC_TAG, _GREY)
    if tags.get(_SAMPLES_TAG, 1) != bands or tags.get(_EXTRA_SAMPLES_TAG, (0,))[0] == _ASSOCIATED_ALPHA:
        return False
    return (set(bits) == {16} and photometric == _GREY) if is_deep else max(bits) <= 8


def _read_png(data: bytes, max_pixels: int) -> StoredArray:
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    channels = {2: 3, 3: 3, 4: 2, 6: 4}.get(data[25], 0)
    if not channels or not width or not height:
        raise DecodeError("not a PNG")
    check_array(height, width, channels, 2, max_pixels)
    pixels = _imported("imagecodecs", "16 bits in several channels").png_decode(data)
    _check(pixels, (height, width, channels))
    with open_image(data, max_pixels=max_pixels) as image:
        image.load()  # metadata may stand at the end
        return StoredArray(pixels, orientation_of(image))


def _read_tiff(data: bytes, max_pixels: int) -> StoredArray:
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
        return StoredArray(pixels, int(orientation), more_frames=_has_second_page(file))


def _has_second_page(file: Any) -> bool:
    try:
        return file.pages[1] is not None
    except Exception:  # there is none, or a damaged one behind an intact page
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


def resize_array(pixels: Array, size: Size, resampling: Image.Resampling) -> Array:
    """Return an array at another width and height: each channel in floating point, antialiased, then rounded."""
    if size == pixels.shape[1::-1]:
        return pixels
    resized = np.empty((size[1], size[0], pixels.shape[2]), dtype=pixels.dtype)
    most = np.iinfo(pixels.dtype).max
    for channel in range(pixels.shape[2]):
        values = Image.fromarray(pixels[..., channel].astype(np.float32)).resize(size, resampling)
        resized[..., channel] = np.rint(np.asarray(values)).clip(0, most)
    return resized


def turn_array(pixels: Array, orientation: int) -> Array:
    """Return a stored array upright."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    rows, columns = _TURNS[orientation]
    return pixels[::rows, ::columns]


_TURNS = {1: (1, 1), 2: (1, -1), 3: (-1, -1), 4: (-1, 1), 5: (1, 1), 6: (1, -1), 7: (-1, -1), 8: (-1, 1)}
"""Orientation → steps along rows and columns, after rows and columns were exchanged from 5 on."""
