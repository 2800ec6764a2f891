"""The guard: image files are opened here, and whatever a codec makes of hostile bytes becomes one error."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterator

from PIL import Image, ImageFile, UnidentifiedImageError, features

from shardflow.errors import DecodeError, SampleError
from shardflow.formats.image_types import IMAGE_TYPES, image_type

FORMATS = tuple(
    each.name for each in IMAGE_TYPES if each.pillow_feature is None or features.version(each.pillow_feature)
)
"""Pillow's names of the formats that are opened: all that this build of Pillow reads."""

MAX_PIXELS = 178_956_970
"""Where Pillow itself refuses: 700 MB of memory for one image."""


def safe_open(data: bytes, formats: tuple[str, ...] = FORMATS) -> ImageFile.ImageFile:
    """Return an image whose header was read, and of which no pixel is decoded yet; within `translated`.

    Raises:
        DecodeError: The file is empty, or in another format.
        DecompressionBombError: It has more than `MAX_PIXELS`.
    """
    if not data:
        raise DecodeError("the file is empty")
    try:
        image = Image.open(io.BytesIO(data), formats=formats)
    except UnidentifiedImageError as error:
        found = image_type(data)
        if found is not None and found.name not in FORMATS:
            raise DecodeError(f"this build of Pillow does not read {found.name}; install a newer Pillow") from error
        raise DecodeError(f"not an image in one of the formats {', '.join(formats)}") from error
    if image.width * image.height > MAX_PIXELS:
        image.close()
        raise Image.DecompressionBombError
    return image


@contextlib.contextmanager
def map_codec_errors(kind: type[SampleError]) -> Iterator[None]:
    """Turn whatever a codec raises into `kind`: on hostile bytes that may be anything."""
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
        raise kind(message or type(error).__name__) from error
