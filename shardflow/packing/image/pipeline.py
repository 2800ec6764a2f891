"""The image pipeline: chooses the route from the bytes of a source image to a packed image.

    transcoding   a grey or YCbCr JPEG in sRGB becomes a JPEG in its own colours
    pillow        any image that Pillow opens, converted to sRGB
    arrays        the values as stored, 8 or 16 bits, 1 to 16 channels

Pillow opens an image only if a route needs more than its headers, so transcoding a plain JPEG does not involve Pillow.
Pillow decodes the files that the kernel refuses.
"""

from __future__ import annotations

from shardflow._colour import profile_conversion
from shardflow._orientation import orientation_of
from shardflow._pillow import map_codec_errors, open_image
from shardflow.errors import DecodeError
from shardflow.formats.image_types import PACKED_TYPES, is_jpeg
from shardflow.formats.jpeg_header import plain_header
from shardflow.formats.statistics import PixelSums
from shardflow.native import transcoding
from shardflow.native.binding import Problem
from shardflow.packing.recipe import KEEP, Recipe

from .arrays import pack_array
from .encoded_image import EncodedImage, Geometry, Size, describe, upright_size
from .pillow import pack_opened


def pack_image(data: bytes, recipe: Recipe) -> EncodedImage:
    """Pack an image file; raise `DecodeError`, `EncodeError` or `TooLargeError` if it cannot be packed."""
    if recipe.format == "npy":
        return pack_array(data, recipe)
    header = plain_header(data) if recipe.format == "jpeg" else None
    if header is not None and header.size[0] * header.size[1] <= recipe.max_pixels:
        packed = transcode(data, recipe, header.size, 1, profile=header.profile, mode=header.mode)
        if packed is not None:
            return packed
    with map_codec_errors(DecodeError), open_image(data, max_pixels=recipe.max_pixels) as image:
        if header is None and recipe.format in ("jpeg", KEEP) and is_jpeg(data):
            profile, orientation = image.info.get("icc_profile"), orientation_of(image)
            packed = transcode(data, recipe, image.size, orientation, profile=profile, mode=image.mode)
            if packed is not None:
                return packed
        return pack_opened(data, image, recipe)


def transcode(
    data: bytes, recipe: Recipe, stored: Size, orientation: int, *, profile: bytes | None, mode: str
) -> EncodedImage | None:
    """Pack a JPEG in its own colours; return None if it is better packed by Pillow.

    That is, if the file may be copied, the colours must change, the JPEG is damaged or of a rare kind, or there is no
    native kernel. One call of the kernel decodes, resizes, turns, crops and encodes a JPEG (`native.transcoding`).

    `mode` is Pillow's mode of the pixels to which `profile` applies.
    """
    target = PACKED_TYPES["jpeg"]
    geometry = Geometry.of(stored, orientation, recipe, target)
    # If only chroma is enlarged, it is rounded once more than by Pillow, which costs up to 0.5 dB.
    enlarges_chroma = min(geometry.resized) >= min(stored) and recipe.subsampling != "4:2:0"
    if enlarges_chroma or (recipe.format == KEEP and not geometry.is_change):
        return None
    conversion = profile_conversion(profile, mode)
    if conversion.transform is not None:
        return None
    made = transcoding.transcode(
        data,
        stored=stored,
        resized=upright_size(geometry.resized, orientation),  # which turns it back
        orientation=orientation,
        window=geometry.window,
        interpolation=recipe.filter,
        quality=recipe.quality,
        subsampling=recipe.subsampling,
        with_seek_table=recipe.seek_tables != "none",
        max_pixels=recipe.max_pixels,
    )
    if isinstance(made, Problem):
        return None
    pixels = PixelSums(geometry.size[0] * geometry.size[1], made.sums, made.squares)
    return describe(made.image, target, data, geometry, pixels, profile_unusable=not conversion.usable)
