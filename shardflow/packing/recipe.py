"""The recipe: how the bytes of one source image become the image that is packed.

    open     only known formats, and no more pixels than allowed, checked before any are allocated (`_pillow`)
    decode   JPEGs at a reduced scale where that is enough (`decoding`); of several frames the first
    8 bits   16 bits are scaled, alpha is composited on white, palettes and CMYK are converted (`_colour`)
    resize   antialiased, aspect ratio kept
    convert  from an embedded colour profile to sRGB (`_colour`)
    turn     as the EXIF or XMP orientation says (`orientation`); all metadata is dropped
    crop     the centre, if a square is asked for
    encode   (`encoding`), or copy the file if nothing had to be done and its format is kept
    index    the scan of a JPEG (`encoding.set_seek_table`), unless it was indexed while it was encoded, as below

A JPEG that becomes a JPEG, grey or YCbCr and in sRGB, stays in its own colours all the way, in one call of the native
kernel (`native.transcoding`). A plain one is never opened by Pillow (`formats.jpeg_header`).

A preset is a recipe for a common case. docs/performance.md has measurements of what the settings cost and gain.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any, NamedTuple

from shardflow import native
from shardflow._colour import ProfileConversion, profile_conversion
from shardflow._orientation import apply_orientation, load_tiff, orientation_of, turn_array
from shardflow._pillow import map_codec_errors, open_image
from shardflow._validation import check_integer
from shardflow.errors import ConfigError, DecodeError, EncodeError
from shardflow.formats import image_array, seek_table
from shardflow.formats.image_limits import MAX_PIXELS
from shardflow.formats.image_types import is_jpeg
from shardflow.formats.jpeg_header import plain_header
from shardflow.formats.manifest import Manifest
from shardflow.formats.statistics import PixelSums

from .image.arrays import read_array, resize_array
from .image.decoding import FILTERS, Filter, decode_resized, has_more_frames
from .image.encoding import (
    FORMATS,
    SUBSAMPLINGS,
    EncodedImage,
    Format,
    can_copy,
    codec_versions,
    encode,
    pixel_sums,
    set_seek_table,
)
from .image.geometry import Geometry, Size, Window, upright_size

logger = logging.getLogger(__name__)

KEEP = "keep"
SEEK_TABLES = ("encoded", "all", "none")
MAX_SIDE = 65_500
"""JPEG's limit."""

