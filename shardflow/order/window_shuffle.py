"""The window shuffle: a shuffle buffer as a pure function. The samples of a stream are permuted inside of windows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from . import keyed_rng

I64 = npt.NDArray[np.int64]

FIRST_WINDOW = 32
"""Samples in the first window of a stream: what a batch of 256 takes from each of eight streams.

Windows grow from there, so that the first batch of an epoch waits for the head of a shard per stream, and not for all
the shards that a full window spans.
"""


class WindowShuffle:
    """The windows of an epoch: a shuffle buffer as a pure function of the epoch's key.

    Windows end at 32, 64, 128, …, W, 2W, 3W, …. The permutation of each is keyed by its stream and its number, so that
    any offset can be computed without those before it. The only state is a cache of the permutations used last.
    """

    def __init__(self, key: int, window: int) -> None:
        self._key, self._window = key, window
        starts = [0]  # of the windows that grow, and of the first full one
        while starts[-1] < window:
            starts.append(min(max(FIRST_WINDOW, 2 * starts[-1]), window))
        self._first_starts = np.array(starts, dtype=np.int64)
        self._last_used: dict[int, tuple[int, I64]] = {}  # stream → window, and its permutation

    def windows(self, offsets: I64) -> I64:
        """Return the numbers of the windows in which offsets of a stream lie, as int64."""
        windows: I64 = np.searchsorted(self._first_starts, offsets, side="right") - 1
        full = windows == len(self._first_starts) - 1
        windows[full] += (offsets[full] - self._first_starts[-1]) // self._window
        return windows

    def starts(self, windows: I64) -> I64:
        """Return the offsets at which windows start, as int64."""
        first_full = len(self._first_starts) - 1
        beyond = np.maximum(windows - first_full, 0) * self._window
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
