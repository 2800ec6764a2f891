"""Image types: a table of the formats that shardflow reads, and the facts in an image's first bytes.

To add a format, add a row: folders, tars and samples then know it. Loaders decode JPEG with the native kernel, or with
torchvision as its fallback, arrays with `image_array`, and other formats with Pillow. `pack` writes the formats that
have a `packed_as` name.

Width and height are read from the headers of JPEG (`jpeg_header`), PNG (W3C PNG 11.2.2, IHDR) and WebP (RFC 9649), and
of arrays. They are a hint for planning a crop; the decoder has the last word.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from . import image_array
from .jpeg_header import frame_of

_JPEG = re.compile(rb"\xff\xd8")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageType:
    """An image format."""

    name: str  # Pillow's name of the format: "JPEG"
    parts: tuple[str, ...]  # part names and file extensions of such an image: "jpg"
    signature: re.Pattern[bytes]  # matches the first bytes
    # Returns width and height from the header; None where only a decoder knows them.
    read_size: Callable[[memoryview | bytes], tuple[int, int]] | None = None
    in_shards: bool = False  # whether readers of a dataset take such a part for the image; `pack` takes every format
    animated: bool = False  # whether a file can hold an animation or several pages, of which the first is packed
    for_masks: bool = False  # whether a mask can have this format, which must be lossless
    # Peak memory of decoding and cropping, in bytes per pixel; for JPEGs of several scans see `image_limits`.
    decode_bytes: int = 10
    pillow_feature: str | None = None  # Pillow's name of the codec, if some builds of Pillow lack it
    extra: str | None = None  # the extra of shardflow without which Pillow cannot read the format: "heic"
    plugin: tuple[str, str] | None = None  # a package, and its module that registers the format with Pillow
    by_pillow: bool = True  # whether Pillow decodes it
    packed_as: str = ""  # what a recipe calls the format: "jpeg"; empty where `pack` does not write it
    longest: int = 0  # the longest side in pixels that a packed image can have
    is_lossy: bool = False  # whether its encoder has a `quality`, and most files differ from the original pixels


def _jpeg_size(payload: memoryview | bytes) -> tuple[int, int]:
    frame = frame_of(payload)
    return (0, 0) if frame is None else (frame.width, frame.height)


def _png_size(payload: memoryview | bytes) -> tuple[int, int]:
    if len(payload) < 24 or payload[12:16] != b"IHDR":
        return 0, 0
    return int.from_bytes(payload[16:20], "big"), int.from_bytes(payload[20:24], "big")


def _webp_size(payload: memoryview | bytes) -> tuple[int, int]:
    """Return width and height of the canvas; (0, 0) if the first chunk does not begin an image."""
    chunk, data = bytes(payload[12:16]), bytes(payload[20:30])
    if len(data) < 10:
        return 0, 0
    if chunk == b"VP8X":
        return 1 + int.from_bytes(data[4:7], "little"), 1 + int.from_bytes(data[7:10], "little")
    if chunk == b"VP8L":
        bits = int.from_bytes(data[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if chunk == b"VP8 ":
        return int.from_bytes(data[6:8], "little") & 0x3FFF, int.from_bytes(data[8:10], "little") & 0x3FFF
    return 0, 0


def _array_size(payload: memoryview | bytes) -> tuple[int, int]:
    height, width, *_ = image_array.shape(payload)
    return width, height


IMAGE_TYPES = (
    ImageType(
        name="JPEG",
        parts=("jpg", "jpeg"),
        signature=_JPEG,
        read_size=_jpeg_size,
        in_shards=True,
        decode_bytes=4,
        packed_as="jpeg",
        longest=65_500,
        is_lossy=True,
    ),
    ImageType(
        name="PNG",
        parts=("png",),
        signature=re.compile(rb"\x89PNG\r\n\x1a\n"),
        read_size=_png_size,
        in_shards=True,
        animated=True,
        for_masks=True,
        packed_as="png",
        longest=65_535,
    ),
    ImageType(
        name="WEBP",
        parts=("webp",),
        signature=re.compile(rb"(?s)RIFF....WEBP"),
        read_size=_webp_size,
        in_shards=True,
        animated=True,
        decode_bytes=16,
        packed_as="webp",
        longest=16_383,
        is_lossy=True,
    ),
    ImageType(name="BMP", parts=("bmp",), signature=re.compile(rb"(?s)BM....\0{4}"), for_masks=True),
    ImageType(name="GIF", parts=("gif",), signature=re.compile(rb"GIF8[79]a"), animated=True, for_masks=True),
    ImageType(
        name="TIFF", parts=("tif", "tiff"), signature=re.compile(rb"II[*+]\0|MM\0[*+]"), animated=True, for_masks=True
    ),
    ImageType(name="PPM", parts=("ppm", "pgm"), signature=re.compile(rb"P[1-6]\s+[\d#]")),
    ImageType(
        name="AVIF",
        parts=("avif",),
        signature=re.compile(rb"(?s)....ftypavi[fs]"),
        in_shards=True,
        animated=True,
        decode_bytes=16,
        pillow_feature="avif",
        is_lossy=True,
    ),
    ImageType(
        name="HEIF",
        parts=("heic", "heif", "hif"),
        signature=re.compile(rb"(?s)....ftyp(hei[cmsx]|hev[cx]|mif1|msf1)"),
        animated=True,
        decode_bytes=16,
        extra="heic",
        plugin=("pillow-heif", "pillow_heif.HeifImagePlugin"),
        is_lossy=True,
    ),
    ImageType(
        name="NPY",
        parts=(image_array.PART,),
        signature=re.compile(re.escape(image_array.MAGIC)),
        read_size=_array_size,
        in_shards=True,
        by_pillow=False,
        packed_as="npy",
        longest=65_535,
    ),
)
"""All formats that are read, in the order in which messages name them."""

PACKED_TYPES = {each.packed_as: each for each in IMAGE_TYPES if each.packed_as}
"""The formats that `pack` writes, by a recipe's names of them."""

