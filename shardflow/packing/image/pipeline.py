"""The image pipeline: chooses the route from the bytes of a source image to a packed image.

    transcoding   a grey or YCbCr JPEG in sRGB becomes a JPEG in its own colours
    pillow        any image that Pillow opens, converted to sRGB
    arrays        the values as stored, 8 or 16 bits, 1 to 16 channels

Pillow opens an image only if a route needs more than its headers, so transcoding a plain JPEG does not involve Pillow.
Pillow decodes the files that the kernel refuses.
"""

from __future__ import annotations

from shardflow import native
from shardflow._colour import profile_conversion
from shardflow._orientation import orientation_of
from shardflow._pillow import map_codec_errors, open_image
from shardflow.errors import DecodeError
from shardflow.formats.image_types import is_jpeg
from shardflow.formats.jpeg_header import plain_header
from shardflow.formats.statistics import PixelSums
from shardflow.native import transcoding
from shardflow.native.binding import Problem
from shardflow.packing.recipe import KEEP, Recipe

from .arrays import pack_array
from .encoded_image import EncodedImage, Geometry, describe, upright_size
from .pillow import pack_opened


def pack_image(data: bytes, recipe: Recipe) -> EncodedImage:
    """Pack an image file; raise `DecodeError`, `EncodeError` or `TooLargeError` if it cannot be packed."""
    if recipe.format == "npy":
        return pack_array(data, recipe)
    target = recipe.target("JPEG")
    may_transcode = is_jpeg(data) and target.name == "JPEG" and native.available()
    header = plain_header(data) if may_transcode and recipe.format != KEEP else None
    if header is not None and header.size[0] * header.size[1] <= recipe.max_pixels:
        geometry = recipe.geometry(header.size, 1, target)
        if (packed := transcode(data, recipe, geometry, profile=header.profile, mode=header.mode)) is not None:
            return packed
    with map_codec_errors(DecodeError), open_image(data, max_pixels=recipe.max_pixels) as image:
        if may_transcode and header is None:
            geometry = recipe.geometry(image.size, orientation_of(image), target)
            may_copy = recipe.format == KEEP and not geometry.is_change
            profile = image.info.get("icc_profile")
            packed = None if may_copy else transcode(data, recipe, geometry, profile=profile, mode=image.mode)
            if packed is not None:
                return packed
        return pack_opened(data, image, recipe)


def transcode(
    data: bytes, recipe: Recipe, geometry: Geometry, *, profile: bytes | None, mode: str
) -> EncodedImage | None:
    """Pack a JPEG in its own colours; return None if the colours must change, or the JPEG is damaged or of a rare kind.

    One call of the native kernel decodes, resizes, turns, crops and encodes it (`native.transcoding`).

    `mode` is Pillow's mode of the pixels to which `profile` applies.
    """
    conversion = profile_conversion(profile, mode)
    if conversion.transform is not None or not recipe.can_transcode(geometry):
        return None
    target = recipe.target("JPEG")
    settings = recipe.encoder_settings(target)
    made = transcoding.transcode(
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
    if isinstance(made, Problem):
        return None
    pixels = PixelSums(geometry.size[0] * geometry.size[1], made.sums, made.squares)
    return describe(made.image, target, data, geometry, pixels, profile_unusable=not conversion.usable)
