"""Presets: recipes for the common cases. A preset is nothing but settings, any of which can be given otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from shardflow.errors import ConfigError

from .recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """What a preset is for, in a line, and the settings that differ from a recipe's defaults."""

    purpose: str
    settings: dict[str, Any] = field(default_factory=dict)


PRESETS = {
    "imagenet": Preset(purpose="short side 256, JPEG quality 90: for training on crops of 224 pixels"),
    "compact": Preset(
        purpose="short side 256, JPEG quality 75: three fifths of the disk and of the network", settings={"quality": 75}
    ),
    "fine": Preset(
        purpose="short side 512, JPEG quality 95, full colour resolution: for detection and segmentation",
        settings={"short_side": 512, "quality": 95, "subsampling": "4:4:4"},
    ),
    "lossless": Preset(
        purpose="short side 256, PNG: no artefacts, five times the disk, nine times the decoding",
        settings={"format": "png"},
    ),
    "original": Preset(
        purpose="any size; JPEG, PNG and WebP copied byte for byte where they can be",
        settings={"short_side": None, "format": "keep"},
    ),
}


def make_recipe(preset: str = "imagenet", **settings: Any) -> Recipe:
    """Return the recipe of a preset, with some settings changed.

    Raises:
        ConfigError: There is no such preset or setting, a value is out of its range, or two contradict each other.
    """
    if preset not in PRESETS:
        raise ConfigError(f"preset is {preset!r}; allowed are {', '.join(PRESETS)}")
    known = [setting.name for setting in fields(Recipe)]
    for setting in settings:
        if setting not in known:
            raise ConfigError(f"a recipe has no {setting!r}; it has {', '.join(known)}")
    return Recipe(**{**PRESETS[preset].settings, **settings})
