"""The image pipeline: it chooses the route of an image.

An image is opened only where a route needs more than its headers: a plain JPEG never meets Pillow. A file that the
kernel refuses is left to Pillow.
"""

from __future__ import annotations

from shardflow import native
from shardflow._orientation import orientation_of
from shardflow._pillow import map_codec_errors, open_image
from shardflow.errors import DecodeError
from shardflow.formats.image_types import is_jpeg
from shardflow.formats.jpeg_header import plain_header

from .arrays import pack_array
from .pillow import pack_opened
from .route import KEEP, EncodedImage, ImageRecipe
from .transcoding import transcode


def pack_image(data: bytes, recipe: ImageRecipe) -> EncodedImage:
    """Pack an image file; raise `DecodeError`, `EncodeError` or `TooLargeError` if it cannot be."""
    if recipe.format == "npy":
        return pack_array(data, recipe)
    target = recipe.target("JPEG")
    may_transcode = is_jpeg(data) and target.name == "JPEG" and native.available()
    header = plain_header(data) if may_transcode and recipe.format != KEEP else None
    if header is not None and header.size[0] * header.size[1] <= recipe.max_pixels:
        packed = transcode(data, recipe, header.size, 1, profile=header.profile, mode=header.mode)
        if packed is not None:
            return packed
    with map_codec_errors(DecodeError), open_image(data, max_pixels=recipe.max_pixels) as image:
        if may_transcode and header is None:
            profile, orientation = image.info.get("icc_profile"), orientation_of(image)
            is_resized = recipe.window(recipe.resized(image.size, target))[2:] != image.size
            if recipe.format != KEEP or is_resized or orientation != 1:  # otherwise it may be copied
                packed = transcode(data, recipe, image.size, orientation, profile=profile, mode=image.mode)
                if packed is not None:
                    return packed
        return pack_opened(data, image, recipe)
