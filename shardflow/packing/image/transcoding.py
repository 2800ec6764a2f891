"""Transcoding: a JPEG that becomes a JPEG, grey or YCbCr and in sRGB, stays in its own colours all the way.

One call of the native kernel decodes, resizes, turns, crops and encodes it (`native.transcoding`).
"""

from __future__ import annotations

from shardflow import native
from shardflow._colour import profile_conversion
from shardflow.formats.statistics import PixelSums

from .geometry import Geometry, Size, upright_size
from .route import EncodedImage, ImageRecipe, describe


def transcode(
    data: bytes, recipe: ImageRecipe, stored: Size, orientation: int, *, profile: bytes | None, mode: str
) -> EncodedImage | None:
    """Pack a JPEG in its own colours; None if they must change, and if it is damaged or of a rare kind.

    `stored` is its size, `orientation` how it is to be turned; `mode` is Pillow's, of the pixels that `profile` is for.
    """
    conversion = profile_conversion(profile, mode)
    target = recipe.target("JPEG")
    resized = recipe.resized(stored, target)
    if conversion.transform is not None or not recipe.can_transcode(stored, resized):
        return None
    upright, settings = upright_size(resized, orientation), recipe.encoder_settings(target)
    window = recipe.window(upright)
    made = native.transcode(
        data,
        stored=stored,
        resized=resized,
        orientation=orientation,
        window=window,
        interpolation=recipe.filter,
        quality=settings["quality"],
        subsampling=settings["subsampling"],
        with_seek_table=recipe.wants_seek_table(copied=False),
        max_pixels=recipe.max_pixels,
    )
    if isinstance(made, native.Problem):
        return None
    geometry = Geometry(stored, orientation, upright, window)
    return describe(
        made.image,
        target,
        data,
        geometry=geometry,
        pixels=PixelSums(geometry.size[0] * geometry.size[1], made.sums, made.squares),
        enlarged=resized > stored,
        profile_unusable=not conversion.usable,
        turned=orientation != 1,
    )
