"""Routes: the ways on which the bytes of a source image become those of a packed one.

    transcoding   a JPEG becomes a JPEG in its own colours, in one call of the native kernel
    pillow        any image that Pillow opens, converted to sRGB
    arrays        the values as they are stored, 8 or 16 bits, 1 to 16 channels

Each takes the bytes and an `ImageRecipe`, and returns an `EncodedImage`; `pipeline` chooses among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from PIL import Image

from shardflow import native
from shardflow.formats.image_types import ImageType
from shardflow.formats.labels import Label
from shardflow.formats.statistics import PixelSums, Statistics

from .geometry import Geometry, Size, Window

Filter = native.Interpolation
FILTERS: dict[Filter, Image.Resampling] = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "lanczos": Image.Resampling.LANCZOS,
}
"""The filters that kernel and Pillow have in common, all antialiased."""


KEEP = "keep"
"""The format of a recipe which keeps that of the source, and copies a file in which nothing has to be changed."""


class ImageRecipe(Protocol):
    """What the routes ask of a recipe. All of it is a function of the settings and the arguments."""

    @property
    def filter(self) -> Filter:
        """The filter of all resizes."""
        ...

    @property
    def format(self) -> str:
        """A name of `PACKED_TYPES`, or `KEEP`."""
        ...

    @property
    def max_pixels(self) -> int:
        """The most pixels of an image, before it is packed and after."""
        ...

    def target(self, found: str) -> ImageType:
        """Return the format that an image is packed in; `found` is Pillow's name of its present one."""
        ...

    def resized(self, stored: Size, target: ImageType) -> Size:
        """Return the size before the crop; raise EncodeError where it is too large."""
        ...

    def window(self, size: Size) -> Window:
        """Return the crop of a resized image."""
        ...

    def encoder_settings(self, target: ImageType) -> Mapping[str, Any]:
        """Return the settings of an encoder by Pillow's names."""
        ...

    def can_transcode(self, stored: Size, resized: Size) -> bool:
        """Return whether a JPEG may become the packed one in its own colours."""
        ...

    def wants_seek_table(self, *, copied: bool) -> bool:
        """Return whether a JPEG, copied or encoded, is to have a seek table."""
        ...


class EncodedImage(NamedTuple):
    """A packed image, and what statistics and annotations need to know of it."""

    image: bytes
    part: str  # its name in the sample: "jpg", "webp", "png" or "image.npy"
    pixels: PixelSums  # before encoding; of arrays none
    geometry: Geometry
    bytes_before: int  # size of the source
    done: tuple[str, ...]  # what was done to it, as names of `Statistics.counts`, sorted

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


def describe(
    image: bytes, target: ImageType, source: bytes, *, geometry: Geometry, pixels: PixelSums, **done: bool
) -> EncodedImage:
    """Return a packed image with what was done to its source; `done` are names of `Statistics.counts`."""
    return EncodedImage(
        image=image,
        part=target.parts[0],
        pixels=pixels,
        geometry=geometry,
        bytes_before=len(source),
        done=tuple(sorted(name for name, was in done.items() if was)),
    )
