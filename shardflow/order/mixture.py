"""The mixture: which source each number of a sequence comes from, in proportion to weights."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from .keyed_rng import I64

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, rounded to odd
_TURN = 1 << 64
_FEW = 1 << 12  # numbers that are counted faster one by one


class Shares:
    """The source of each number of a sequence, in proportion to weights above 0.

    It is the value of the number in a Weyl sequence (k / golden ratio, modulo 1; Weyl, "Über die Gleichverteilung von
    Zahlen mod. Eins", 1916), looked up among the weights. Any section has the right shares to within a few.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        shares = np.cumsum(weights) / sum(weights)
        self._sources = len(weights)
        self._bounds = np.array([min(int(share * 2**64), 2**64 - 1) for share in shares[:-1]], dtype=np.uint64)

    def source_of(self, numbers: I64) -> I64:
        """Return the source of each of these numbers, which are 0 or more."""
        values = numbers.astype(np.uint64) * np.uint64(_GOLDEN)
        sources: I64 = np.searchsorted(self._bounds, values, side="right")
        return sources

    def counts(self, first: int, stop: int) -> list[int]:
        """Return how many of the numbers from `first` to `stop` - 1 come from each source; all cost the same."""
        if stop - first <= _FEW:
            counts: list[int] = np.bincount(self.source_of(np.arange(first, stop)), minlength=self._sources).tolist()
            return counts
        below = [0, *(_below(bound, stop) - _below(bound, first) for bound in self._bounds.tolist()), stop - first]
        return [more - fewer for fewer, more in itertools.pairwise(below)]


def _below(bound: int, numbers: int) -> int:
    """Return how many of the numbers 0 … `numbers` - 1 have a value below a bound, 0 … 2**64."""
    # ⌊x⌋ - ⌊x - bound⌋, in whole turns, is 1 for a value below the bound and 0 for any other.
    return _floor_sum(numbers, 0) - _floor_sum(numbers, _TURN - bound) + numbers


def _floor_sum(terms: int, begin: int) -> int:
    """Return the sum of ⌊(begin + k · golden) / 2**64⌋ for k = 0 … terms - 1, by Euclid's algorithm.

    The terms count the points with whole coordinates below a line. Their remainders when slope and height are
    reduced to less than one step are counted along the other axis.
    """
    total, slope, unit = 0, _GOLDEN, _TURN
    while terms:
        (steps, slope), (high, begin) = divmod(slope, unit), divmod(begin, unit)
        total += terms * (terms - 1) // 2 * steps + terms * high
        terms, begin = divmod(slope * terms + begin, unit)
        slope, unit = unit, slope
    return total
