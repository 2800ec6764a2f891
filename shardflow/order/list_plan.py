"""The list plan: epochs that are a list of samples, in the order in which they are named."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .plan import shard_spans
from .window_shuffle import I64


class ListPlan:
    """The order of every epoch: the pure function from position to (shard, record); see `Plan`.

    Args:
        samples: Numbers of samples of the split, int64 [N]; one that is named several times comes so often.
        shard_samples: Number of samples of each shard.

    Attributes:
        length: Samples in the epoch.
    """

    def __init__(self, samples: I64, shard_samples: npt.ArrayLike) -> None:
        self.length = len(samples)
        sizes = np.asarray(shard_samples, dtype=np.int64)
        ends = np.cumsum(sizes)
        self._shards: I64 = np.searchsorted(ends, samples, side="right")
        self._records = samples - (ends - sizes)[self._shards]
        order = np.argsort(samples, kind="stable")
        ascending = samples[order]
        self._repeats = np.empty_like(samples)
        self._repeats[order] = np.arange(len(samples)) - np.searchsorted(ascending, ascending)

    def visits(self, positions: npt.NDArray[Any]) -> tuple[I64, I64, I64]:
        """Return (shard, record, repeat) of positions 0 … length-1; see `Plan.visits`."""
        return self._shards[positions], self._records[positions], self._repeats[positions]

    def needs(self, rank: int, world_size: int) -> tuple[I64, I64, I64]:
        """Return which shards a rank needs and when; see `Plan.needs`."""
        shards, begins, ends = shard_spans(self._shards[rank::world_size])
        return shards, begins * world_size + rank, (ends - 1) * world_size + rank + 1
