"""The route of Pillow: any image that Pillow opens becomes RGB in sRGB, and is encoded without metadata, or copied.

    decode   JPEGs at a reduced scale if that is enough; the first of several frames
    8 bits   16 bits are scaled, alpha is composited on white, palettes and CMYK are converted (`_colour`)
    resize   antialiased, aspect ratio kept
    convert  from an embedded colour profile to sRGB (`_colour`)
    turn     according to the EXIF or XMP orientation (`_orientation`)
    crop     to the centre, if the recipe has `square`
    encode   or copy the file, if it needs no change and its format is kept
    index    the scan of a JPEG (`formats.seek_table`)

JPEGs are decoded at 1/2, 1/4 or 1/8 by libjpeg's DCT scaling, as long as twice the target size is left for the filter.

Where the native kernel is built, it decodes and resizes JPEGs that change their size, in half of Pillow's time on small
originals. Decoder and filter are the same, but rounding is not: few values differ, by one level, seldom by two. So a
recipe's digest names the kernel in use, and a pack that is resumed with another kernel starts over instead of mixing
the two. Pillow decodes the files that the kernel refuses.

Packed JPEGs are baseline with libjpeg's standard Huffman tables: optimised tables save 3 % and cost 14 % more time.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageFile

from shardflow import native
from shardflow._colour import profile_conversion, to_8_bits
from shardflow._orientation import apply_orientation, load_tiff, orientation_of
from shardflow._pillow import map_codec_errors, open_image
from shardflow.errors import EncodeError, TooLargeError
from shardflow.formats import seek_table
from shardflow.formats.image_types import ImageType, is_jpeg, type_named
from shardflow.formats.jpeg_header import BASELINE, frame_of
from shardflow.formats.statistics import PixelSums
from shardflow.native.binding import Status
from shardflow.packing.recipe import FILTERS, KEEP, Recipe

from .encoded_image import EncodedImage, Geometry, Size, describe

_BRIGHT_16_BITS = 1 << 14
"""A quarter of the range of 16 bits: images with lower values, as of 12-bit cameras, are nearly black in 8 bits."""


def pack_opened(data: bytes, image: ImageFile.ImageFile, recipe: Recipe) -> EncodedImage:
    """Pack an image file that Pillow has opened; call this in `map_codec_errors(DecodeError)`."""
    loaded_upright = image.format == "TIFF" and load_tiff(image)
    stored, kind = image.size, type_named(image.format or "")
    target = recipe.target(kind)
    geometry = Geometry.of(stored, 1, recipe, target)
    conversion = profile_conversion(image.info.get("icc_profile"), image.mode)
    more_frames = has_more_frames(image, kind, data, recipe.max_pixels)
    pixels = _decode_resized(image, data, geometry.resized, recipe, as_cmyk=conversion.mode == "CMYK")
    if not loaded_upright and (orientation := orientation_of(image)) != 1:  # known once it is loaded
        geometry = Geometry.of(stored, orientation, recipe, target)
    is_changed = geometry.is_change or conversion.transform is not None or more_frames
    kept = recipe.format == KEEP and not is_changed and _can_copy(image, data, target)
    with map_codec_errors(EncodeError):
        pixels = apply_orientation(conversion.apply(pixels), geometry.orientation)
        if geometry.size != pixels.size:
            pixels = pixels.crop(geometry.window)
        return describe(
            _with_seek_table(data if kept else _encode(pixels, target, recipe), target, recipe, copied=kept),
            target,
            data,
            geometry,
            _pixel_sums(pixels),
            converted=conversion.transform is not None,
            dark_16_bits=_is_dark(image),
            first_frame=more_frames,
            kept=kept,
            on_white=_shows_through(image),
            profile_unusable=not conversion.usable,
            turned=loaded_upright or geometry.orientation != 1,
        )


def _is_dark(image: Image.Image) -> bool:
    """Return whether a loaded image has 16 bits, and values that are nearly black in 8 bits."""
    return image.mode.startswith("I;16") and 0 < image.getextrema()[1] < _BRIGHT_16_BITS  # type: ignore[operator]


def _shows_through(image: Image.Image) -> bool:
    """Return whether a loaded image has pixels that are not opaque, which are composited on white."""
    if image.mode in ("LA", "RGBA"):
        return bool(image.getextrema()[-1][0] < 255)  # type: ignore[index] # of several bands
    return image.has_transparency_data


def _decode_resized(
    image: ImageFile.ImageFile, data: bytes, size: Size, recipe: Recipe, *, as_cmyk: bool
) -> Image.Image:
    """Return the pixels of an opened image, resized to `size`: "L", "RGB", or "CMYK" with `as_cmyk`."""
    if size != image.size and is_jpeg(data) and native.available():
        pixels = np.empty((size[1], size[0], 3), np.uint8)
        problem = native.decode_resized(data, pixels, interpolation=recipe.filter, max_pixels=recipe.max_pixels)
        if problem is None:
            return Image.fromarray(pixels)
        if problem.status is Status.TOO_LARGE:
            raise TooLargeError(problem.message)
    drafted = image.draft(None, (2 * size[0], 2 * size[1]))
    image.load()
    unsized = image if as_cmyk else to_8_bits(image)
    if unsized.size == size:
        return unsized
    # DCT scaling rounds up a size that is not a multiple of 8; the box excludes the added pixels.
    return unsized.resize(size, FILTERS[recipe.filter], box=drafted[1] if drafted else None)


def has_more_frames(image: Image.Image, kind: ImageType | None, data: bytes, max_pixels: int) -> bool:
    """Return whether an opened image of this format is the first of several in its file."""
    # Never for JPEGs: phones store a gain map or a second view after the image.
    if kind is None or not kind.animated:
        return False
    try:
        # `is_animated` moves a GIF to its second frame, so ask another instance: this one is decoded later.
        probe = open_image(data, max_pixels=max_pixels, formats=("GIF",)) if image.format == "GIF" else image
        return bool(getattr(probe, "is_animated", False))
    except Exception:  # a damaged second frame
        return False


def _can_copy(image: Image.Image, data: bytes, target: ImageType) -> bool:
    """Return whether every reader takes the file as it is: opaque 8-bit RGB; a JPEG must also be baseline."""
    if image.format != target.name or image.mode != "RGB" or image.has_transparency_data:
        return False
    if image.format == "JPEG":
        return (frame := frame_of(data)) is not None and frame.marker == BASELINE
    # The bits per channel of a PNG (W3C PNG 11.2.2): Pillow delivers 16 bits as 8.
    return image.format != "PNG" or data[24] == 8


def _encode(pixels: Image.Image, target: ImageType, recipe: Recipe) -> bytes:
    """Return an RGB image encoded as a file."""
    pixels.info = {}  # a comment of the source would be written as well
    buffer = io.BytesIO()
    pixels.save(buffer, target.name, **recipe.encoder_settings(target))
    return buffer.getvalue()


def _with_seek_table(file: bytes, target: ImageType, recipe: Recipe, *, copied: bool) -> bytes:
    """Return a packed file; a JPEG with a new seek table, or without one.

    A copied file can already hold a table, made by anyone for any picture: it is always removed.
    """
    if target.name != "JPEG":
        return file
    is_wanted = recipe.seek_tables == "all" or (recipe.seek_tables == "encoded" and not copied)
    segment = native.seek_table(file, max_pixels=recipe.max_pixels) if is_wanted and native.available() else None
    return seek_table.insert(file, segment or b"")


def _pixel_sums(image: Image.Image) -> PixelSums:
    """Return the sums of an RGB image."""
    counts = np.array(image.histogram(), dtype=np.int64).reshape(3, 256)
    values = np.arange(256, dtype=np.int64)
    return PixelSums(
        image.width * image.height, tuple((counts @ values).tolist()), tuple((counts @ values**2).tolist())
    )
