"""The recipe: how the bytes of one source image become the image that is packed.

A recipe holds the settings. `image.encoded_image` derives the size and crop of an image from them, and `image.pipeline`
does the work.

To add a setting, add a field to `Recipe` and an argument to `pack`; the command line then has it too. A preset is a
recipe for a common case. docs/performance.md measures the costs and gains of presets.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple

import PIL
from PIL import Image, features

from shardflow import native
from shardflow._colour import CONVERSION
from shardflow._pillow import PLUGIN_VERSIONS
from shardflow._validation import check_integer
from shardflow.errors import ConfigError
from shardflow.formats import seek_table
from shardflow.formats.image_limits import MAX_PIXELS
from shardflow.formats.image_types import PACKED_TYPES, ImageType
from shardflow.formats.manifest import Manifest
from shardflow.native.transcoding import SAMPLINGS, TRANSCODING, Interpolation

logger = logging.getLogger(__name__)

Filter = Interpolation
FILTERS: dict[Filter, Image.Resampling] = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "lanczos": Image.Resampling.LANCZOS,
}
"""The antialiased filters that the kernel and Pillow have in common."""

KEEP = "keep"
"""The recipe format that keeps the source's format and copies files that need no change."""

MAX_SIDE = 65_500
"""libjpeg's limit for a side, in pixels."""

FromPreset = Literal["preset"]
"""A setting that the preset determines."""

_WITH_SEEK_TABLES = ("jpeg", KEEP)


class Setting(NamedTuple):
    """The properties of a setting in addition to its type and default."""

    help: str  # its line in the help of the command line
    choices: Sequence[str] = ()  # all allowed values; empty for numbers and flags
    most: int | None = None  # the largest allowed number, None for no limit; the smallest is 1
    optional: bool = False  # whether it can be None
    encoders: Sequence[str] = ()  # the formats whose encoder has this setting, under the same name
    # Whether the manifest has the setting only if it is not the default, so that the digests of other recipes stay.
    is_further: bool = False


def _known(*of: Any, **more: Any) -> dict[type[Setting], Setting]:
    return {Setting: Setting(*of, **more)}


@functools.cache
def settings() -> Mapping[str, tuple[Field[Any], Setting]]:
    """Return the settings of a recipe by name: the field and its `Setting`."""
    return {each.name: (each, each.metadata[Setting]) for each in fields(Recipe)}


