"""Decoding: an image file as plain pixels, already at the target size where the native kernel can do both at once.

Files are opened by `safe_open` alone: few formats, a limit on pixels, and one kind of error for anything that a codec
raises on hostile bytes.

JPEGs are decoded at 1/2, 1/4 or 1/8 by libjpeg's DCT scaling, as long as twice the target is left for the filter.

Grey and RGB JPEGs that change their size are decoded and resized by the native kernel wherever it was built: half of
Pillow's time on small originals. Decoder and filter are the same, rounding is not: few values differ, by one level,
seldom by two (docs/packers.md). So a recipe's digest names the kernel in use, and a pack that is resumed with another
starts anew rather than mixing the two. A file that the kernel refuses is left to Pillow.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterator

import numpy as np
from PIL import Image, ImageFile, UnidentifiedImageError, features

from shardflow import native
from shardflow.errors import DecodeError, SampleError
from shardflow.formats.image_types import IMAGE_TYPES, ImageType, image_type, is_jpeg

from .colour import to_8_bits
from .geometry import Size

try:
    import pillow_heif
except ImportError:
    HEIF_VERSION = None
else:
    pillow_heif.register_heif_opener()
    HEIF_VERSION = pillow_heif.__version__


def _missing_codec(kind: ImageType) -> str:
    """Return why Pillow cannot read a format here, and the remedy; "" when it can."""
    if kind.extra is not None and kind.name not in Image.OPEN:
        return f"{kind.name} is read after pip install 'shardflow[{kind.extra}]'"
    if kind.pillow_feature is not None and not features.version(kind.pillow_feature):
        return f"this build of Pillow cannot read {kind.name}; install a newer Pillow"
    return ""


MISSING_CODECS = {each.name: reason for each in IMAGE_TYPES if (reason := _missing_codec(each))}
"""Formats that cannot be read here → why, and the remedy."""

FORMATS = tuple(each.name for each in IMAGE_TYPES if each.name not in MISSING_CODECS)
"""Pillow's names of the formats that can be read here."""

MAX_PIXELS = 178_956_970
"""Pillow's own limit: 700 MB of memory for one image."""

Filter = native.Interpolation
FILTERS: dict[Filter, Image.Resampling] = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "lanczos": Image.Resampling.LANCZOS,
}
"""The filters that kernel and Pillow have in common, all antialiased."""

# JPEG is not among them: phones store a gain map or a second view behind the image.
_ANIMATED = frozenset(each.name for each in IMAGE_TYPES if each.animated)


def safe_open(data: bytes, formats: tuple[str, ...] = FORMATS) -> ImageFile.ImageFile:
    """Return an image whose header was read, and of which no pixel is decoded yet. Call it in `map_codec_errors`."""
    if not data:
        raise DecodeError("the file is empty")
    try:
        image = Image.open(io.BytesIO(data), formats=formats)
    except UnidentifiedImageError as error:
        found = image_type(data)
        if found is not None and found.name in MISSING_CODECS:
            raise DecodeError(MISSING_CODECS[found.name]) from error
        raise DecodeError(f"not an image in one of the formats {', '.join(formats)}") from error
    if image.width * image.height > MAX_PIXELS:
        image.close()
        raise Image.DecompressionBombError
    return image


@contextlib.contextmanager
def map_codec_errors(kind: type[SampleError]) -> Iterator[None]:
    """Turn anything that a codec raises into `kind`: on hostile bytes it may raise anything."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except SampleError:
        raise
    except Image.DecompressionBombError as error:
        raise kind(f"has more than {MAX_PIXELS} pixels, so it is not decoded") from error
    except Exception as error:
        message = re.sub(r" at 0x[0-9a-f]+", "", str(error))  # equal inputs have equal reasons
        if re.fullmatch(r"((de|en)coder error )?-?\d+", message):  # the number of a codec, and nothing else
            message = f"the data is damaged ({message})"
        raise kind(message or type(error).__name__) from error


def decode_resized(
    image: ImageFile.ImageFile, data: bytes, size: Size, resampling: Filter, *, as_cmyk: bool
) -> Image.Image:
    """Return the pixels of an opened image, resized to `size`: "L", "RGB", or "CMYK" with `as_cmyk`."""
    if size != image.size and is_jpeg(data) and native.available():
        pixels = np.empty((size[1], size[0], 3), np.uint8)
        if native.decode_resized(data, pixels, interpolation=resampling) is None:
            return Image.fromarray(pixels)
    drafted = image.draft(None, (2 * size[0], 2 * size[1]))
    image.load()
    unsized = image if as_cmyk else to_8_bits(image)
    if unsized.size == size:
        return unsized
    # DCT scaling rounds up a size that 8 does not divide; the box leaves out the added pixels.
    return unsized.resize(size, FILTERS[resampling], box=drafted[1] if drafted else None)


def has_more_frames(image: Image.Image, data: bytes) -> bool:
    """Whether an opened image is the first of several in its file."""
    if image.format not in _ANIMATED:
        return False
    try:
        # `is_animated` moves a GIF to its second frame, so another copy is asked: this one is still to be decoded.
        probe = safe_open(data, ("GIF",)) if image.format == "GIF" else image
        return bool(getattr(probe, "is_animated", False))
    except Exception:  # a damaged second frame behind an intact one
        return False
