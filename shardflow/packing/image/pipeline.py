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
from .route import EncodedImage, ImageRecipe
from .transcoding import transcode


def pack_image(data: bytes, recipe: ImageRecipe) -> EncodedImage:
    """Pack an image file; raise `DecodeError`, `EncodeError` or `TooLargeError` if it cannot be."""
    if recipe.packs_arrays:
        return pack_array(data, recipe)
    may_transcode = recipe.transcodes and is_jpeg(data) and native.available()
    header = plain_header(data) if may_transcode and not recipe.copies else None
    if header is not None and header.size[0] * header.size[1] <= recipe.max_pixels:
        packed = transcode(data, recipe, header.size, 1, profile=header.profile, mode=header.mode)
        if packed is not None:
            return packed
    with map_codec_errors(DecodeError), open_image(data, max_pixels=recipe.max_pixels) as image:
        if may_transcode and header is None:
            profile, orientation = image.info.get("icc_profile"), orientation_of(image)
            resized = recipe.resized(image.size, recipe.target("JPEG"))
            may_copy = recipe.copies and orientation == 1 and recipe.window(resized)[2:] == image.size
            if not may_copy:
                packed = transcode(data, recipe, image.size, orientation, profile=profile, mode=image.mode)
                if packed is not None:
                    return packed
        return pack_opened(data, image, recipe)
