"""Sums over pixels, from which the mean and the standard deviation per channel follow.

They are integers, so that they can be added in any order, by any number of workers, and give the same result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image


@dataclass(frozen=True, slots=True)
class PixelSums:
    """Number of pixels, and per channel (RGB) the sum of the values 0 … 255 and of their squares."""

    count: int = 0
    sums: tuple[int, ...] = (0, 0, 0)
    squares: tuple[int, ...] = (0, 0, 0)

    def __add__(self, other: PixelSums) -> PixelSums:
        return PixelSums(
            self.count + other.count,
            tuple(a + b for a, b in zip(self.sums, other.sums, strict=True)),
            tuple(a + b for a, b in zip(self.squares, other.squares, strict=True)),
        )

    @property
    def mean(self) -> tuple[float, ...] | None:
        """Per channel, in 0 … 1; None when there are no pixels."""
        return tuple(round(total / self.count / 255, 6) for total in self.sums) if self.count else None

    @property
    def std(self) -> tuple[float, ...] | None:
        """Per channel, of the whole population, in 0 … 1; None when there are no pixels."""
        if not self.count:
            return None
        spreads = (self.count * square - total**2 for total, square in zip(self.sums, self.squares, strict=True))
        return tuple(round(math.sqrt(spread) / self.count / 255, 6) for spread in spreads)


def measure(image: Image.Image) -> PixelSums:
    """Return the sums of an RGB image."""
    counts = np.array(image.histogram(), dtype=np.int64).reshape(3, 256)
    values = np.arange(256, dtype=np.int64)
    return PixelSums(
        image.width * image.height, tuple((counts @ values).tolist()), tuple((counts @ values**2).tolist())
    )
