"""Transcoding: a JPEG that becomes a JPEG, grey or YCbCr and in sRGB, stays in its own colours all the way.

One call of the native kernel decodes, resizes, turns, crops and encodes it (`native.transcoding`).
"""

from __future__ import annotations

from shardflow import native
from shardflow._colour import profile_conversion
from shardflow.formats.statistics import PixelSums
from shardflow.packing.recipe import Recipe

from .encoded_image import EncodedImage, describe
from .geometry import Geometry, upright_size


def transcode(
    data: bytes, recipe: Recipe, geometry: Geometry, *, profile: bytes | None, mode: str
) -> EncodedImage | None:
    """Pack a JPEG in its own colours; None if they must change, and if it is damaged or of a rare kind.

    `mode` is Pillow's, of the pixels that `profile` is for.
    """
    conversion = profile_conversion(profile, mode)
    if conversion.transform is not None or not recipe.can_transcode(geometry):
        return None
    target = recipe.target("JPEG")
    settings = recipe.encoder_settings(target)
    made = native.transcode(
        data,
        stored=geometry.stored,
        resized=upright_size(geometry.resized, geometry.orientation),  # which turns it back
        orientation=geometry.orientation,
        window=geometry.window,
        interpolation=recipe.filter,
        quality=settings["quality"],
        subsampling=settings["subsampling"],
        with_seek_table=recipe.wants_seek_table(copied=False),
        max_pixels=recipe.max_pixels,
    )
    if isinstance(made, native.Problem):
        return None
    pixels = PixelSums(geometry.size[0] * geometry.size[1], made.sums, made.squares)
    return describe(made.image, target, data, geometry, pixels, profile_unusable=not conversion.usable)
