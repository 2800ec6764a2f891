"""Segments: the area of an object in an image, as COCO writes it in JSON: polygons, or runs of the pixels of a mask.

    polygons  [[x, y, x, y, ...], ...]                     the object is their union; [] is an object without area
    runs      {"size": [height, width], "counts": [...]}   pixels outside, inside, outside, ..., column by column
              {"size": [height, width], "counts": "..."}   the same as COCO's string of six bits per character

Source: cocodataset.org, "Data format"; the text has the form of `rleToString` in its API.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_LETTER, _MORE, _SIGN, _BITS = 48, 32, 16, 5  # the character of 0; flags and number of value bits of a character
_MOST_LETTERS = 7  # per number: 35 bits, enough for the pixels of any image
_MAX = float(np.finfo(np.float32).max)
_DIGITS = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """The area of an object: its runs or, if `runs` is None, its polygons.

    Attributes:
        polygons: float64 [V, 2] each: x and y of the corners, in pixels of the image.
        runs: int64 [R]: how many pixels are outside, inside, outside, ... of the object, column by column.
        size: Width and height of the image.
    """

    polygons: Sequence[npt.NDArray[np.float64]] = ()
    runs: npt.NDArray[np.int64] | None = None
    size: tuple[int, int]

    @classmethod
    def parse(cls, value: Any, size: tuple[int, int], scale: tuple[float, float] = (1, 1)) -> Segment:
        """Return the segment of an object in an image of this size from its JSON value; ValueError if it is invalid.

        Coordinates of polygons times `scale` are pixels.
        """
        if isinstance(value, dict):
            return cls(runs=_runs(value, size), size=size)
        if not isinstance(value, list) or not all(isinstance(each, list) for each in value):
            raise ValueError("expected a list of polygons, or runs as an object with 'size' and 'counts'")
        for each in value:
            if len(each) % 2 or not {*map(type, each)} <= {int, float}:
                raise ValueError("a polygon is not made of numbers x, y in turn")
            if not all(abs(number) <= _MAX for number in each):
                raise ValueError("a polygon has a number that is not a finite one of 32 bits")
        polygons = [np.array(each, dtype=np.float64).reshape(-1, 2) * scale for each in value]
        return cls(polygons=polygons, size=size)

    @classmethod
    def of_mask(cls, mask: npt.NDArray[Any]) -> Segment:
        """Return the segment, as runs, of the nonzero pixels of a mask [H, W]."""
        pixels = np.concatenate([[False], mask.T.ravel() != 0])  # runs begin outside
        bounds = np.flatnonzero(pixels[1:] != pixels[:-1])
        runs = np.diff(np.concatenate([[0], bounds, [mask.size]]))
        return cls(runs=runs, size=(mask.shape[1], mask.shape[0]))

    def to_json(self, scale: tuple[float, float] = (1, 1)) -> Any:
        """Return the JSON value of the segment; the coordinates of polygons are divided by `scale`."""
        if self.runs is not None:
            return {"size": [self.size[1], self.size[0]], "counts": self.runs.tolist()}
        digits = _DIGITS if scale == (1, 1) else 2 * _DIGITS + 1
        return [(each / scale).round(digits).ravel().tolist() for each in self.polygons]

    @property
    def corners(self) -> int:
        """Number of corners of all polygons."""
        return sum(map(len, self.polygons))

    def run_mask(self) -> npt.NDArray[np.uint8]:
        """Return the mask of the runs, uint8 [H, W], 1 inside."""
        assert self.runs is not None
        width, height = self.size
        inside = np.arange(len(self.runs), dtype=np.uint8) & 1
        mask: npt.NDArray[np.uint8] = np.repeat(inside, self.runs).reshape(width, height).T
        return mask


def _runs(value: dict[str, Any], size: tuple[int, int]) -> npt.NDArray[np.int64]:
    """Return the runs of a JSON object; ValueError unless they fill the image."""
    width, height = size
    if value.get("size") != [height, width]:
        raise ValueError(f"runs of size {value.get('size')!r:.40} do not fit an image [{height}, {width}]")
    counts = value.get("counts")
    if isinstance(counts, str):
        counts = _parse_text(counts)
    if not isinstance(counts, list) or not {*map(type, counts)} <= {int} or min(counts, default=0) < 0:
        raise ValueError("the counts of runs are neither whole numbers of 0 or more nor COCO's text")
    if (total := sum(counts)) != width * height:
        raise ValueError(f"runs of {total} pixels do not fill the image, which has {width * height}")
    return np.array(counts, dtype=np.int64)


def _parse_text(text: str) -> list[int]:
    """Return the counts in COCO's string, which codes the fourth and later ones as differences to the last but one."""
    if not text.isascii():
        raise ValueError("the text of runs has letters that are not COCO's")
    letters = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64) - _LETTER
    is_last = letters & _MORE == 0
    lengths = np.diff(np.concatenate([[-1], np.flatnonzero(is_last)]))
    if letters.min(initial=0) < 0 or letters.max(initial=0) >= 2 * _MORE or lengths.sum() != len(letters):
        raise ValueError("the text of runs has letters that are not COCO's, or ends within a number")
    if lengths.max(initial=0) > _MOST_LETTERS:
        raise ValueError("the text of runs has a number beyond 35 bits")
    places = np.arange(len(letters)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    bits = (letters & (_MORE - 1)) << (_BITS * places)
    numbers = np.add.reduceat(bits, np.cumsum(lengths) - lengths) if len(lengths) else bits
    is_negative = letters[is_last] & _SIGN > 0
    numbers[is_negative] -= 1 << (_BITS * lengths[is_negative])
    # Python's integers do not overflow.
    odd, even = (list(itertools.accumulate(numbers[first::2].tolist())) for first in (1, 2))
    counts = [0] * len(numbers)
    counts[:1], counts[1::2], counts[2::2] = numbers[:1].tolist(), odd, even
    return counts
