"""The recipe: how the bytes of one source image become the image that is packed.

    open     only the formats of `guard`, and no more pixels than it allows, checked before any are allocated
    decode   JPEGs at a reduced scale where that is enough (`decoding`); of several frames the first
    plain    8-bit: 16 bits are scaled, alpha is composited on white, palettes and CMYK are converted (`colour`)
    resize   antialiased, aspect ratio kept
    convert  from an embedded colour profile to sRGB (`profile`)
    turn     as the EXIF orientation says; it is dropped with all other metadata
    cut      the centre, if a square is asked for
    encode   (`encoding`), or copy the file if nothing at all had to be done and its format is kept

What the settings cost and give is measured in docs/recipe.md.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any

from PIL import Image

from shardflow.errors import ConfigError, DecodeError, EncodeError

from .image.codecs import codecs
from .image.decoding import FILTERS, Filter, decode_at, has_more_frames, orientation_of
from .image.encoded_image import EncodedImage
from .image.encoding import FORMATS, SUBSAMPLINGS, Format, can_stay, encode, measure
from .image.geometry import Geometry, Size, Window, turned
from .image.profile import conversion
from .image.safe_open import MAX_PIXELS, map_codec_errors, safe_open

KEEP = "keep"
MAX_SIDE = 65_500
"""JPEG's own limit."""

_KEPT_AS = {"JPEG": "jpeg", "MPO": "jpeg", "WEBP": "webp"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The settings.

    Args:
        short_side: Pixels of the shorter side, 1 … 65500; None for as many as there are.
            Smaller images keep their size.
        long_side: The most pixels that the longer side may have, 1 … 65500; None for any number.
        square: Cut the centre out, as wide as high.
        enlarge: Enlarge smaller images to `short_side`, or to `long_side` where there is none.
        filter: "bicubic", "bilinear" or "lanczos", all antialiased.
        format: "jpeg", "webp" (lossy), "png", or "keep": JPEG, WebP and PNG stay what they are, the rest becomes PNG,
            and a file in which nothing has to be changed is copied byte for byte, its metadata included.
        quality: Of JPEG and WebP, 1 … 100.
        subsampling: Chroma subsampling of JPEG: "4:4:4", "4:2:2" or "4:2:0".

    Raises:
        ConfigError: A value is out of its range, or contradicts another.
    """

    short_side: int | None = 256
    long_side: int | None = None
    square: bool = False
    enlarge: bool = False
    filter: Filter = "bicubic"
    format: str = "jpeg"
    quality: int = 90
    subsampling: str = "4:2:0"

    def __post_init__(self) -> None:
        for name in ("short_side", "long_side"):
            side = getattr(self, name)
            if side is not None and not 1 <= side <= MAX_SIDE:
                raise ConfigError(f"{name} is {side}; allowed are 1 to {MAX_SIDE} pixels")
        if not 1 <= self.quality <= 100:
            raise ConfigError(f"quality is {self.quality}; allowed are 1 to 100")
        choices = {"filter": FILTERS, "format": (*FORMATS, KEEP), "subsampling": SUBSAMPLINGS}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; allowed are {', '.join(allowed)}")
        if contradiction := _contradiction(self):
            raise ConfigError(contradiction)

    def describe(self) -> dict[str, Any]:
        """Return what a manifest says about it."""
        return {"background": "white", "colour": "sRGB", **asdict(self)}

    @property
    def digest(self) -> str:
        """SHA-256 of everything that the packed bytes depend on, the codecs' versions included."""
        text = json.dumps({**self.describe(), "codecs": codecs()}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def process(self, data: bytes) -> EncodedImage:
        """Return what becomes of an image file.

        Raises:
            DecodeError: It cannot be decoded.
            EncodeError: It cannot be encoded.
        """
        with map_codec_errors(DecodeError), safe_open(data) as image:
            if image.format == "TIFF":
                image.load()  # which turns it, alone among the formats
            stored, chosen = image.size, self._format(image)
            resized = self._resized(stored)
            window = self._window(resized)
            _refuse_too_large(resized, window, chosen)
            asked, several = conversion(image), has_more_frames(image, data)
            pixels = decode_at(image, data, resized, self.filter, as_cmyk=asked.mode == "CMYK")
            orientation = orientation_of(image)
            changed = (window[2:] != stored, orientation != 1, asked.transform is not None, several)
            kept = self.format == KEEP and not any(changed) and can_stay(image, data)
        with map_codec_errors(EncodeError):
            pixels = turned(asked.apply(pixels), orientation)
            window = self._window(pixels.size)
            done = {
                "converted": asked.transform is not None,
                "enlarged": resized > stored,
                "first_frame": several,
                "kept": kept,
                "profile_unusable": not asked.usable,
                "turned": orientation != 1,
            }
            geometry = Geometry.of(stored, orientation, pixels.size, window)
            if geometry.size != pixels.size:
                pixels = pixels.crop(window)
            return EncodedImage(
                image=data if kept else encode(pixels, chosen, self.quality, self.subsampling),
                part=chosen.part,
                pixels=measure(pixels),
                geometry=geometry,
                bytes_before=len(data),
                done=tuple(name for name, was in done.items() if was),
            )

    def _resized(self, size: Size) -> Size:
        """Return the size before anything is cut: the settings that make it smallest count."""
        short, long = min(size), max(size)
        limits = [(most, side) for most, side in ((self.short_side, short), (self.long_side, long)) if most is not None]
        if not limits or not short:
            return size
        most, side = min(limits, key=lambda limit: Fraction(*limit))
        if most >= side and not self.enlarge:
            return size
        width, height = (max(1, (2 * own * most + side) // (2 * side)) for own in size)
        return width, height

    def _window(self, size: Size) -> Window:
        """Return what is kept of a resized image."""
        if not self.square:
            return (0, 0, *size)
        side = min(size)
        left, top = ((own - side) // 2 for own in size)
        return left, top, left + side, top + side

    def _format(self, image: Image.Image) -> Format:
        return FORMATS[_KEPT_AS.get(image.format or "", "png") if self.format == KEEP else self.format]


def _contradiction(recipe: Recipe) -> str | None:
    defaults = {field.name: field.default for field in fields(Recipe)}
    if recipe.long_side is not None and recipe.square:
        return "long_side and square exclude each other: the sides of a square are short_side pixels"
    if recipe.long_side is not None and recipe.long_side < (recipe.short_side or 0):
        return f"long_side is {recipe.long_side}, less than short_side, {recipe.short_side}; give a smaller short_side"
    if recipe.enlarge and recipe.short_side is None and recipe.long_side is None:
        return "enlarge has no size to enlarge to; give short_side as well"
    if recipe.format == "png" and recipe.quality != defaults["quality"]:
        return f"quality is {recipe.quality}, but png loses nothing; leave quality out, or take jpeg or webp"
    if recipe.format in ("png", "webp") and recipe.subsampling != defaults["subsampling"]:
        return f"subsampling is {recipe.subsampling}, which only jpeg offers; leave it out, or take jpeg"
    return None


def _refuse_too_large(resized: Size, window: Window, chosen: Format) -> None:
    if resized[0] * resized[1] > MAX_PIXELS:
        raise EncodeError(f"would be enlarged to {resized[0]}x{resized[1]} pixels, more than {MAX_PIXELS}")
    width, height = window[2] - window[0], window[3] - window[1]
    if max(width, height) > chosen.longest:
        name, limit = chosen.codec, chosen.longest
        raise EncodeError(f"would have {width}x{height} pixels; {limit} a side is {name}'s limit")
