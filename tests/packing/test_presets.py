from __future__ import annotations

import pytest

from shardflow.errors import ConfigError
from shardflow.packing.presets import PRESETS, make_recipe
from shardflow.packing.recipe import Recipe


def test_presets_are_settings() -> None:
    """A preset is a recipe with some settings, each of which can be given otherwise; the first one has none."""
    assert make_recipe() == make_recipe("imagenet") == Recipe()
    assert make_recipe("fine") == Recipe(short_side=512, quality=95, subsampling="4:4:4")
    assert make_recipe("fine", quality=80, square=True) == Recipe(
        short_side=512, quality=80, subsampling="4:4:4", square=True
    )
    assert make_recipe("original", short_side=512) == Recipe(short_side=512, format="keep")


def test_presets_differ() -> None:
    """No two presets are the same recipe, and each says what it is for."""
    assert len({make_recipe(name).digest for name in PRESETS}) == len(PRESETS)
    assert all(preset.purpose for preset in PRESETS.values())


def test_unknown_names() -> None:
    """A preset or a setting that there is not is refused with those there are, and so is a contradiction."""
    with pytest.raises(ConfigError, match="preset is 'cifar'; allowed are imagenet, compact"):
        make_recipe("cifar")
    with pytest.raises(ConfigError, match="no 'shortside'; it has short_side, long_side"):
        make_recipe(shortside=3)
    with pytest.raises(ConfigError, match="png loses nothing"):
        make_recipe("lossless", quality=80)
