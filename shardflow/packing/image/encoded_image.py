"""The encoded image: a packed image with what was done to its source. Each route makes one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from shardflow.formats.image_types import ImageType
from shardflow.formats.labels import Label
from shardflow.formats.statistics import PixelSums, Statistics

from .geometry import Geometry


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
    image: bytes, target: ImageType, source: bytes, geometry: Geometry, pixels: PixelSums, **done: bool
) -> EncodedImage:
    """Return a packed image with what was done to its source: what its geometry says, and `done` by other names."""
    done = {"enlarged": geometry.resized > geometry.upright, "turned": geometry.orientation != 1, **done}
    names = sorted(name for name, was in done.items() if was)
    return EncodedImage(image, target.parts[0], pixels, geometry, len(source), tuple(names))
