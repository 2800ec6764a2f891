"""Weights: how often each sample comes in an epoch, by systematic sampling in fixed point.

With weights w_i, in the epoch's shard order, and their running sum C, sample i comes ⌊C_i + u⌋ - ⌊C_{i-1} + u⌋ times,
where u in [0, 1) belongs to the epoch. So the expected count of a sample is its weight, each count differs from it by
less than one, every epoch has the same length, and the sample at a position is found by search, not by drawing: see
Madow, "On the theory of systematic sampling, II" (Annals of Mathematical Statistics, 1949).

Weights are multiples of 2**-31, and all arithmetic is of integers, so that every machine finds the same samples. The
sum S of N weights is seldom a whole number of samples. The epoch has the L samples that are nearest to it, and its
points lie S / L apart: point j is at ⌊(j S + U) / L⌋, with U in 0 … S-1.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow.errors import ConfigError

from .window_shuffle import I64

FRACTION_BITS = 31
MOST_SAMPLES = 2**31 - 1
"""Samples in an epoch: the products of two positions then fit into 63 bits."""

_CHUNK = 1 << 20
_CACHED_SAMPLES = 1 << 22


class Weights:
    """The weights of the samples of a split, in the order of the split.

    Args:
        values: Expected number of times that each sample comes in an epoch, 0 or more: any number type, shape [N]. With
            `classes`, that of each class instead, shape [K].
        classes: The class of each sample, an integer 0 … K-1, shape [N].

    Attributes:
        length: Samples in an epoch: the sum of the weights, rounded.
        digest: SHA-256 of the weights; equal weights have equal digests, however they were given.

    Raises:
        ConfigError: A weight is negative, not finite or no number, or the sum is not 1 … 2,147,483,647.
    """

    def __init__(self, values: npt.ArrayLike, classes: npt.NDArray[Any] | None = None) -> None:
        self._values = np.asanyarray(values)
        self._classes = classes
        what = "sample" if classes is None else "class"
        if self._values.ndim != 1 or self._values.dtype.kind not in "buif":
            found = f"dtype {self._values.dtype} of shape {self._values.shape}"
            raise ConfigError(f"weights must be numbers, one per {what}; found {found}")
        self._check_values(what)
        self.samples = len(self._values if classes is None else classes)
        total, sha = 0, hashlib.sha256()
        for begin in range(0, self.samples, _CHUNK):
            chunk = self.fixed(begin, begin + _CHUNK)
            total += _exact_sum(chunk)
            sha.update(chunk.astype("<i8", copy=False).data)
            if total >> FRACTION_BITS > MOST_SAMPLES:
                break
        self.sum = total
        self.length = (total + (1 << FRACTION_BITS - 1)) >> FRACTION_BITS
        self.digest = sha.hexdigest()
        if not 1 <= self.length <= MOST_SAMPLES:
            found = f"more than {MOST_SAMPLES:,}" if self.length > MOST_SAMPLES else f"{total / 2**FRACTION_BITS:.6g}"
            raise ConfigError(
                "a weight is the expected number of times that a sample comes in an epoch, and their sum is "
                f"the number of samples in an epoch: it must be 1 … {MOST_SAMPLES:,}, found {found}"
            )

    def _check_values(self, what: str) -> None:
        for begin in range(0, len(self._values), _CHUNK):
            chunk = self._values[begin : begin + _CHUNK]
            bad = np.flatnonzero(~((chunk >= 0) & (chunk <= MOST_SAMPLES)))
            if len(bad):
                number, value = begin + int(bad[0]), chunk[bad[0]]
                raise ConfigError(f"weights must be 0 … {MOST_SAMPLES:,}; that of {what} {number} is {value}")

    def fixed(self, start: int, stop: int) -> I64:
        """Return the weights of samples from `start` to `stop` as multiples of 2**-31, int64."""
        if self._classes is not None:
            fixed: I64 = _fixed(self._values)[self._classes[start:stop]]
            return fixed
        return _fixed(self._values[start:stop])

    def first(self, samples: int) -> Weights:
        """Return the weights of the first samples alone."""
        if self._classes is not None:
            return Weights(self._values, self._classes[:samples])
        return Weights(self._values[:samples])


def _fixed(values: npt.NDArray[Any]) -> I64:
    fixed: I64 = np.rint(values.astype(np.float64) * 2.0**FRACTION_BITS).astype(np.int64)
    return fixed


def _exact_sum(fixed: I64) -> int:
    """Return the sum of a chunk of weights, which may be more than 64 bits hold."""
    return (int((fixed >> FRACTION_BITS).sum()) << FRACTION_BITS) + int((fixed % (1 << FRACTION_BITS)).sum())


class ShardWeights:
    """The weights of a split, summed up by shard.

    Args:
        weights: Weights of all samples.
        shard_samples: Number of samples of each shard, int64; their sum is the number of weights.
    """

    def __init__(self, weights: Weights, shard_samples: I64) -> None:
        self.weights = weights
        self._ends = np.cumsum(shard_samples)
        self._starts = self._ends - shard_samples
        self.sums = np.fromiter(self._sums(), dtype=np.int64, count=len(shard_samples))
        self._running: OrderedDict[int, I64] = OrderedDict()  # shard → running sums, those used last
        self._cached = 0

    def _sums(self) -> Iterator[int]:
        """Yield the sum of each shard; many small shards are summed in one go."""
        at = 0
        while at < len(self._ends):
            last = max(at + 1, int(np.searchsorted(self._ends, self._starts[at] + _CHUNK, side="right")))
            begin, end = int(self._starts[at]), int(self._ends[last - 1])
            running = np.concatenate([[0], np.cumsum(self.weights.fixed(begin, end))])
            yield from (running[self._ends[at:last] - begin] - running[self._starts[at:last] - begin]).tolist()
            at = last

    def running(self, shard: int) -> I64:
        """Return the running sums of a shard: the entry of record r is the sum of the weights up to r, int64."""
        if (found := self._running.get(shard)) is None:
            found = np.cumsum(self.weights.fixed(int(self._starts[shard]), int(self._ends[shard])))
            self._running[shard] = found
            self._cached += len(found)
            while self._cached > _CACHED_SAMPLES and len(self._running) > 1:
                self._cached -= len(self._running.popitem(last=False)[1])
        else:
            self._running.move_to_end(shard)
        return found


class SystematicSample:
    """The samples of one epoch, by their places in the epoch's stream.

    Args:
        shard_weights: Weights by shard.
        order: The shards in the order of the epoch, int64.
        key: 64-bit key of the epoch; it decides u.

    Attributes:
        counts: Samples that the shards contribute, in the order of the epoch, int64.
    """

    def __init__(self, shard_weights: ShardWeights, order: I64, key: int) -> None:
        self._shards, self._order = shard_weights, order
        self._sum, self._length = shard_weights.weights.sum, shard_weights.weights.length
        self._step, self._rest = divmod(self._sum, self._length)
        self._shift, self._carry = divmod((key * self._sum) >> 64, self._length)
        self._ends = np.cumsum(shard_weights.sums[order])
        self.counts = np.diff(self._first_place(self._ends), prepend=0)

    def locate(self, stream: I64, places: I64) -> tuple[I64, I64]:
        """Return record and repeat of places in the stream, int64; `places` are those of their shards in the order.

        A sample that comes n times has the repeats 0 … n-1.
        """
        points = self._points(stream)
        records, begins = np.empty_like(stream), np.empty_like(stream)
        for place in np.unique(places).tolist():
            here = places == place
            shard = int(self._order[place])
            running = self._shards.running(shard)
            start = int(self._ends[place] - self._shards.sums[shard])
            found = np.searchsorted(running, points[here] - start, side="right")
            records[here] = found
            begins[here] = start + np.where(found > 0, running[found - 1], 0)
        return records, stream - self._first_place(begins)

    def _points(self, places: I64) -> I64:
        """Return the points at which places of the stream lie in the running sum of the weights."""
        points: I64 = self._shift + places * self._step + (places * self._rest + self._carry) // self._length
        return points

    def _first_place(self, sums: I64) -> I64:
        """Return the first place whose point is not below each of the sums, `length` where there is none."""
        guess = (sums - self._shift).astype(np.float64) * (self._length / self._sum)
        places: I64 = np.clip(guess.astype(np.int64), 0, self._length)  # right to one or two: floats have 53 bits
        while (low := (places < self._length) & (self._points(places) < sums)).any():
            places[low] += 1
        while (high := (places > 0) & (self._points(places - 1) >= sums)).any():
            places[high] -= 1
        return places
