"""Transcoding: resizes a JPEG in its own colour space.

It is decoded to planes of luma and chroma, at a reduced scale if that is still twice the target size. Each plane is
resized, turned, cropped and encoded. Skipping the conversion to RGB and the upsampling of chroma is faster, and closer
to the original.

Grey images get neutral chroma. JPEGs in RGB, CMYK, 12 bits, arithmetic or lossless coding are `Status.UNSUPPORTED`, and
damage is a problem: use a general decoder.
"""

from __future__ import annotations

import ctypes
from typing import Literal, NamedTuple

from shardflow.errors import ConfigError
from shardflow.formats.image_limits import MAX_PIXELS

from .binding import FILTERS, Limits, Problem, Status, addresses, thread_decoder, why_missing

Interpolation = Literal["bilinear", "bicubic", "lanczos"]

SAMPLINGS = {"4:4:4": (1, 1), "4:2:2": (2, 1), "4:2:0": (2, 2)}
"""Chroma subsampling → the number of luma samples per chroma sample, horizontally and vertically."""

TRANSCODING = "planes 1"
"""The version of the computation, raised with every change of its output bytes."""

_OVERSAMPLING = 2


class Transcoded(NamedTuple):
    """A transcoded image."""

    image: bytes
    sums: tuple[int, ...]  # per channel in RGB, over the pixels before encoding, with subsampled chroma
    squares: tuple[int, ...]  # sums of squares


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
    """Resize a JPEG, turn it upright, and encode a window of it as a baseline JPEG.

    Args:
        payload: The encoded image.
        stored: Its width and height in pixels.
        resized: Width and height after the resize, before turning, 1 … 65500 each.
        orientation: The EXIF orientation, 1 … 8.
        window: Left, top, right and bottom in the upright resized image.
        interpolation: The filter; all are antialiased.
        quality: 1 … 100.
        subsampling: "4:4:4", "4:2:2" or "4:2:0", of the encoded image.
        with_seek_table: Write a seek table (`formats.seek_table`), if it is small enough.
        max_pixels: As for `decode_views`.

    Returns:
        The image, or its problem: without a kernel, `Status.UNSUPPORTED`.

    Raises:
        ConfigError: An argument is out of its range.
    """
    if interpolation not in FILTERS or subsampling not in SAMPLINGS:
        raise ConfigError(f"expected a filter and a subsampling, found {interpolation!r} and {subsampling!r}")
    if not (1 <= orientation <= 8 and 1 <= quality <= 100 and min(resized) >= 1):
        raise ConfigError(f"out of range: orientation {orientation}, quality {quality}, or size {resized}")
    if missing := why_missing():
        return Problem(0, Status.UNSUPPORTED, missing)
    left, top, right, bottom = window
    images, sizes = addresses([payload])
    asked = _Transcoding(
        image=ctypes.cast(images, ctypes.POINTER(ctypes.c_void_p))[0],
        size=sizes[0],
        limits=Limits(max_pixels),
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
