"""The plan: the pure function from (seed, epoch, position) to (shard, record).

    order     shards permuted by hash(seed, epoch), concatenated: a sequence of N records
    streams   the sequence cut into C contiguous pieces whose lengths differ by at most 1, longer ones first
    position  p -> stream p % C, offset p // C
    buffer    within a stream, offsets are permuted inside windows by hash(seed, epoch, stream, window)

Every step is a bijection, so each position has one record and each record one position, for any C and W, which change
only locality and mixing. With weights, a record is repeated next to itself as `weights` says, and the buffer separates
the repeats. With shard affinity, a stream has the same shards in every epoch: hash(seed) alone orders and cuts the
shards into streams, and the shards of each stream are permuted by hash(seed, epoch).

The first epoch, in which shards may still be downloaded, reads each shard from its beginning. Later ones begin at
another record, hash(seed, epoch, shard), and an epoch that fits into a rank's buffers is permuted as a whole: else the
same samples of a small set would come first in each epoch, and always meet the same others.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow._validation import check_integer

from . import keyed_rng
from .keyed_rng import I64
from .sampler import EpochPlan, EpochSampler, Facts
from .shuffle_settings import MOST_BUFFER, MOST_STREAMS, STREAMS_PER_RANK
from .weights import SystematicSample, Weights

FIRST_WINDOW = 32
"""Samples in the first window of a stream: the share of each of eight streams in a batch of 256.

