"""The mixture: which source each number of a sequence comes from, in proportion to weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .window_shuffle import I64

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, rounded to odd
_CHUNK = 1 << 20


class Shares:
    """The source of each number of a sequence, in proportion to weights above 0.

    It is the value of the number in a Weyl sequence (k / golden ratio, modulo 1; Weyl, "Über die Gleichverteilung von
    Zahlen mod. Eins", 1916), looked up among the weights. Any section has the right shares to within a few.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        shares = np.cumsum(weights) / sum(weights)
        self._bounds = np.array([min(int(share * 2**64), 2**64 - 1) for share in shares[:-1]], dtype=np.uint64)

    def source_of(self, numbers: I64) -> I64:
        """Return the source of each of these numbers, which are 0 or more."""
        values = numbers.astype(np.uint64) * np.uint64(_GOLDEN)
        sources: I64 = np.searchsorted(self._bounds, values, side="right")
        return sources

    def counts(self, first: int, stop: int) -> list[int]:
        """Return how many of the numbers from `first` to `stop` - 1 come from each source."""
        if not len(self._bounds):
            return [stop - first]
        counts = np.zeros(len(self._bounds) + 1, dtype=np.int64)
        for begin in range(first, stop, _CHUNK):
            sources = self.source_of(np.arange(begin, min(begin + _CHUNK, stop)))
            counts += np.bincount(sources, minlength=len(counts))
        found: list[int] = counts.tolist()
        return found
