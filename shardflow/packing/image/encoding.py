"""Encoding: RGB pixels as the bytes that are packed, without any metadata.

JPEGs are baseline with libjpeg's standard Huffman tables: optimised ones save 3 % and cost 14 % more time.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import PIL
from PIL import Image, features

from shardflow import native
from shardflow._pillow import HEIF_VERSION
from shardflow.formats import image_array, seek_table
from shardflow.formats.labels import Label
from shardflow.formats.statistics import PixelSums, Statistics

from .geometry import Geometry

SUBSAMPLINGS = tuple(native.SAMPLINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of packed images: Pillow's name for it, the part in the shard, and the longest side it can have."""

    codec: str
    part: str
    longest: int


FORMATS = {
    "jpeg": Format(codec="JPEG", part="jpg", longest=65_500),
    "webp": Format(codec="WEBP", part="webp", longest=16_383),
    "png": Format(codec="PNG", part="png", longest=65_535),
    "npy": Format(codec="NPY", part=image_array.PART, longest=65_535),
}


class EncodedImage(NamedTuple):
    """A packed image, and what statistics and annotations need to know of it."""

    image: bytes
    part: str  # its name in the sample: "jpg", "webp", "png" or "image.npy"
    pixels: PixelSums  # before encoding; of arrays none
    geometry: Geometry
    bytes_before: int  # size of the source
    done: tuple[str, ...]  # what was done to it, as names of `Statistics.counts`

    def count_in(self, statistics: Statistics, label: Label, annotations: Mapping[str, int]) -> None:
        """Add it to statistics, with its label or labels, and the number of its annotations by kind."""
        statistics.count(
            before=self.geometry.upright,
            after=self.geometry.size,
            labels=(label,) if isinstance(label, int) else label or (),
            bytes_before=self.bytes_before,
            bytes_after=len(self.image),
            **dict.fromkeys(self.done, 1),
            **annotations,
        )


def encode(pixels: Image.Image, target: Format, quality: int, subsampling: str) -> bytes:
    """Return an RGB image as a file. PNG ignores `quality`, and only JPEG uses `subsampling`."""
    pixels.info = {}  # a comment of the source would be written as well
    settings: dict[str, Any] = {} if target.codec == "PNG" else {"quality": quality}
    if target.codec == "JPEG":
        settings["subsampling"] = subsampling
    buffer = io.BytesIO()
    pixels.save(buffer, target.codec, **settings)
    return buffer.getvalue()


def set_seek_table(jpeg: bytes, max_pixels: int, *, wanted: bool) -> bytes:
    """Return a JPEG with the seek table that is made here; without one if none is wanted, or none can be made.

    A copied file can hold one already, made by anyone for any other picture: it never stays.
    """
    segment = native.seek_table(jpeg, max_pixels=max_pixels) if wanted and native.available() else None
    return seek_table.insert(jpeg, segment or b"")


def can_copy(image: Image.Image, data: bytes) -> bool:
    """Whether every reader takes the file as it is: 8-bit RGB and one frame; a JPEG must be baseline as well."""
    if image.mode != "RGB" or image.has_transparency_data:
        return False
    if image.format == "JPEG":
        return _is_baseline(data)
    if image.format == "PNG":
        return data[24] == 8  # bits per channel (W3C PNG 11.2.2); Pillow delivers 16 bits as 8
    return image.format == "WEBP"


def _is_baseline(data: bytes) -> bool:
    position = 2
    while data[position + 1] in (0xFF, *range(0xE0, 0xF0), 0xC4, 0xDB, 0xDD, 0xFE):
        fill = data[position + 1] == 0xFF
        position += 1 if fill else 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    return data[position : position + 2] == b"\xff\xc0"


def pixel_sums(image: Image.Image) -> PixelSums:
    """Return the sums of an RGB image."""
    counts = np.array(image.histogram(), dtype=np.int64).reshape(3, 256)
    values = np.arange(256, dtype=np.int64)
    return PixelSums(
        image.width * image.height, tuple((counts @ values).tolist()), tuple((counts @ values**2).tolist())
    )


def codec_versions() -> dict[str, str]:
    """Return the versions of the libraries that the packed bytes depend on; "none" for a missing one of Pillow."""
    names = {
        "libavif": ("avif",),
        "libjpeg": ("libjpeg_turbo", "jpg"),
        "littlecms": ("littlecms2",),
        "webp": ("webp",),
        "zlib": ("zlib_ng", "zlib"),
    }
    found = {library: next(filter(None, map(features.version, known)), "none") for library, known in names.items()}
    if HEIF_VERSION is not None:
        found["pillow-heif"] = HEIF_VERSION
    transcoding = native.TRANSCODING if native.available() else "none"
    return {"pillow": PIL.__version__, **found, "kernel": native.version(), "transcoding": transcoding}
