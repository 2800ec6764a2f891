"""The list plan: a pass whose order is one array, made anew for each epoch; positions are found by lookup."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow.errors import ConfigError

from .keyed_rng import I64
from .sampler import EpochPlan, shard_spans


class ListPlan(EpochPlan):
    """The order of one epoch, as a list.

    Args:
        visits: Shard, record and repeat of each position, int64 [3, N].
    """

    def __init__(self, visits: I64) -> None:
        self.length, self._visits = visits.shape[1], visits

    @classmethod
    def of_samples(cls, samples: I64, shard_samples: npt.ArrayLike) -> ListPlan:
        """Return the plan of samples by their numbers in the split; one that is named several times comes so often."""
        ends = np.cumsum(np.asarray(shard_samples, dtype=np.int64))
        total = int(ends[-1]) if len(ends) else 0
        if len(bad := np.flatnonzero((samples < 0) | (samples >= total))):
            raise ConfigError(f"the sampler names sample {samples[bad[0]]}, and 0 … {total - 1} take part")
        shards: I64 = np.searchsorted(ends, samples, side="right")
        firsts = np.concatenate([[0], ends])[shards]
        order = np.argsort(samples, kind="stable")
        ascending, repeats = samples[order], np.empty_like(samples)
        repeats[order] = np.arange(len(samples)) - np.searchsorted(ascending, ascending)
        return cls(np.stack([shards, samples - firsts, repeats]))

    def visits(self, positions: npt.NDArray[Any]) -> tuple[I64, I64, I64]:
        """Return (shard, record, repeat) of positions."""
        shards, records, repeats = self._visits[:, positions]
        return shards, records, repeats

    def needs(self, rank: int, world_size: int) -> tuple[I64, I64, I64]:
        """Return which shards the positions of a rank need and when."""
        shards, begins, ends = shard_spans(self._visits[0, rank::world_size])
        return shards, begins * world_size + rank, (ends - 1) * world_size + rank + 1
