"""The recipe: how the bytes of one source image become the JPEG that is packed.

    open     only the formats below, and no more pixels than MAX_PIXELS, checked before any are allocated
    decode   JPEGs at 1/2, 1/4 or 1/8 by libjpeg's DCT scaling, as long as twice the target is left for the filter
    colour   8-bit RGB: 16 bits are scaled, alpha is composited on white, palettes and CMYK are converted
    resize   antialiased bicubic, to the short side; aspect ratio kept
    turn     as the EXIF orientation says; it is dropped with all other metadata
    encode   baseline JPEG with libjpeg's standard Huffman tables: optimised ones save 3 % and cost 14 % more time

Embedded colour profiles are not applied, and of animated images the first frame is taken.

Grey and RGB JPEGs that change their size are decoded and resized by the native kernel wherever it was built: half of
Pillow's time on small originals. The decoder and the filter are the same, rounding is not: of 1,000 values 3 differ
(150 where Pillow begins with the other axis, in pictures more than twice as tall as wide), by one level, seldom by
two; both are equally near to a resize in floating point (docs/packers.md). So `digest` names the kernel that is in
use: a pack that was begun with it and goes on without it, or the other way round, starts anew rather than mixing the
two. Whatever the kernel finds fault with, Pillow decides on, as without a kernel.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import PIL
from PIL import Image, ImageFile, UnidentifiedImageError, features

from shardflow import native
from shardflow.errors import ConfigError, DecodeError, EncodeError, SampleError

from .colour import plain
from .pixels import PixelSums, measure

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
MAX_PIXELS = 178_956_970
"""Where Pillow itself refuses: 700 MB of memory for one image."""

SUBSAMPLINGS = ("4:4:4", "4:2:2", "4:2:0")

_MAX_JPEG_SIDE = 65_500
_JPEG = b"\xff\xd8"
_ORIENTATION_TAG = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class Packed(NamedTuple):
    """An encoded image and the sums over its pixels before encoding."""

    jpeg: bytes
    pixels: PixelSums


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The settings.

    Args:
        short_side: Pixels of the shorter side, 1 … 65500. Smaller images keep their size.
        quality: JPEG quality, 1 … 100.
        subsampling: Chroma subsampling: "4:4:4", "4:2:2" or "4:2:0".
        keep_small: Copy the bytes of an image that needs no change: upright, small enough, baseline colour JPEG.
        enlarge: Enlarge smaller images to the short side.

    Raises:
        ConfigError: A value is out of its range.
    """

    short_side: int = 256
    quality: int = 90
    subsampling: str = "4:2:0"
    keep_small: bool = False
    enlarge: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.short_side <= _MAX_JPEG_SIDE:
            raise ConfigError(f"short_side is {self.short_side}; allowed are 1 to {_MAX_JPEG_SIDE} pixels")
        if not 1 <= self.quality <= 100:
            raise ConfigError(f"quality is {self.quality}; allowed are 1 to 100")
        if self.subsampling not in SUBSAMPLINGS:
            raise ConfigError(f"subsampling is {self.subsampling!r}; allowed are {', '.join(SUBSAMPLINGS)}")

    def describe(self) -> dict[str, Any]:
        """Return what a manifest says about it."""
        return {"codec": "jpeg", "filter": "bicubic", "background": "white", **asdict(self)}

    @property
    def digest(self) -> str:
        """SHA-256 of everything that the packed bytes depend on, the codecs' versions included."""
        text = json.dumps({**self.describe(), "codecs": codecs()}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def process(self, data: bytes) -> Packed:
        """Return what becomes of an image file.

        Raises:
            DecodeError: It cannot be decoded.
            EncodeError: It cannot be encoded.
        """
        with _translated(DecodeError), _opened(data) as image:
            if image.width * image.height > MAX_PIXELS:
                raise Image.DecompressionBombError
            target, drafted = self._target(image.size), None
            if max(target) > _MAX_JPEG_SIDE:
                raise EncodeError(f"would have {target[0]}x{target[1]} pixels; {_MAX_JPEG_SIDE} a side is JPEG's limit")
            pixels = _resized(image, data, target)
            if pixels is None:
                drafted = image.draft(None, (2 * target[0], 2 * target[1]))
                image.load()
                if drafted is None:  # not a JPEG; Pillow turns TIFFs as it loads them
                    target = self._target(image.size)
                pixels = plain(image)
            turn = _turn(image)  # a PNG may have its EXIF after the pixels
            kept = self.keep_small and target == image.size and turn is None and _is_baseline_colour(image, data)
        with _translated(EncodeError):
            if target != pixels.size:
                # A size that 8 does not divide is rounded up by the DCT scaling; the box leaves out what was added.
                pixels = pixels.resize(target, Image.Resampling.BICUBIC, box=drafted[1] if drafted else None)
            pixels = pixels.convert("RGB")
            if turn is not None:
                pixels = pixels.transpose(turn)
            return Packed(data if kept else self._encode(pixels), measure(pixels))

    def _target(self, size: tuple[int, int]) -> tuple[int, int]:
        short = min(size)
        if short <= self.short_side and not (self.enlarge and short):
            return size
        width, height = (max(1, (2 * side * self.short_side + short) // (2 * short)) for side in size)
        return width, height

    def _encode(self, image: Image.Image) -> bytes:
        image.info = {}  # a source's comment would be written as well
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=self.quality, subsampling=self.subsampling)
        return buffer.getvalue()


def codecs() -> dict[str, str]:
    """Return the versions of the libraries that decode and encode."""
    jpeg = features.version("libjpeg_turbo") or features.version("jpg") or "unknown"
    return {"pillow": PIL.__version__, "libjpeg": jpeg, "kernel": _kernel()}


@functools.cache  # asked for every job, and it reads the library's file
def _kernel() -> str:
    """Return which libjpeg-turbo the kernel decodes with; its instructions make no difference to the pixels."""
    return native.why().partition(" (")[0] if native.available() else "none"


def _opened(data: bytes) -> ImageFile.ImageFile:
    if not data:
        raise DecodeError("the file is empty")
    return Image.open(io.BytesIO(data), formats=FORMATS)


def _resized(image: ImageFile.ImageFile, data: bytes, size: tuple[int, int]) -> Image.Image | None:
    """Return a JPEG at another size, by the kernel; None for everything that is left to Pillow."""
    if not data.startswith(_JPEG) or size == image.size or not native.available():
        return None
    pixels = np.empty((size[1], size[0], 3), np.uint8)
    problem = native.decode_resized(data, pixels, interpolation="bicubic")
    return None if problem else Image.fromarray(pixels)


@contextlib.contextmanager
def _translated(kind: type[SampleError]) -> Iterator[None]:
    """Turn whatever a codec raises into `kind`: on hostile bytes that may be anything."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except SampleError:
        raise
    except UnidentifiedImageError as error:
        raise kind(f"not an image in one of the formats {', '.join(FORMATS)}") from error
    except Image.DecompressionBombError as error:
        raise kind(f"has more than {MAX_PIXELS} pixels, so it is not decoded") from error
    except Exception as error:
        message = re.sub(r" at 0x[0-9a-f]+", "", str(error))  # equal inputs have equal reasons
        raise kind(message or type(error).__name__) from error


def _turn(image: Image.Image) -> Image.Transpose | None:
    try:
        return _TURNS.get(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:  # broken metadata around a sound image
        return None


def _is_baseline_colour(image: Image.Image, data: bytes) -> bool:
    if image.format != "JPEG" or image.mode != "RGB":
        return False
    position = 2
    while data[position + 1] in (0xFF, *range(0xE0, 0xF0), 0xC4, 0xDB, 0xDD, 0xFE):
        fill = data[position + 1] == 0xFF
        position += 1 if fill else 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    return data[position : position + 2] == b"\xff\xc0"
