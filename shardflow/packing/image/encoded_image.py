"""What a recipe makes of one image."""

from __future__ import annotations

from typing import NamedTuple

from shardflow.formats.statistics import PixelSums, Statistics

from .geometry import Geometry


class EncodedImage(NamedTuple):
    """An image as it is packed, and what is to be known of it.

    Attributes:
        image: The file.
        part: Its name in the sample: "jpg", "webp" or "png".
        pixels: Sums over the pixels before encoding.
        geometry: Where they were in the source.
        bytes_before: Size of the source.
        done: What was done to it, in the words of `Statistics.counts`.
    """

    image: bytes
    part: str
    pixels: PixelSums
    geometry: Geometry
    bytes_before: int
    done: tuple[str, ...]

    def count_in(self, statistics: Statistics, label: int | tuple[int, ...] | None) -> None:
        """Add it to statistics, with its label or labels."""
        statistics.count(
            before=self.geometry.upright,
            after=self.geometry.size,
            labels=(label,) if isinstance(label, int) else label or (),
            bytes_before=self.bytes_before,
            bytes_after=len(self.image),
            **dict.fromkeys(self.done, 1),
        )
