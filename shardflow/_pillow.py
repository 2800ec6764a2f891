"""Pillow: the one place that opens image files with it, for packing, loading and previews.

Only listed formats are opened, within the limits of `formats.image_limits`. Any exception of a codec becomes one kind
of error.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterator

from PIL import Image, ImageFile, UnidentifiedImageError, features

from ._imports import import_large
from .errors import DecodeError, SampleError, TooLargeError
from .formats.image_limits import MAX_PIXELS, REMEDY, check_image, check_size
from .formats.image_types import IMAGE_TYPES, ImageType, image_type, type_named


def _load_plugins() -> dict[str, str]:
    """Import the installed plug-ins of Pillow, which registers their formats; return their versions."""
    versions = {}
    for package, plugin in filter(None, (each.plugin for each in IMAGE_TYPES)):
        with contextlib.suppress(ImportError):
            import_large(plugin)
            versions[package] = str(import_large("importlib.metadata").version(package))
    return versions


PLUGIN_VERSIONS = _load_plugins()
"""Plug-ins of Pillow that are installed → their versions."""


def _missing_codec(kind: ImageType) -> str:
    """Return why Pillow cannot read a format here, and the remedy; "" if it can."""
    if kind.plugin is not None and kind.plugin[0] not in PLUGIN_VERSIONS:
        return f"{kind.name} is read after pip install 'shardflow[{kind.extra}]'"
    if kind.pillow_feature is not None and not features.version(kind.pillow_feature):
        return f"this build of Pillow cannot read {kind.name}; install a newer Pillow"
    return ""


MISSING_CODECS = {each.name: reason for each in IMAGE_TYPES if (reason := _missing_codec(each))}
"""Formats that cannot be read here → why, and the remedy."""

FORMATS = tuple(each.name for each in IMAGE_TYPES if each.by_pillow and each.name not in MISSING_CODECS)
"""Pillow's names of the formats that can be read here."""

BAND_ROWS = 256
"""Images are converted in bands of this many rows, so that no second copy of a whole image is made."""

BITS_TAG = 258
"""TIFF 6.0, section 8: BitsPerSample."""

PHOTOMETRIC_TAG, WHITE_IS_ZERO = 262, 0
"""TIFF 6.0, section 8: PhotometricInterpretation, and its value for grey of which 0 is white."""

SAMPLE_FORMAT_TAG, UNSIGNED = 339, 1
"""TIFF 6.0, section 19: SampleFormat, and its value for unsigned integers."""

_TILE_TAGS = 322, 323  # TIFF 6.0, section 15: TileWidth, TileLength


def open_image(
    data: bytes | memoryview, *, max_pixels: int = MAX_PIXELS, formats: tuple[str, ...] = FORMATS
) -> ImageFile.ImageFile:
    """Open an image and read its header; no pixel is decoded yet. Call this within `map_codec_errors`.

    Raises:
        DecodeError: It is not an image in one of the formats.
        TooLargeError: It has more pixels, or needs more memory or scans, than is allowed.
    """
    if not data:
        raise DecodeError("the file is empty")
    check_image(data, max_pixels)
    if Image.MAX_IMAGE_PIXELS is not None and max_pixels > 2 * Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = max_pixels  # otherwise Pillow refuses images that are allowed here
    try:
        image = Image.open(io.BytesIO(data), formats=formats)
    except Image.DecompressionBombError as error:  # its limit is not below `max_pixels`
        pixels = int(re.findall(r"\d+", str(error))[0])
        raise TooLargeError(f"has {pixels:,} pixels; the limit is {max_pixels:,} pixels; {REMEDY}") from error
    except UnidentifiedImageError as error:
        found = image_type(data)
        if found is not None and found.name in MISSING_CODECS:
            raise DecodeError(MISSING_CODECS[found.name]) from error
        raise DecodeError(f"not an image in one of the formats {', '.join(formats)}") from error
    try:
        kind = type_named(image.format or "") or IMAGE_TYPES[0]  # MPO is JPEG
        check_size(kind, *image.size, max_pixels)
        if kind.name == "TIFF":  # a tile is decoded whole, however small the image is
            width, height = (int(image.tag_v2.get(tag, 0)) for tag in _TILE_TAGS)  # type: ignore[attr-defined]
            check_size(kind, width, height, max_pixels)
    except BaseException:
        image.close()
        raise
    return image


@contextlib.contextmanager
def map_codec_errors(kind: type[SampleError]) -> Iterator[None]:
    """Turn any exception of a codec into `kind`, and drop its warnings: on hostile bytes it may raise anything."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except SampleError:
        raise
    except Image.DecompressionBombError as error:
        raise TooLargeError(f"is larger than PIL.Image.MAX_IMAGE_PIXELS allows: {error}") from error
    except Exception as error:
        message = re.sub(r" at 0x[0-9a-f]+", "", str(error))  # equal inputs have equal reasons
        if re.fullmatch(r"((de|en)coder error )?-?\d+", message):  # only the codec's error number
            message = f"the data is damaged ({message})"
        raise kind(message or type(error).__name__) from error


def bands(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Yield the image in bands: the first row of each, and the band."""
    image.load()
    if image.height <= BAND_ROWS:
        yield 0, image
        return
    for top in range(0, image.height, BAND_ROWS):
        yield top, image.crop((0, top, image.width, min(top + BAND_ROWS, image.height)))
