"""The plan: the pure function from (seed, epoch, position) to (shard, record).

    order     shards permuted by hash(seed, epoch), concatenated: a stream of N records
    lanes     the stream cut into C contiguous pieces whose lengths differ by at most 1, longer ones first
    position  p -> lane p % C, offset p // C
    window    within a lane, offsets are permuted inside windows by hash(seed, epoch, lane, window)

Both steps are bijections, so every position has one record and every record one position, whatever C and W are:
exactness never depends on them, only locality and mixing do. Nothing here has a state; the little that is remembered
between calls is a memo of the windows used last.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow.errors import ConfigError

from . import keyed_rng

I64 = npt.NDArray[np.int64]

FIRST_WINDOW = 32
"""Samples in a lane's first window: what a batch of 256 takes from each of eight lanes.

Windows end at 32, 64, 128, …, W, 2W, 3W, …, so that the first batch of an epoch waits for the head of a shard per lane,
and not for all the shards that a full window spans.
"""

WINDOW = 8192
LANES_PER_RANK = 8
"""For shards packed in class order: several lanes mix from the first batch on, and a window of half the size would
leave half as much again of the noise that is left, for 30 open shards per rank in place of 45 (docs/mixing.md)."""


def default_lanes(world_size: int, shuffle: bool) -> int:
    """Return how many lanes there are when nobody says."""
    return LANES_PER_RANK * world_size if shuffle else 1


class Plan:
    """The order of one epoch over the shards of one split.

    Args:
        shard_samples: The number of samples of each shard, in the manifest's order.
        seed: Any integer; another seed, another order.
        epoch: From 0; another epoch, another order.
        lanes: C, the number of parallel streams; 1 or more.
        window: W, how many samples of a lane are shuffled among each other; 1 keeps their order.
        shuffle: False keeps shards and records in the manifest's order.

    Raises:
        ConfigError: `lanes` or `window` is less than 1, or `epoch` is negative.
    """

    def __init__(
        self,
        shard_samples: npt.ArrayLike,
        *,
        seed: int,
        epoch: int,
        lanes: int = 1,
        window: int = 1,
        shuffle: bool = True,
    ) -> None:
        for name, value, least in (("lanes", lanes, 1), ("window", window, 1), ("epoch", epoch, 0)):
            if value < least:
                raise ConfigError(f"{name} must be {least} or more, found {value}")
        sizes = np.asarray(shard_samples, dtype=np.int64)
        order_key = keyed_rng.key(seed, "shards", epoch)
        self._order = keyed_rng.permutation(order_key, len(sizes)) if shuffle else np.arange(len(sizes))
        self._ends = np.cumsum(sizes[self._order])
        self._starts = self._ends - sizes[self._order]
        self.length = int(self._ends[-1]) if len(sizes) else 0
        self._lanes = lanes
        self._window = window if shuffle else 1
        self._window_key = keyed_rng.key(seed, "window", epoch)
        # Starts of the short windows, and of the first full one.
        ramp = [0]
        while ramp[-1] < self._window:
            ramp.append(min(max(FIRST_WINDOW, 2 * ramp[-1]), self._window))
        self._ramp = np.array(ramp, dtype=np.int64)
        self._memo: dict[int, tuple[int, I64]] = {}  # lane -> its window used last, and that window's permutation

    def locate(self, positions: npt.NDArray[Any]) -> tuple[I64, I64]:
        """Return (shard, record) of positions 0 … length-1, as two int64 arrays of the same length."""
        # In 64 bits with a sign: narrower or unsigned integers would wrap, or turn into floats, further down.
        positions = positions.astype(np.int64, copy=False)
        lanes, offsets = positions % self._lanes, positions // self._lanes
        if self._window > 1:
            offsets = self._shuffle_windows(lanes, offsets)
        stream = self._lane_start(lanes) + offsets
        place = np.searchsorted(self._ends, stream, side="right")
        return self._order[place], stream - self._starts[place]

    def needs(self, rank: int = 0, world_size: int = 1) -> tuple[I64, I64, I64]:
        """Return which shards a rank needs when, in the order of first need: (shards, begins, ends), int64.

        The samples that it takes from `shards[i]` stand at positions `begins[i]` … `ends[i]`-1, as closely as windows
        tell. A shard on the border of two lanes comes twice: it ends the one and begins the other, at other times.
        """
        lane_starts = self._lane_start(np.arange(self._lanes))
        cuts = np.unique(np.concatenate([self._starts, lane_starts, [self.length]]))
        starts, stops = cuts[:-1], cuts[1:]  # of the pieces that lie in one shard and one lane
        lanes = np.searchsorted(lane_starts, starts, side="right") - 1
        # Positions of a rank are equal modulo the world size, those of a lane modulo the number of lanes.
        common = math.gcd(self._lanes, world_size)
        mine = lanes % common == rank % common
        starts, stops, lanes = starts[mine], stops[mine], lanes[mine]
        first_windows = self._windows(starts - lane_starts[lanes])
        last_windows = self._windows(stops - 1 - lane_starts[lanes])
        lane_stops = self._lane_start(lanes + 1)
        begins = self._window_start(first_windows) * self._lanes + lanes
        last = np.minimum(self._window_start(last_windows + 1), lane_stops - lane_starts[lanes]) - 1
        shards = self._order[np.searchsorted(self._ends, starts, side="right")]
        order = np.argsort(begins, kind="stable")
        return shards[order], begins[order], (last * self._lanes + lanes + 1)[order]

    def lane_length(self, lane: int) -> int:
        """Return the number of samples in a lane."""
        return self.length // self._lanes + (lane < self.length % self._lanes)

    def _lane_start(self, lanes: I64) -> I64:
        each, longer = divmod(self.length, self._lanes)
        start: I64 = lanes * each + np.minimum(lanes, longer)
        return start

    def _shuffle_windows(self, lanes: I64, offsets: I64) -> I64:
        windows = self._windows(offsets)
        shuffled: I64 = offsets.copy()
        pairs = windows * self._lanes + lanes
        for pair in np.unique(pairs).tolist():  # few: a batch reads a stretch of each lane
            window, lane = divmod(pair, self._lanes)
            start, permutation = self._permuted(lane, window)
            chosen = pairs == pair
            shuffled[chosen] = start + permutation[offsets[chosen] - start]
        return shuffled

    def _windows(self, offsets: I64) -> I64:
        """Return the windows in which offsets of a lane lie."""
        windows: I64 = np.searchsorted(self._ramp, offsets, side="right") - 1
        beyond = windows == len(self._ramp) - 1
        windows[beyond] += (offsets[beyond] - self._ramp[-1]) // self._window
        return windows

    def _window_start(self, windows: I64) -> I64:
        """Return the offsets at which windows start."""
        last_ramp = len(self._ramp) - 1
        full = np.maximum(windows - last_ramp, 0) * self._window
        start: I64 = self._ramp[np.minimum(windows, last_ramp)] + full
        return start

    def _permuted(self, lane: int, window: int) -> tuple[int, I64]:
        """Return where a window of a lane starts, and the permutation of its samples."""
        start, stop = self._window_start(np.array([window, window + 1])).tolist()
        remembered = self._memo.get(lane)
        if remembered is None or remembered[0] != window:
            key = keyed_rng.fold(keyed_rng.fold(self._window_key, lane), window)
            remembered = window, keyed_rng.permutation(key, min(stop, self.lane_length(lane)) - start)
            self._memo[lane] = remembered
        return start, remembered[1]
