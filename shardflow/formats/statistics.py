"""Statistics: counts over the packed images: bytes, sizes before and after, classes, and operations.

All counts are integers, so sums are the same in any order and for any number of workers. Sides are rounded down to
their first five binary digits: 341 pixels count as 336. This is exact up to 31 pixels and within 6 % beyond, and a
histogram has at most 16 bins per doubling.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from shardflow.errors import ManifestError

from .json_object import JsonObject, entry

_DIGITS = 5


def _write(counter: Counter[Any]) -> dict[str, int]:
    return {str(key): counter[key] for key in sorted(counter)}


def _read(column: Mapping[str, int], key: Callable[[str], Any] = int) -> Counter[Any]:
    if not all(type(number) is int and number > 0 for number in column.values()):
        raise ManifestError("statistics must be integers above 0")
    return Counter({key(name): number for name, number in column.items()})


_HISTOGRAM = entry(write=_write, read=_read)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics(JsonObject):
    """Counts over packed images; they start at zero, and `count` adds to them.

    Attributes:
        counts: "images", "bytes_before" and "bytes_after" of the images alone; the number of images that were
            "converted" from an embedded profile to sRGB, "enlarged", reduced to the "first_frame" of several, "kept" as
            encoded, composited "on_white" because of transparency, "turned" upright, whose broken profile was ignored
            ("profile_unusable"), or whose 16 bits have values below a quarter of the range ("dark_16_bits"); the main
            images that are arrays, by bits and channels ("16 bits in 1 channel"); and the numbers of "masks", "boxes",
            "boxes_outside" of the packed image, and "keypoints", without missing points.
        classes: Label → number of images.
        widths_before, heights_before: Rounded side in pixels → number of images, of the upright sources.
        widths_after, heights_after: The same for the packed images.
    """

    counts: Counter[str] = field(
        default_factory=Counter, metadata=entry(write=_write, read=functools.partial(_read, key=str))
    )
    classes: Counter[int] = field(default_factory=Counter, metadata=_HISTOGRAM)
    widths_before: Counter[int] = field(default_factory=Counter, metadata=_HISTOGRAM)
    heights_before: Counter[int] = field(default_factory=Counter, metadata=_HISTOGRAM)
    widths_after: Counter[int] = field(default_factory=Counter, metadata=_HISTOGRAM)
    heights_after: Counter[int] = field(default_factory=Counter, metadata=_HISTOGRAM)

    def count(self, *, before: tuple[int, int], after: tuple[int, int], labels: Iterable[int], **counts: int) -> None:
        """Count one image: its size before and after, (width, height); its labels; and anything else by name."""
        histograms = self.widths_before, self.heights_before, self.widths_after, self.heights_after
        for histogram, side in zip(histograms, (*before, *after), strict=True):
            histogram[_rounded(side)] += 1
        self.classes.update(labels)
        self.counts.update(images=1, **counts)

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(**{slot.name: getattr(self, slot.name) + getattr(other, slot.name) for slot in fields(self)})

    def __sub__(self, other: Statistics) -> Statistics:
        """Return the counts without those of some images."""
        return Statistics(**{slot.name: getattr(self, slot.name) - getattr(other, slot.name) for slot in fields(self)})


def median(histogram: Mapping[int, int]) -> int:
    """Return the lower median of a histogram, value → count; 0 if it is empty."""
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
class PixelSums(JsonObject):
    """Number of pixels, and per channel (RGB) the sum of the values 0 … 255 and of their squares, all integers."""

    count: int = 0
    sums: tuple[int, ...] = field(default=(0, 0, 0), metadata=entry(read=tuple))
    squares: tuple[int, ...] = field(default=(0, 0, 0), metadata=entry(read=tuple))

    def __add__(self, other: PixelSums) -> PixelSums:
        return PixelSums(
            self.count + other.count,
            tuple(a + b for a, b in zip(self.sums, other.sums, strict=True)),
            tuple(a + b for a, b in zip(self.squares, other.squares, strict=True)),
        )

    @property
    def mean(self) -> tuple[float, ...] | None:
        """Mean per channel, in 0 … 1; None without pixels."""
        return tuple(round(total / self.count / 255, 6) for total in self.sums) if self.count else None

    @property
    def std(self) -> tuple[float, ...] | None:
        """Standard deviation per channel of the whole population, in 0 … 1; None without pixels."""
        if not self.count:
            return None
        spreads = (self.count * square - total**2 for total, square in zip(self.sums, self.squares, strict=True))
        return tuple(round(math.sqrt(spread) / self.count / 255, 6) for spread in spreads)