_KEPT_AS = {"JPEG": "jpeg", "MPO": "jpeg", "WEBP": "webp"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The settings of packing.

    Args:
        short_side: Pixels of the shorter side, 1 … 65500; None to keep the size. Smaller images keep their size.
        long_side: Limit of the longer side in pixels, 1 … 65500; None for no limit.
        square: Crop the centre, as wide as high.
        enlarge: Enlarge smaller images to `short_side`, or to `long_side` where there is none.
        filter: "bicubic", "bilinear" or "lanczos", all antialiased.
        format: "jpeg", "webp" (lossy), "png", "npy" (values as they are stored, 8 or 16 bits, 1 to 16 channels), or
            "keep": JPEG, WebP and PNG keep their format, other formats become PNG, and a file in which nothing has to
            be changed is copied byte for byte, its metadata included, but for a seek table, which is made anew or left
            out.
        quality: Quality of JPEG and WebP, 1 … 100.
        subsampling: Chroma subsampling of JPEG: "4:4:4", "4:2:2" or "4:2:0".
        seek_tables: Which JPEGs get a seek table, with which crops are decoded faster: the "encoded" ones, or "all", so
            that copied files grow by 1 %, or "none". Tables need the native kernel.
        max_pixels: Images with more pixels are quarantined, as are those that need more memory or scans than the limits
            that follow from it (`formats.image_limits`). 110 million pixels take up to 0.99 GB.

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
    seek_tables: str = "encoded"
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        for name, side in (("short_side", self.short_side), ("long_side", self.long_side)):
            if side is not None and not 1 <= check_integer(name, side) <= MAX_SIDE:
                raise ConfigError(f"{name} is {side}; allowed are 1 to {MAX_SIDE} pixels")
        if not 1 <= check_integer("quality", self.quality) <= 100:
            raise ConfigError(f"quality is {self.quality}; allowed are 1 to 100")
        check_integer("max_pixels", self.max_pixels, 1)
        choices = {
            "filter": FILTERS,
            "format": (*FORMATS, KEEP),
            "seek_tables": SEEK_TABLES,
            "subsampling": SUBSAMPLINGS,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in tuple(allowed):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; allowed are {', '.join(allowed)}")
        self._refuse_contradictions()

    def _refuse_contradictions(self) -> None:
        defaults = {field.name: field.default for field in fields(self)}
        if self.long_side is not None and self.square:
            raise ConfigError("long_side and square exclude each other: the sides of a square are short_side pixels")
        if self.long_side is not None and self.long_side < (self.short_side or 0):
            message = f"long_side is {self.long_side}, less than short_side, {self.short_side}"
            raise ConfigError(f"{message}; set a smaller short_side")
        if self.enlarge and self.short_side is None and self.long_side is None:
            raise ConfigError("enlarge has no size to enlarge to; set short_side as well")
        if self.format in ("png", "npy") and self.quality != defaults["quality"]:
            message = f"quality is {self.quality}, but {self.format} is lossless"
            raise ConfigError(f"{message}; leave quality out, or use jpeg or webp")
        for name in ("subsampling", "seek_tables") if self.format in ("png", "webp", "npy") else ():
            if getattr(self, name) != defaults[name]:
                raise ConfigError(f"{name} is {getattr(self, name)}, which only jpeg offers; leave it out, or use jpeg")

    def describe(self) -> dict[str, Any]:
        """Return the recipe as a manifest has it: the limit only where it is not the default, tables if there are."""
        settings = asdict(self)
        if self.max_pixels == MAX_PIXELS:
            del settings["max_pixels"]
        if not self._has_seek_tables:
            del settings["seek_tables"]
        if self.format == "npy":
            return {"colour": "as stored", **settings}
        return {"background": "white", "colour": "sRGB", **settings}

    @property
    def digest(self) -> str:
        """SHA-256 of everything that the packed bytes depend on, the codecs' versions included."""
        tables = {"seek_tables_version": seek_table.VERSION} if self._has_seek_tables else {}
        text = json.dumps({**self.describe(), **tables, "codecs": codec_versions()}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def warn_without_tables(self) -> None:
        """Log that seek tables are wanted which cannot be made here."""
        if self._has_seek_tables and (reason := native.limitation()):
            logger.warning("JPEGs that are copied or encoded by Pillow get no seek tables here: %s", reason)

    def process(self, data: bytes) -> EncodedImage:
        """Pack an image file; raise `DecodeError`, `EncodeError` or `TooLargeError` if it cannot be."""
        if self.format == "npy":
            return self._process_array(data)
        plain = plain_header(data) if self.format == "jpeg" and native.available() else None
        if plain is not None and plain.size[0] * plain.size[1] <= self.max_pixels:
            conversion = profile_conversion(plain.profile, plain.mode)
            packed = self._transcoded(data, plain.size, 1, conversion)
            if packed is not None:
                return packed
        return self._opened(data, may_transcode=plain is None)

    def _opened(self, data: bytes, *, may_transcode: bool) -> EncodedImage:
        """Pack an image file that Pillow opens."""
        with map_codec_errors(DecodeError), open_image(data, max_pixels=self.max_pixels) as image:
            loaded_upright = image.format == "TIFF" and load_tiff(image)
            stored = image.size
            target = FORMATS[_KEPT_AS.get(image.format or "", "png") if self.format == KEEP else self.format]
            resized = self._resized(stored, target)
            conversion = profile_conversion(image.info.get("icc_profile"), image.mode)
            is_resized = self._window(resized)[2:] != stored
            if may_transcode and is_jpeg(data) and target is FORMATS["jpeg"] and native.available():
                orientation = orientation_of(image)
                may_copy = self.format == KEEP and not is_resized and orientation == 1
                packed = None if may_copy else self._transcoded(data, stored, orientation, conversion)
                if packed is not None:
                    return packed
            more_frames = has_more_frames(image, data, self.max_pixels)
            pixels = decode_resized(
                image, data, resized, self.filter, as_cmyk=conversion.mode == "CMYK", max_pixels=self.max_pixels
            )
            orientation = 1 if loaded_upright else orientation_of(image)
            changed = (is_resized, orientation != 1, conversion.transform is not None, more_frames)
            kept = self.format == KEEP and not any(changed) and can_copy(image, data)
        with map_codec_errors(EncodeError):
            pixels = apply_orientation(conversion.apply(pixels), orientation)
            window = self._window(pixels.size)
            done = {
                "converted": conversion.transform is not None,
                "enlarged": resized > stored,
                "first_frame": more_frames,
                "kept": kept,
                "profile_unusable": not conversion.usable,
                "turned": loaded_upright or orientation != 1,
            }
            geometry = Geometry(stored, orientation, pixels.size, window)
            if geometry.size != pixels.size:
                pixels = pixels.crop(window)
            file = data if kept else encode(pixels, target, self.quality, self.subsampling)
            if target.codec == "JPEG":
                file = set_seek_table(file, self.max_pixels, wanted=self._wants_table(kept=kept))
            return EncodedImage(
                image=file,
                part=target.part,
                pixels=pixel_sums(pixels),
                geometry=geometry,
                bytes_before=len(data),
                done=tuple(name for name, was in done.items() if was),
            )

    @property
    def _has_seek_tables(self) -> bool:
        return self.seek_tables != "none" and self.format not in ("png", "webp", "npy")

    def _wants_table(self, *, kept: bool) -> bool:
        """Whether a JPEG, copied or encoded, is to have a seek table."""
        return self.seek_tables in (("all",) if kept else ("all", "encoded"))

    def _process_array(self, data: bytes) -> EncodedImage:
        with map_codec_errors(DecodeError):
            found = read_array(data, self.max_pixels)
        stored = found.pixels.shape[1], found.pixels.shape[0]
        resized = self._resized(stored, FORMATS["npy"])
        pixels = turn_array(resize_array(found.pixels, resized, FILTERS[self.filter]), found.orientation)
        upright = pixels.shape[1], pixels.shape[0]
        window = self._window(upright)
        left, top, right, bottom = window
        done = {
            "enlarged": resized > stored,
            "first_frame": found.more_frames,
            "turned": found.turned or found.orientation != 1,
        }
        return EncodedImage(
            image=image_array.to_bytes(pixels[top:bottom, left:right]),
            part=image_array.PART,
            pixels=PixelSums(),
            geometry=Geometry(stored, found.orientation, upright, window),
            bytes_before=len(data),
            done=tuple(name for name, was in done.items() if was),
        )

    def _transcoded(
        self, data: bytes, stored: Size, orientation: int, conversion: ProfileConversion
    ) -> EncodedImage | None:
        """Pack a JPEG in its own colours; None if they must change, and if it is damaged or of a rare kind."""
        target = FORMATS["jpeg"]
        resized = self._resized(stored, target)
        # Where chroma is enlarged by itself, and nothing reduced, it is rounded once more than Pillow's: up to 0.5 dB.
        enlarges_chroma = min(resized) >= min(stored) and self.subsampling != "4:2:0"
        if conversion.transform is not None or enlarges_chroma:
            return None
        upright = upright_size(resized, orientation)
        window = self._window(upright)
        made = native.transcode(
            data,
            stored=stored,
            resized=resized,
            orientation=orientation,
            window=window,
            interpolation=self.filter,
            quality=self.quality,
            subsampling=self.subsampling,
            with_seek_table=self._wants_table(kept=False),
            max_pixels=self.max_pixels,
        )
        if isinstance(made, native.Problem):
            return None
        geometry = Geometry(stored, orientation, upright, window)
        done = {
            "enlarged": resized > stored,
            "profile_unusable": not conversion.usable,
            "turned": orientation != 1,
        }
        return EncodedImage(
            image=made.image,
            part=target.part,
            pixels=PixelSums(geometry.size[0] * geometry.size[1], made.sums, made.squares),
            geometry=geometry,
            bytes_before=len(data),
            done=tuple(name for name, was in done.items() if was),
        )

    def _resized(self, stored: Size, target: Format) -> Size:
        """Return the size before the crop; raise EncodeError if it is too large."""
        resized = self._fitted(stored)
        if resized[0] * resized[1] > self.max_pixels:
            raise EncodeError(f"would be enlarged to {resized[0]}x{resized[1]} pixels, more than {self.max_pixels}")
        left, top, right, bottom = self._window(resized)
        width, height = right - left, bottom - top
        if max(width, height) > target.longest:
            raise EncodeError(f"would have {width}x{height} pixels; {target.longest} a side is {target.codec}'s limit")
        return resized

    def _fitted(self, size: Size) -> Size:
        """Return the size that the setting asks for which makes the image smallest."""
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
        """Return the crop of a resized image."""
        if not self.square:
            return (0, 0, *size)
        side = min(size)
        left, top = ((own - side) // 2 for own in size)
        return left, top, left + side, top + side


class Preset(NamedTuple):
    """The purpose of a preset, in a line, and the settings that differ from a recipe's defaults."""

    purpose: str
    settings: Mapping[str, Any]


PRESETS = {
    "imagenet": Preset("short side 256, JPEG quality 90: for training on crops of 224 pixels", {}),
    "compact": Preset("short side 256, JPEG quality 75: 60 % of the size of imagenet", {"quality": 75}),
    "fine": Preset(
        "short side 512, JPEG quality 95, full colour resolution: for detection and segmentation",
        {"short_side": 512, "quality": 95, "subsampling": "4:4:4"},
    ),
    "lossless": Preset(
        "short side 256, PNG: no artefacts, 5 times the size, 9 times the decode time", {"format": "png"}
    ),
    "original": Preset(
        "any size; JPEG, PNG and WebP copied byte for byte where they can be", {"short_side": None, "format": "keep"}
    ),
}


def make_recipe(preset: str = "imagenet", **settings: Any) -> Recipe:
    """Return the recipe of a preset, with some settings changed."""
    if preset not in PRESETS:
        raise ConfigError(f"preset is {preset!r}; allowed are {', '.join(PRESETS)}")
    known = [setting.name for setting in fields(Recipe)]
    for setting in settings:
        if setting not in known:
            raise ConfigError(f"a recipe has no {setting!r}; it has {', '.join(known)}")
    return Recipe(**{**PRESETS[preset].settings, **settings})


def recipe_of(manifest: Manifest) -> Recipe:
    """Return the recipe that a dataset was packed with."""
    names = {setting.name for setting in fields(Recipe)}
    known = {name: value for name, value in manifest.recipe.items() if name in names}
    if known.get("format") not in ("png", "webp", "npy"):
        known.setdefault("seek_tables", "none")
    recipe = Recipe(**known)
    if recipe.describe() != manifest.recipe:
        raise ConfigError(
            f"the dataset was packed with {dict(manifest.recipe)}, which this shardflow cannot do; use the version "
            f"that packed it: {manifest.tools.get('shardflow')}"
        )
    return recipe