Windows grow from there, so that an epoch's first batch waits for the beginning of one shard per stream only.
"""


class ShuffleBuffer:
    """The shuffle buffer of an epoch's streams, as a pure function: samples are permuted inside windows.

    Windows end at 32, 64, 128, …, W, 2W, 3W, …; without growth, at W, 2W, …. The permutation of each is keyed by
    its stream and its number, so any offset can be computed without those before it. The only state is a cache of the
    last permutations.
    """

    def __init__(self, key: int, samples: int, *, grows: bool = True) -> None:
        self._key, self._samples = key, samples
        starts = [0]  # of the growing windows, and of the first full one
        while grows and starts[-1] < samples:
            starts.append(min(max(FIRST_WINDOW, 2 * starts[-1]), samples))
        self._first_starts = np.array(starts, dtype=np.int64)
        self._last_used: dict[int, tuple[int, I64]] = {}  # stream → window, and its permutation

    def windows(self, offsets: I64) -> I64:
        """Return the windows that contain offsets of a stream, as int64."""
        windows: I64 = np.searchsorted(self._first_starts, offsets, side="right") - 1
        full = windows == len(self._first_starts) - 1
        windows[full] += (offsets[full] - self._first_starts[-1]) // self._samples
        return windows

    def starts(self, windows: I64) -> I64:
        """Return the offsets at which windows start, as int64."""
        first_full = len(self._first_starts) - 1
        beyond = np.maximum(windows - first_full, 0) * self._samples
        starts: I64 = self._first_starts[np.minimum(windows, first_full)] + beyond
        return starts

    def permutation(self, stream: int, window: int, stream_length: int) -> tuple[int, I64]:
        """Return the offset at which a window of a stream starts, and the permutation of its samples."""
        start, stop = self.starts(np.array([window, window + 1])).tolist()
        used = self._last_used.get(stream)
        if used is None or used[0] != window:
            key = keyed_rng.fold(keyed_rng.fold(self._key, stream), window)
            used = self._last_used[stream] = window, keyed_rng.permutation(key, min(stop, stream_length) - start)
        return start, used[1]


class ShufflePlan(EpochPlan):
    """The order of one epoch over the shards of one split.

    Args:
        shard_samples: Number of samples of each shard, in the manifest's order.
        seed: Any integer; another seed gives another order.
        epoch: 0 or more; another epoch gives another order.
        streams: C, the number of parallel streams, 1 … 2**20.
        buffer: W, samples of a stream that are shuffled together, 1 … 2**40; 1 keeps their order.
        shuffle: False keeps shards and records in the manifest's order.
        weights: Expected occurrences of the records; by default, each comes once.
        shard_affinity: Keep the shards of a stream from epoch to epoch.
    """

    def __init__(
        self,
        shard_samples: npt.ArrayLike,
        *,
        seed: int,
        epoch: int,
        streams: int = 1,
        buffer: int = 1,
        shuffle: bool = True,
        weights: Weights | None = None,
        shard_affinity: bool = False,
    ) -> None:
        check_integer("streams", streams, 1, MOST_STREAMS)
        check_integer("buffer", buffer, 1, MOST_BUFFER)
        check_integer("epoch", epoch, 0)
        sizes = np.asarray(shard_samples, dtype=np.int64)
        order_key = keyed_rng.key(seed, "sticky") if shard_affinity else keyed_rng.key(seed, "shards", epoch)
        self._order = keyed_rng.permutation(order_key, len(sizes)) if shuffle else np.arange(len(sizes))
        self._sample: SystematicSample | None = None
        counts = sizes[self._order]
        if weights is not None:
            self._sample = SystematicSample(weights, keyed_rng.key(seed, "weights", epoch))
            counts = self._sample.counts[self._order]
        ends = np.cumsum(counts)
        self.length = int(ends[-1]) if len(sizes) else 0
        self._shuffles = shuffle and buffer > 1
        moves = self._shuffles and epoch > 0 and not shard_affinity
        is_whole = moves and self.length <= min(streams, STREAMS_PER_RANK) * buffer
        self._streams = 1 if is_whole else streams
        self._sizes = np.maximum(counts, 1)
        turns = keyed_rng.fold_array(keyed_rng.key(seed, "turns", epoch), self._order) % self._sizes.astype(np.uint64)
        self._turns = turns.astype(np.int64) * moves
        self._shard_starts = ends - counts
        # The pieces of the sequence in reading order: the place of the piece's shard, where the piece begins in the
        # shard, and where it begins and ends in the sequence.
        if shard_affinity and shuffle:
            self._places, self._firsts, counts = self._pieces(ends, keyed_rng.key(seed, "pieces", epoch))
        else:
            self._places, self._firsts = np.arange(len(sizes)), np.zeros(len(sizes), dtype=np.int64)
        self._ends = np.cumsum(counts)
        self._starts = self._ends - counts
        if not shuffle:
            buffer = 1
        elif is_whole:
            buffer = max(1, self.length)
        self._buffer = ShuffleBuffer(keyed_rng.key(seed, "window", epoch), buffer, grows=not is_whole)

    def locate(self, positions: npt.NDArray[Any]) -> tuple[I64, I64]:
        """Return (shard, record) of positions 0 … length-1, as two int64 arrays of the same length."""
        shards, records, _ = self.visits(positions)
        return shards, records

    def visits(self, positions: npt.NDArray[Any]) -> tuple[I64, I64, I64]:
        """Return (shard, record, repeat) of positions 0 … length-1 as int64; the repeats of a record count from 0."""
        # Narrower or unsigned integers would wrap, or become floats, further down.
        positions = positions.astype(np.int64, copy=False)
        streams, offsets = positions % self._streams, positions // self._streams
        if self._shuffles:
            offsets = self._shuffle(streams, offsets)
        stream = self._stream_starts(streams) + offsets
        piece = np.searchsorted(self._ends, stream, side="right")
        places = self._places[piece]
        shards, offset = self._order[places], stream - self._starts[piece] + self._firsts[piece]
        offset = (offset + self._turns[places]) % self._sizes[places]
        if self._sample is None:
            return shards, offset, np.zeros_like(offset)
        return shards, *self._sample.locate(shards, offset)

    def needs(self, rank: int, world_size: int) -> tuple[I64, I64, I64]:
        """Return which shards a rank needs and when, in the order of first need: (shards, begins, ends), int64.

        The rank takes samples of `shards[i]` at positions from `begins[i]` to `ends[i]`-1 only. Windows bound these
        positions, so they are not exact. A shard on the border of two streams comes twice: it ends one stream and
        begins the other, at other times.
        """
        stream_starts = self._stream_starts(np.arange(self._streams))
        cuts = _distinct(np.concatenate([self._starts, stream_starts, [self.length]]))
        starts, stops = cuts[:-1], cuts[1:]  # of the pieces within one shard and one stream
        streams = np.searchsorted(stream_starts, starts, side="right") - 1
        # Positions of a rank are equal modulo the world size, those of a stream modulo the number of streams.
        common = math.gcd(self._streams, world_size)
        mine = streams % common == rank % common
        starts, stops, streams = starts[mine], stops[mine], streams[mine]
        first_windows = self._buffer.windows(starts - stream_starts[streams])
        last_windows = self._buffer.windows(stops - 1 - stream_starts[streams])
        stream_stops = self._stream_starts(streams + 1)
        begins = self._buffer.starts(first_windows) * self._streams + streams
        last = np.minimum(self._buffer.starts(last_windows + 1), stream_stops - stream_starts[streams]) - 1
        shards = self._order[self._places[np.searchsorted(self._ends, starts, side="right")]]
        order = np.argsort(begins, kind="stable")
        return shards[order], begins[order], (last * self._streams + streams + 1)[order]

    def stream_length(self, stream: int) -> int:
        """Return the number of samples in a stream."""
        return self.length // self._streams + (stream < self.length % self._streams)

    def _pieces(self, ends: I64, key: int) -> tuple[I64, I64, I64]:
        """Cut the shards at the borders of the streams, and permute the pieces of each: places, firsts, lengths."""
        stream_starts = self._stream_starts(np.arange(self._streams))
        cuts = _distinct(np.concatenate([self._shard_starts, stream_starts, [self.length]]))
        starts = cuts[:-1]
        streams = np.searchsorted(stream_starts, starts, side="right")
        order = np.lexsort((keyed_rng.permutation(key, len(starts)), streams))
        places = np.searchsorted(ends, starts, side="right")
        return places[order], (starts - self._shard_starts[places])[order], np.diff(cuts)[order]

    def _stream_starts(self, streams: I64) -> I64:
        each, longer = divmod(self.length, self._streams)
        starts: I64 = streams * each + np.minimum(streams, longer)
        return starts

    def _shuffle(self, streams: I64, offsets: I64) -> I64:
        """Return the offsets within their streams after the shuffle."""
        pairs = self._buffer.windows(offsets) * self._streams + streams
        shuffled: I64 = offsets.copy()
        order = np.argsort(pairs, kind="stable")
        for inside in np.split(order, np.flatnonzero(np.diff(pairs[order])) + 1) if len(order) else ():
            window, stream = divmod(int(pairs[inside[0]]), self._streams)
            start, permutation = self._buffer.permutation(stream, window, self.stream_length(stream))
            shuffled[inside] = start + permutation[offsets[inside] - start]
        return shuffled


class ShuffledEpochs(EpochSampler):
    """Epochs of all samples of a split, each once or by its weight."""

    def __init__(self, facts: Facts, weights: Weights | None = None) -> None:
        self.length = facts.samples if weights is None else weights.length
        self.identity = None if weights is None else {"weights": weights.digest}
        self._shard_samples, self._shuffle, self._weights = facts.shard_samples, facts.shuffle, weights

    def drawn(self) -> I64 | None:
        """Return the numbers of the samples with a weight above 0; None without weights."""
        return None if self._weights is None else self._weights.drawn()

    def plan(self, *, seed: int, epoch: int, streams: int) -> EpochPlan:
        """Return the order of an epoch."""
        shuffle = self._shuffle
        return ShufflePlan(
            self._shard_samples,
            seed=seed,
            epoch=epoch,
            streams=streams,
            buffer=1 if shuffle is None else shuffle.buffer,
            shuffle=shuffle is not None,
            shard_affinity=shuffle is not None and shuffle.shard_affinity,
            weights=self._weights,
        )


def _distinct(numbers: I64) -> I64:
    """Return the distinct numbers, 0 or more, in order. np.unique would import numpy.ma in each worker."""
    ordered = np.sort(numbers)
    return ordered[np.diff(ordered, prepend=-1) > 0]