_SHORT = _known("Length of the shorter side, in pixels.  [default: preset]", most=MAX_SIDE, optional=True)
_LONG = _known("Maximum length of the longer side, in pixels.  [default: no limit]", most=MAX_SIDE, optional=True)
_SQUARE = _known("Crop to the central square.")
_ENLARGE = _known("Enlarge smaller images to --short-side.")
_FILTER = _known("Antialiased resize filter.  [default: preset]", tuple(FILTERS))
_FORMAT = _known(
    "Image format; keep copies files that need no change, npy has the values as stored.  [default: preset]",
    (*PACKED_TYPES, KEEP),
)
_LOSSY = tuple(name for name, kind in PACKED_TYPES.items() if kind.is_lossy)
_QUALITY = _known("JPEG or WebP quality, 1 to 100.  [default: preset]", most=100, encoders=_LOSSY)
_SUBSAMPLING = _known("JPEG chroma subsampling.  [default: preset]", tuple(SAMPLINGS), encoders=("jpeg",))
_TABLES = _known("JPEGs that get a seek table.  [default: encoded]", ("encoded", "all", "none"))
_PIXELS = _known(f"Largest image that is decoded, in pixels.  [default: {MAX_PIXELS:,}]", is_further=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The settings of packing; `pack` describes them.

    Raises:
        ConfigError: A value is out of range, or contradicts another.
    """

    short_side: int | None = field(default=256, metadata=_SHORT)
    long_side: int | None = field(default=None, metadata=_LONG)
    square: bool = field(default=False, metadata=_SQUARE)
    enlarge: bool = field(default=False, metadata=_ENLARGE)
    filter: Filter = field(default="bicubic", metadata=_FILTER)
    format: str = field(default="jpeg", metadata=_FORMAT)
    quality: int = field(default=90, metadata=_QUALITY)
    subsampling: str = field(default="4:2:0", metadata=_SUBSAMPLING)
    seek_tables: str = field(default="encoded", metadata=_TABLES)
    max_pixels: int = field(default=MAX_PIXELS, metadata=_PIXELS)

    def __post_init__(self) -> None:
        for name, (each, setting) in settings().items():
            value = getattr(self, name)
            if setting.choices:
                if value not in tuple(setting.choices):
                    raise ConfigError(f"{name} is {value!r}; allowed are {', '.join(setting.choices)}")
            elif isinstance(each.default, bool) or (setting.optional and value is None):
                continue
            elif setting.most is None:
                check_integer(name, value, 1)
            elif not 1 <= check_integer(name, value) <= setting.most:
                raise ConfigError(f"{name} is {value}; allowed are 1 to {setting.most}")
        self._refuse_contradictions()

    def _refuse_contradictions(self) -> None:
        if self.long_side is not None and self.square:
            raise ConfigError("long_side and square exclude each other: the sides of a square are short_side pixels")
        if self.long_side is not None and self.long_side < (self.short_side or 0):
            message = f"long_side is {self.long_side}, less than short_side, {self.short_side}"
            raise ConfigError(f"{message}; set a smaller short_side")
        if self.enlarge and self.short_side is None and self.long_side is None:
            raise ConfigError("enlarge has no size to enlarge to; set short_side as well")
        for name, (_, setting) in settings().items():
            if setting.encoders:
                self._refuse_useless(name, [*setting.encoders, KEEP])
        self._refuse_useless("seek_tables", _WITH_SEEK_TABLES)

    def _refuse_useless(self, name: str, having: Sequence[str]) -> None:
        """Raise ConfigError if a setting that the format lacks does not have its default value."""
        if self.format not in having and (value := getattr(self, name)) != settings()[name][0].default:
            formats = " or ".join(kind for kind in having if kind != KEEP)
            raise ConfigError(f"{name} is {value}, which {self.format} does not have; leave it out, or use {formats}")

    def describe(self) -> dict[str, Any]:
        """Return the recipe as a manifest has it: `is_further` settings only if they are not the default."""
        described = {
            name: value
            for name, (each, setting) in settings().items()
            if (value := getattr(self, name)) != each.default or not setting.is_further
        }
        if not self._has_seek_tables:
            del described["seek_tables"]
        if self.format == "npy":
            return {"colour": "as stored", **described}
        return {"background": "white", "colour": "sRGB", **described}

    @property
    def digest(self) -> str:
        """SHA-256 of everything that the packed bytes depend on, including the codecs' versions."""
        tables = {"seek_tables_version": seek_table.VERSION} if self._has_seek_tables else {}
        text = json.dumps({**self.describe(), **tables, "codecs": codec_versions()}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def warn_without_tables(self) -> None:
        """Log a warning if the recipe has seek tables and the native kernel, which makes them, is not available."""
        if self._has_seek_tables and not native.available():
            logger.warning("JPEGs that are copied or encoded by Pillow get no seek tables here: %s", native.describe())

    def lossless(self) -> Recipe:
        """Return the recipe with PNG as its format and the defaults of all encoder settings."""
        defaults: dict[str, Any] = {
            name: each.default for name, (each, setting) in settings().items() if setting.encoders
        }
        return replace(self, format="png", seek_tables="encoded", **defaults)

    # ---- For the routes of `image.pipeline` ----

    @property
    def _has_seek_tables(self) -> bool:
        return self.seek_tables != "none" and self.format in _WITH_SEEK_TABLES

    def target(self, found: ImageType | None) -> ImageType:
        """Return the format that an image of this format is packed in."""
        if self.format != KEEP:
            return PACKED_TYPES[self.format]
        return found if found is not None and found.packed_as else PACKED_TYPES["png"]

    def encoder_settings(self, target: ImageType) -> dict[str, Any]:
        """Return the settings of an encoder by Pillow's names."""
        known = settings().items()
        return {name: getattr(self, name) for name, (_, setting) in known if target.packed_as in setting.encoders}


class Preset(NamedTuple):
    """The purpose of a preset in one line, and the settings that differ from a recipe's defaults."""

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


def make_recipe(preset: str = "imagenet", **changed: Any) -> Recipe:
    """Return the recipe of a preset, with the settings in `changed` that are not "preset"."""
    if preset not in PRESETS:
        raise ConfigError(f"preset is {preset!r}; allowed are {', '.join(PRESETS)}")
    given = {name: value for name, value in changed.items() if not (isinstance(value, str) and value == "preset")}
    return Recipe(**{**PRESETS[preset].settings, **given})


def recipe_of(manifest: Manifest) -> Recipe:
    """Return the recipe that a dataset was packed with; raise ConfigError if this version cannot reproduce it."""
    known = {name: value for name, value in manifest.recipe.items() if name in settings()}
    if known.get("format", "jpeg") in _WITH_SEEK_TABLES:
        known.setdefault("seek_tables", "none")
    recipe = Recipe(**known)
    if recipe.describe() != manifest.recipe:
        raise ConfigError(
            f"the dataset was packed with {dict(manifest.recipe)}, which this shardflow cannot do; use the version "
            f"that packed it: {manifest.tools.get('shardflow')}"
        )
    return recipe


_LIBRARIES = {
    "libavif": ("avif",),
    "libjpeg": ("libjpeg_turbo", "jpg"),
    "littlecms": ("littlecms2",),
    "webp": ("webp",),
    "zlib": ("zlib_ng", "zlib"),
}
"""Libraries that Pillow uses → Pillow's names for them; the first available one counts."""


def codec_versions() -> dict[str, str]:
    """Return the version of each library; "none" if Pillow lacks it."""
    found = {library: next(filter(None, map(features.version, names)), "none") for library, names in _LIBRARIES.items()}
    transcoding = TRANSCODING if native.available() else "none"
    versions = {"pillow": PIL.__version__, **found, **PLUGIN_VERSIONS}
    return {**versions, "kernel": native.version(), "transcoding": transcoding, "colours": CONVERSION}