SOURCE_PARTS = tuple(part for each in IMAGE_TYPES for part in each.parts)
"""Part names and file extensions that `pack` takes for images."""

UNREAD_EXTENSIONS = frozenset(
    {"apng", "arw", "bpg", "cr2", "cr3", "dcm", "dds", "dib", "dng", "exr", "j2k", "jfif", "jif", "jp2", "jpe", "jpf"}
    | {"jpx", "jxl", "jxr", "nef", "orf", "pam", "pbm", "pcx", "pnm", "psd", "raf", "rw2", "tga", "xcf"}
)
"""Extensions of image formats that `pack` does not read: it counts and reports such files."""

IMAGE_PARTS = frozenset(part for each in IMAGE_TYPES if each.in_shards for part in each.parts)
"""Parts that hold an image in a dataset; the first such part of a sample is its image."""


_BY_PART = {part: each for each in IMAGE_TYPES for part in each.parts}
_BY_NAME = {each.name: each for each in IMAGE_TYPES}
_BY_NAME["MPO"] = _BY_NAME["JPEG"]  # a JPEG that is followed by further pictures


def type_named(name: str) -> ImageType | None:
    """Return the format by its name in Pillow; None if `IMAGE_TYPES` lacks it."""
    return _BY_NAME.get(name)


def type_of_part(part: str) -> ImageType | None:
    """Return the format of an image part, or of a file with this extension; None if `IMAGE_TYPES` lacks it."""
    return _BY_PART.get(part)


def image_type(payload: memoryview | bytes) -> ImageType | None:
    """Return the format whose signature an encoded image begins with; None if `IMAGE_TYPES` lacks it."""
    return next((each for each in IMAGE_TYPES if each.signature.match(payload)), None)


def is_jpeg(payload: memoryview | bytes) -> bool:
    """Return whether an encoded image begins with the signature of a JPEG."""
    return _JPEG.match(payload) is not None


def jpeg_components(payload: memoryview | bytes) -> int:
    """Return the number of components of a JPEG: 1 is grey, 3 colour, 4 CMYK; 0 for other data or no header."""
    frame = frame_of(payload) if is_jpeg(payload) else None
    return 0 if frame is None else frame.components


def image_size(payload: memoryview | bytes) -> tuple[int, int]:
    """Return (width, height) in pixels as stored, before any EXIF orientation; (0, 0) when they are not known."""
    found = image_type(payload)
    width, height = found.read_size(payload) if found is not None and found.read_size is not None else (0, 0)
    # A JPEG may state its height after its first scan (DNL); its header then has a height of 0.
    return (width, height) if width and height else (0, 0)
