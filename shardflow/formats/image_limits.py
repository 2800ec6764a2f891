"""Image limits: how large an image may be, decided from its header, before anything is allocated for it.

A few hundred bytes can announce gigabytes of pixels, or thousands of passes over them. So every decoder checks these
limits first: the native kernel, torchvision, Pillow and the GPU. One number, `max_pixels`, scales all but the last:

    pixels           `max_pixels`, by default 110 million: phones take 108
    memory           9 bytes for each allowed pixel, by default 0.99 GB; the formats need different amounts
    pixels x scans   15 for each allowed pixel: most progressive JPEGs have 10 scans, and CMYK JPEGs have 18
    scans            500, however small the image is

Only Pillow knows the size of a TIFF, BMP, PPM, AVIF or HEIF image. `_pillow` checks it between opening and decoding.

Sources: ITU-T T.81, B.2 (JPEG); GIF89a specification, section 18.
"""

from __future__ import annotations

from shardflow.errors import TooLargeError

from . import image_array
from .image_types import ImageType, image_size, image_type
from .jpeg_header import SOS, frame_in, segments

MAX_PIXELS = 110_000_000
"""The default limit for the pixels of an image."""

REMEDY = "raise max_pixels if the image is meant to be so large"
"""The advice of messages about the limit."""

BYTES_PER_PIXEL, SCANS_PER_PIXEL, MAX_SCANS = 9, 15, 500
"""The limits of memory and of the pixels of all scans, for each pixel that is allowed; and the limit of scans."""


def check_size(kind: ImageType, width: int, height: int, max_pixels: int = MAX_PIXELS) -> None:
    """Raise TooLargeError if an image of this format and size must not be decoded."""
    _check(width, height, kind.decode_bytes * width * height, max_pixels)


def check_array(height: int, width: int, channels: int, value_bytes: int, max_pixels: int = MAX_PIXELS) -> None:
    """Raise TooLargeError if an image array must not be cropped; cropping takes four more bytes per value (float32)."""
    _check(width, height, (value_bytes + 4) * channels * width * height, max_pixels)


def check_image(payload: memoryview | bytes, max_pixels: int = MAX_PIXELS) -> None:
    """Raise TooLargeError if the header of an encoded image exceeds a limit."""
    kind = image_type(payload)
    if kind is None:
        return
    if kind.name == "JPEG":
        _check_jpeg(kind, payload, max_pixels)
    elif kind.name == "NPY":
        check_array(*image_array.shape(payload), max_pixels)
    elif kind.name == "GIF":
        width, height = (int.from_bytes(payload[at : at + 2], "little") for at in (6, 8))
        check_size(kind, width, height, max_pixels)
    else:
        check_size(kind, *image_size(payload), max_pixels)


def _check(width: int, height: int, memory_bytes: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise TooLargeError(f"has {width:,} x {height:,} pixels; the limit is {max_pixels:,} pixels; {REMEDY}")
    most = BYTES_PER_PIXEL * max_pixels
    if memory_bytes > most:
        raise TooLargeError(
            f"has {width:,} x {height:,} pixels, which take {memory_bytes:,} bytes to decode in this coding; the limit "
            f"is {most:,} bytes; {REMEDY}"
        )


def _check_jpeg(kind: ImageType, payload: memoryview | bytes, max_pixels: int) -> None:
    frame, scans = None, 0
    for segment in segments(payload):
        if frame is None:
            frame = frame_in(payload, segment)
            if frame is not None:
                check_size(kind, frame.width, frame.height, max_pixels)
        elif segment.marker == SOS:
            scans += 1
            components = bytes(payload[segment.begin + 4 : segment.end])[:1]
            if scans == 1 and not frame.is_progressive and components == bytes([frame.components]):
                return  # decoded row by row
            # Two bytes of each component are kept between scans; the estimate ignores what subsampling saves.
            bytes_per_pixel = kind.decode_bytes + 2 * frame.components
            _check(frame.width, frame.height, bytes_per_pixel * frame.pixels, max_pixels)
            size, most = f"{frame.width:,} x {frame.height:,} pixels", SCANS_PER_PIXEL * max_pixels
            if scans > MAX_SCANS:
                raise TooLargeError(f"has {size} in more than {MAX_SCANS} scans, which is the limit; encode it again")
            if scans * frame.pixels > most:
                problem = f"has {size} in {scans} scans or more; the limit for all scans is {most:,} pixels"
                raise TooLargeError(f"{problem}; {REMEDY}")
