"""The options of `shardflow pack` that make its recipe, and what its help says about presets."""

from __future__ import annotations

import click

from shardflow.packing.image.decoding import FILTERS
from shardflow.packing.image.encoding import FORMATS, SUBSAMPLINGS
from shardflow.packing.recipe import KEEP, PRESETS

from .options import together

# None stands for "as the preset has it"; the values of a default recipe are named for those who use no preset.
recipe_options = together(
    click.option(
        "--preset", type=click.Choice(list(PRESETS)), default="imagenet", show_default=True, help="See below."
    ),
    click.option("--short-side", type=int, help="Pixels of the shorter side.  [default: 256]"),
    click.option("--long-side", type=int, help="The most pixels of the longer side.  [default: any number]"),
    click.option("--square/--no-square", default=None, help="Cut out the centre, as wide as high."),
    click.option("--enlarge/--no-enlarge", default=None, help="Enlarge smaller images to the short side."),
    click.option("--filter", type=click.Choice(list(FILTERS)), help="All are antialiased.  [default: bicubic]"),
    click.option(
        "--format", type=click.Choice([*FORMATS, KEEP]), help="keep copies what needs no change.  [default: jpeg]"
    ),
    click.option("--quality", type=int, help="Of JPEG and WebP, 1 to 100.  [default: 90]"),
    click.option("--subsampling", type=click.Choice(SUBSAMPLINGS), help="Of JPEG's colours.  [default: 4:2:0]"),
)
"""A command takes them as `preset` and `**settings`, None for those that were not given."""

PRESETS_HELP = "\n".join(
    (
        "\b",
        "Presets; options given beside them override them:",
        *(f"  {name:10}{preset.purpose}" for name, preset in PRESETS.items()),
    )
)
