"""The mixture: the source of each number of a sequence, in proportion to shares, which may change along it."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shardflow.errors import ConfigError

from .keyed_rng import I64

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, rounded to odd
_TURN = 1 << 64
_FEW = 1 << 12  # up to so many numbers, counting one by one is faster


def temperature_weights(sizes: Sequence[float], temperature: float) -> list[float]:
    """Return weights for the sources of a mix from their sizes: size^(1 / temperature).

    At 1, each source comes in proportion to its size; a higher temperature favours small sources.

    >>> shardflow.samplers.temperature_weights([10_000, 100], 2)
    [100.0, 10.0]

    Raises:
        ConfigError: A size or the temperature is not above 0.

    Source: Arivazhagan et al., "Massively multilingual neural machine translation in the wild", 2019.
    """
    if not temperature > 0 or not all(size > 0 for size in sizes):
        raise ConfigError(f"sizes and temperature must be above 0, found {list(sizes)!r:.80} and {temperature!r}")
    return [float(size) ** (1 / temperature) for size in sizes]


class Shares:
    """The source of each number of a sequence, in proportion to weights.

    The value of number k in a Weyl sequence (k / golden ratio, modulo 1; Weyl, "Über die Gleichverteilung von Zahlen
    mod. Eins", 1916) is looked up among the shares, so any section has the right shares to within a few numbers. Shares
    change linearly. All arithmetic is on integers.

    Args:
        weights: The weight of each source at number 0, 0 or more.
        later: Pairs of a number, ascending from 1, and the weights there. Shares are interpolated between pairs, and
            constant after the last.
    """

    def __init__(self, weights: Sequence[float], later: Sequence[tuple[int, Sequence[float]]] = ()) -> None:
        self._sources = len(weights)
        points = [(0, weights), *later]
        self._starts = [number for number, _ in points]
        bounds = [_bounds(each) for _, each in points]
        stops, lasts = [*self._starts[1:], None], [*bounds[1:], bounds[-1]]
        self._stretches = list(map(_Stretch, self._starts, stops, bounds, lasts))

    def source_of(self, numbers: I64) -> I64:
        """Return the source of each of these numbers, 0 or more."""
        which = np.searchsorted(self._starts, numbers, side="right") - 1
        sources = np.empty_like(numbers)
        for number in sorted({*which.tolist()}):
            here = which == number
            sources[here] = self._stretches[number].source_of(numbers[here])
        return sources

    def counts(self, first: int, stop: int) -> list[int]:
        """Return how many of the numbers `first` … `stop` - 1 each source has, in time independent of their count."""
        if stop - first <= _FEW and len(self._starts) == 1:
            counts: list[int] = np.bincount(self.source_of(np.arange(first, stop)), minlength=self._sources).tolist()
            return counts
        total = np.zeros(self._sources - 1, dtype=object)
        for stretch in self._stretches[bisect_right(self._starts, first) - 1 :]:
            begin, end = max(first, stretch.first), stop if stretch.stop is None else min(stop, stretch.stop)
            if begin < end:
                total += stretch.below(begin, end)
        return [more - fewer for fewer, more in itertools.pairwise([0, *total.tolist(), stop - first])]


def _bounds(weights: Sequence[float]) -> list[int]:
    """Return the values at which the share of a source ends and the next begins."""
    shares = np.cumsum(weights) / sum(weights)
    return [min(int(share * 2**64), 2**64 - 1) for share in shares[:-1]]


class _Stretch:
    """A range of numbers, `first` … `stop` - 1, over which bounds change linearly; without an end if `stop` is None."""

    def __init__(self, first: int, stop: int | None, bounds: list[int], last: list[int]) -> None:
        self.first, self.stop, self._bounds = first, stop, bounds
        self._slopes = [end - begin for begin, end in zip(bounds, last, strict=True)]
        self._length = 1 if stop is None else stop - first

    def source_of(self, numbers: I64) -> I64:
        """Return the source of each number."""
        values = numbers.astype(np.uint64) * np.uint64(_GOLDEN)
        if not any(self._slopes):
            sources: I64 = np.searchsorted(np.array(self._bounds, dtype=np.uint64), values, side="right")
            return sources
        pairs = zip(values.tolist(), (numbers - self.first).tolist(), strict=True)
        return np.array(
            [bisect_right(self._at(offset), value * self._length) for value, offset in pairs], dtype=np.int64
        )

    def _at(self, offset: int) -> list[int]:
        """Return the bounds at an offset, times the length of the stretch."""
        return [bound * self._length + slope * offset for bound, slope in zip(self._bounds, self._slopes, strict=True)]

    def below(self, begin: int, end: int) -> npt.NDArray[np.object_]:
        """Return how many of the numbers begin … end - 1 have a value below each of the bounds."""
        # ⌊x⌋ - ⌊x - bound⌋, in whole turns, is 1 for a value below the bound and 0 for any other.
        terms, turn, step = end - begin, _TURN * self._length, _GOLDEN * self._length
        value, bounds = begin * step, self._at(begin - self.first)
        whole = _floor_sum(terms, value, step, turn)
        counts = [
            whole - _floor_sum(terms, value - bound, step - slope, turn)
            for bound, slope in zip(bounds, self._slopes, strict=True)
        ]
        return np.array(counts, dtype=object)


def _floor_sum(terms: int, begin: int, slope: int, unit: int) -> int:
    """Return the sum of ⌊(begin + k · slope) / unit⌋ for k = 0 … terms - 1, by Euclid's algorithm.

    The terms count the points with whole coordinates below a line. Their remainders when slope and height are
    reduced to less than one step are counted along the other axis.
    """
    total = 0
    while terms:
        (steps, slope), (high, begin) = divmod(slope, unit), divmod(begin, unit)
        total += terms * (terms - 1) // 2 * steps + terms * high
        terms, begin = divmod(slope * terms + begin, unit)
        slope, unit = unit, slope
    return total
