"""What was counted while packing: images and bytes, sizes before and after, classes, and what was done.

All of it is integers, so that statistics can be added in any order, by any number of workers, and come out the same.
Sides are counted by their first five binary digits, the others zero: 341 pixels count as 336. That is exact up to 31
pixels and within 6 % beyond, and no more than 16 numbers per doubling however many images there are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from shardflow.errors import ManifestError

_DIGITS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Counts over packed images; they start at zero, and `count` adds to them.

    Attributes:
        counts: "images", "bytes_before" and "bytes_after" of the images alone, and what was done to how many of them:
            "converted" from an embedded profile to sRGB, "enlarged", "first_frame" taken of several, "kept" byte for
            byte, "profile_unusable" and therefore not looked at, "turned" as the EXIF orientation says.
        classes: Label → images.
        widths_before, heights_before: Rounded side in pixels → images, of the upright sources.
        widths_after, heights_after: The same of the packed images.
    """

    counts: Counter[str] = field(default_factory=Counter)
    classes: Counter[int] = field(default_factory=Counter)
    widths_before: Counter[int] = field(default_factory=Counter)
    heights_before: Counter[int] = field(default_factory=Counter)
    widths_after: Counter[int] = field(default_factory=Counter)
    heights_after: Counter[int] = field(default_factory=Counter)

    def count(self, *, before: tuple[int, int], after: tuple[int, int], labels: Iterable[int], **counts: int) -> None:
        """Count one image: its size before and after, (width, height); its labels; and anything else by name."""
        for histogram, side in (
            (self.widths_before, before[0]),
            (self.heights_before, before[1]),
            (self.widths_after, after[0]),
            (self.heights_after, after[1]),
        ):
            histogram[_rounded(side)] += 1
        for label in labels:
            self.classes[label] += 1
        self.counts["images"] += 1
        for name, number in counts.items():
            self.counts[name] += number

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(**{slot.name: getattr(self, slot.name) + getattr(other, slot.name) for slot in fields(self)})

    def to_json(self) -> dict[str, dict[str, int]]:
        """Return what `json` can write."""
        columns = {slot.name: getattr(self, slot.name) for slot in fields(self)}
        return {name: {str(key): column[key] for key in sorted(column)} for name, column in columns.items()}


def from_json(content: Mapping[str, Mapping[str, int]]) -> Statistics:
    """Return what `to_json` made.

    Raises:
        ManifestError: Something else made it.
    """
    try:
        columns: dict[str, Any] = {
            name: Counter({key if name == "counts" else int(key): number for key, number in column.items()})
            for name, column in content.items()
        }
        statistics = Statistics(**columns)
    except (ValueError, TypeError, AttributeError) as error:
        raise ManifestError(f"not the statistics of a dataset: {type(error).__name__}: {error}") from error
    numbers = [number for column in columns.values() for number in column.values()]
    if not all(isinstance(number, int) and not isinstance(number, bool) and number > 0 for number in numbers):
        raise ManifestError("statistics must be integers above 0")
    return statistics


def median(histogram: Mapping[int, int]) -> int:
    """Return the (lower) median of what was counted; 0 when nothing was."""
    left = (sum(histogram.values()) + 1) // 2
    for value in sorted(histogram):
        left -= histogram[value]
        if left <= 0:
            return value
    return 0


def _rounded(side: int) -> int:
    dropped = max(0, side.bit_length() - _DIGITS)
    return side >> dropped << dropped


@dataclass(frozen=True, slots=True)
class PixelSums:
    """Number of pixels, and per channel (RGB) the sum of the values 0 … 255 and of their squares.

    From these integers follow the mean and the standard deviation, in whatever order they were added.
    """

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
