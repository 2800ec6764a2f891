"""Transcoding: a JPEG becomes a smaller one without leaving its own colours.

It is decoded to planes of luma and chroma, at a reduced scale if twice the target is left for the filter. Each plane is
resized, turned, cropped and encoded again. Nothing is converted to RGB and back, and chroma is not upsampled to be
downsampled again: that is both faster and nearer to the original.

Grey images get neutral chroma. RGB without YCbCr, CMYK, 12 bits, arithmetic and lossless coding are
`Status.UNSUPPORTED`, and damage is a problem: use a general decoder.
"""

from __future__ import annotations

import ctypes
from typing import Literal, NamedTuple

from shardflow.errors import ConfigError
from shardflow.formats.image_limits import MAX_PIXELS, limits

from .binding import FILTERS, Limits, Problem, addresses, thread_decoder

Interpolation = Literal["bilinear", "bicubic", "lanczos"]

SAMPLINGS = {"4:4:4": (1, 1), "4:2:2": (2, 1), "4:2:0": (2, 2)}
"""Chroma subsamplings: how many samples of luma there are to one of chroma, across and down."""

TRANSCODING = "planes 1"
"""The computation: raised with every change of the bytes that come of a JPEG."""

_OVERSAMPLING = 2


class Transcoded(NamedTuple):
    """A transcoded image."""

    image: bytes
    sums: tuple[int, ...]  # over its pixels before they were encoded, as RGB, each with the chroma that it shares
    squares: tuple[int, ...]


class _Transcoding(ctypes.Structure):  # sf_transcoding
    _fields_ = (
        ("image", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("limits", Limits),
        ("stored", ctypes.c_int32 * 2),
        ("resized", ctypes.c_int32 * 2),
        ("orientation", ctypes.c_int32),
        ("window", ctypes.c_int32 * 4),
        *((name, ctypes.c_int32) for name in ("filter", "oversampling", "quality")),
        ("sampling", ctypes.c_int32 * 2),
        ("with_seek_table", ctypes.c_int32),
    )


class _Transcoded(ctypes.Structure):  # sf_transcoded
    _fields_ = (
        ("image", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("sums", ctypes.c_int64 * 3),
        ("squares", ctypes.c_int64 * 3),
    )


def transcode(
    payload: bytes | memoryview,
    *,
    stored: tuple[int, int],
    resized: tuple[int, int],
    orientation: int,
    window: tuple[int, int, int, int],
    interpolation: Interpolation,
    quality: int,
    subsampling: str,
    with_seek_table: bool,
    max_pixels: int = MAX_PIXELS,
) -> Transcoded | Problem:
    """Resize a JPEG, turn it upright, and encode a window of that as a baseline JPEG.

    Args:
        payload: The encoded image.
        stored: Its width and height in pixels.
        resized: Stored width and height after the resize, 1 … 65500 each.
        orientation: The orientation, 1 … 8, as in EXIF.
        window: Left, top, right and bottom in the upright resized image.
        interpolation: The filter; all are antialiased.
        quality: 1 … 100.
        subsampling: "4:4:4", "4:2:2" or "4:2:0", of the encoded image.
        with_seek_table: Write its seek table (`formats.seek_table`), where it can have one that is small enough.
        max_pixels: As of `decode_crops`.

    Returns:
        The image, or the problem that it has.

    Raises:
        ConfigError: An argument is out of its range.
        ShardflowError: There is no kernel.
    """
    if interpolation not in FILTERS or subsampling not in SAMPLINGS:
        raise ConfigError(f"expected a filter and a subsampling, found {interpolation!r} and {subsampling!r}")
    if not (1 <= orientation <= 8 and 1 <= quality <= 100 and min(resized) >= 1):
        raise ConfigError(f"out of range: orientation {orientation}, quality {quality}, or size {resized}")
    left, top, right, bottom = window
    images, sizes = addresses([payload])
    asked = _Transcoding(
        image=ctypes.cast(images, ctypes.POINTER(ctypes.c_void_p))[0],
        size=sizes[0],
        limits=Limits(*limits(max_pixels)),
        stored=stored,
        resized=resized,
        orientation=orientation,
        window=(left, top, right - left, bottom - top),
        filter=FILTERS[interpolation],
        oversampling=_OVERSAMPLING,
        quality=quality,
        sampling=SAMPLINGS[subsampling],
        with_seek_table=with_seek_table,
    )
    made = _Transcoded()
    problem = thread_decoder().transcode(asked, made)
    if problem is not None:
        return problem
    image = ctypes.string_at(made.image, made.size)
    return Transcoded(image, (*made.sums,), (*made.squares,))
