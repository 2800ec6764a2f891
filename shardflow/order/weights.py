"""Weights: the number of times that each sample comes in an epoch, by systematic sampling in fixed point.

With weights w_i and their running sum C, sample i comes ⌊C_i + u⌋ - ⌊C_{i-1} + u⌋ times, where u in [0, 1) belongs to
the epoch. So the expected count of a sample is its weight, each count differs from it by less than one, every epoch has
the same length, and search finds the sample at a position. Source: Madow, "On the theory of systematic sampling, II"
(Annals of Mathematical Statistics, 1949).

The running sum goes over the shards permuted by hash(seed, epoch), and over the records of each permuted by hash(seed,
epoch, shard). In the stored order, samples at some distances would always come together, and others never. In the
permuted order, two samples come together as often as with independent draws, except that each shard contributes its
share, rounded up or down: the counts of two of n equal weights in a shard have a correlation of down to -1 / (n - 1).
The running sum determines only counts; the plan's order is that of the shards, with their records as stored.

Weights are multiples of 2**-31 and all arithmetic is on integers, so every machine finds the same samples. The sum S of
N weights is seldom an integer. An epoch has L samples, S rounded, and its points are S / L apart: point j is at
⌊(j S + U) / L⌋, with U in 0 … S-1.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow.errors import ConfigError

from . import keyed_rng
from .keyed_rng import I64

FRACTION_BITS = 31
MOST_SAMPLES = 2**31 - 1
"""Samples in an epoch: the products of two positions then fit into 63 bits."""

_CHUNK = 1 << 20
_CACHED_SAMPLES = 1 << 22


def as_numbers(expected: str, values: Any) -> npt.NDArray[Any]:
    """Return an argument as an array; ConfigError with the text `expected` for ragged lists."""
    try:
        return np.asanyarray(values)
    except (TypeError, ValueError):  # also raised for tensors on a device
        raise ConfigError(f"{expected}, found {values!r:.80}") from None


class Weights:
    """The weights of the samples of a split, in the order of the split, and their sums by shard.

    Args:
        values: Expected number of occurrences of each sample in an epoch, 0 or more: any number type, shape [N]. With
            `classes`, the weight of each class instead, shape [K].
        shard_samples: Number of samples of each shard, int64; their sum is N.
        classes: The class of each sample, an integer 0 … K-1, shape [N].

    Attributes:
        length: Samples in an epoch: the sum of the weights, rounded.
        digest: SHA-256 of the weights; equal weights have equal digests, however they were given.
        sum, sums: The sum of all weights, and of each shard's weights, as multiples of 2**-31.

    Raises:
        ConfigError: A weight is negative, not finite or no number, or the sum is not 1 … 2,147,483,647.
    """

    def __init__(
        self, values: npt.ArrayLike, shard_samples: npt.ArrayLike, classes: npt.NDArray[Any] | None = None
    ) -> None:
        self._values, self._classes = np.asanyarray(values), classes
        what = "sample" if classes is None else "class"
        if self._values.ndim != 1 or self._values.dtype.kind not in "buif":
            found = f"dtype {self._values.dtype} of shape {self._values.shape}"
            raise ConfigError(f"weights must be numbers, one per {what}; found {found}")
        self._check_values(what)
        self._ends = np.cumsum(np.asarray(shard_samples, dtype=np.int64))
        self._starts = self._ends - np.asarray(shard_samples, dtype=np.int64)
        self.sum, self.sums, sha = 0, np.zeros_like(self._ends), hashlib.sha256()
        first = 0
        while first < len(self._ends) and self.sum >> FRACTION_BITS <= MOST_SAMPLES:
            # Many small shards are summed in one go.
            last = max(first + 1, int(np.searchsorted(self._ends, self._starts[first] + _CHUNK, side="right")))
            begin, end = int(self._starts[first]), int(self._ends[last - 1])
            chunk = self._fixed(begin, end)
            sha.update(chunk.astype("<i8", copy=False).data)
            self.sum += _exact_sum(chunk)
            running = np.concatenate([[0], np.cumsum(chunk)])
            self.sums[first:last] = running[self._ends[first:last] - begin] - running[self._starts[first:last] - begin]
            first = last
        self.length = (self.sum + (1 << FRACTION_BITS - 1)) >> FRACTION_BITS
        self.digest = sha.hexdigest()
        if not 1 <= self.length <= MOST_SAMPLES:
            most = f"more than {MOST_SAMPLES:,}"
            found = most if self.length > MOST_SAMPLES else f"{self.sum / 2**FRACTION_BITS:.6g}"
            raise ConfigError(
                "a weight is the expected number of occurrences of a sample in an epoch, and the sum of weights is the "
                f"length of the epoch: it must be 1 … {MOST_SAMPLES:,}, found {found}"
            )

    def _check_values(self, what: str) -> None:
        for begin in range(0, len(self._values), _CHUNK):
            chunk = self._values[begin : begin + _CHUNK]
            bad = np.flatnonzero(~((chunk >= 0) & (chunk <= MOST_SAMPLES)))
            if len(bad):
                number, value = begin + int(bad[0]), chunk[bad[0]]
                raise ConfigError(f"weights must be 0 … {MOST_SAMPLES:,}; that of {what} {number} is {value}")

    def fixed(self, shard: int) -> I64:
        """Return the weights of the records of a shard as multiples of 2**-31, int64."""
        return self._fixed(int(self._starts[shard]), int(self._ends[shard]))

    def drawn(self) -> I64:
        """Return the numbers of the samples with a weight above 0."""
        return np.flatnonzero(self._fixed(0, int(self._ends[-1])))

    def _fixed(self, start: int, stop: int) -> I64:
        values = self._values[start:stop] if self._classes is None else self._values
        fixed: I64 = np.rint(values.astype(np.float64) * 2.0**FRACTION_BITS).astype(np.int64)
        return fixed if self._classes is None else fixed[self._classes[start:stop]]


def _exact_sum(fixed: I64) -> int:
    """Return the sum of a chunk of weights as a Python integer, as it may exceed 64 bits."""
    return (int((fixed >> FRACTION_BITS).sum()) << FRACTION_BITS) + int((fixed % (1 << FRACTION_BITS)).sum())


class SystematicSample:
    """The number of times that each record comes in one epoch.

    Args:
        weights: The weights.
        key: 64-bit key of the epoch, which determines u and the order of the running sum.

    Attributes:
        counts: Number of samples that each shard contributes, int64.
    """

    def __init__(self, weights: Weights, key: int) -> None:
        self._weights, self._key = weights, key
        self._sum, self._length = weights.sum, weights.length
        self._step, self._rest = divmod(self._sum, self._length)
        self._shift, self._carry = divmod((key * self._sum) >> 64, self._length)
        order = keyed_rng.permutation(keyed_rng.fold(key, "shards"), len(weights.sums))
        sums = weights.sums[order]
        self._begins, self.counts = np.empty_like(sums), np.empty_like(sums)  # of each shard in the running sum
        self._begins[order] = np.cumsum(sums) - sums
        self.counts[order] = np.diff(self._first_place(np.cumsum(sums)), prepend=0)
        self._ends: OrderedDict[int, npt.NDArray[np.int32]] = OrderedDict()  # shard → `_record_ends`, recently used
        self._cached = 0

    def locate(self, shards: I64, offsets: I64) -> tuple[I64, I64]:
        """Return record and repeat of the samples that shards contribute, given their offsets in the shards, int64.

        Records are in their order; one that comes n times has the repeats 0 … n-1.
        """
        records, repeats = np.empty_like(offsets), np.empty_like(offsets)
        for shard in sorted({*shards.tolist()}):
            here = shards == shard
            ends = self._record_ends(shard)
            found = np.searchsorted(ends, offsets[here].astype(np.int32), side="right")  # one dtype: no copy of `ends`
            records[here] = found
            repeats[here] = offsets[here] - np.where(found > 0, ends[found - 1], 0)
        return records, repeats

    def _record_ends(self, shard: int) -> npt.NDArray[np.int32]:
        """Return the running count of samples over the records of a shard."""
        if (ends := self._ends.get(shard)) is None:
            weights, begin = self._weights.fixed(shard), self._begins[shard]
            order = keyed_rng.permutation(keyed_rng.fold(self._key, shard), len(weights))
            places = self._first_place(begin + np.concatenate([[0], np.cumsum(weights[order])]))
            counts = np.empty(len(weights), dtype=np.int32)
            counts[order] = np.diff(places)
            ends = self._ends[shard] = np.cumsum(counts, dtype=np.int32)
            self._cached += len(ends)
            while self._cached > _CACHED_SAMPLES and len(self._ends) > 1:
                self._cached -= len(self._ends.popitem(last=False)[1])
        else:
            self._ends.move_to_end(shard)
        return ends

    def _points(self, places: I64) -> I64:
        """Return the points of the running sum that belong to places in the epoch."""
        points: I64 = self._shift + places * self._step + (places * self._rest + self._carry) // self._length
        return points

    def _first_place(self, sums: I64) -> I64:
        """Return the first place whose point is not below each of the sums; `length` if there is none."""
        guess = (sums - self._shift).astype(np.float64) * (self._length / self._sum)
        places: I64 = np.clip(guess.astype(np.int64), 0, self._length)  # right to one or two: floats have 53 bits
        while (low := (places < self._length) & (self._points(places) < sums)).any():
            places[low] += 1
        while (high := (places > 0) & (self._points(places - 1) >= sums)).any():
            places[high] -= 1
        return places
