"""The bucket plan: epochs whose global batches are of one bucket each, such as images of one aspect ratio.

    stream    the samples in the order of the plan
    groups    the samples of a bucket, as they come in the stream, are cut into global batches; each lane gives the
              same number to a group, at its own positions, so that a rank reads its shards as without buckets
    epoch     the groups, in the order in which the stream completes them
    rest      what fills no group of its bucket is handed on to the next bucket; only the last may be left with less
              than a global batch, the tail of the epoch

Every sample comes as often as in the plan. The order is one array, made anew for each epoch: positions are found by
lookup.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .list_plan import ListPlan
from .plan import Plan, shard_spans
from .window_shuffle import I64

_CHUNK = 1 << 18


class BucketPlan:
    """The order of one epoch: the pure function from position to (shard, record); see `Plan`.

    Args:
        plan: The plan whose samples are grouped.
        buckets: The bucket of each sample of the split, an integer from 0; neighbours in number are neighbours in kind.
        first_samples: The number of the first sample of each shard, int64.
        group: Samples in a global batch.
        lanes: Lanes of the plan.

    Attributes:
        length: Samples in the epoch.
        moved: Samples that are in a group of another bucket than their own.
    """

    def __init__(
        self, plan: Plan | ListPlan, buckets: npt.NDArray[Any], first_samples: I64, *, group: int, lanes: int
    ) -> None:
        self.length, self._group = plan.length, group
        streams = math.gcd(lanes, group)  # positions equal modulo this are in the same lanes
        each = group // streams
        parts = [
            np.stack(plan.visits(np.arange(begin, min(begin + _CHUNK, plan.length))))
            for begin in range(0, plan.length, _CHUNK)
        ]
        visits = np.concatenate(parts, axis=1) if parts else np.empty((3, 0), dtype=np.int64)
        own = buckets[first_samples[visits[0]] + visits[1]]
        groups: list[I64] = []
        kinds: list[int] = []
        rest = np.empty(0, dtype=np.int64)
        last = int(own.max(initial=0))
        for bucket in range(last + 1):
            places = np.flatnonzero(own == bucket)
            by_stream = [places[places % streams == stream] for stream in range(streams)]
            whole = min(map(len, by_stream)) // each
            # [groups, each, streams]: position p of a group belongs to stream p % streams.
            stacked = np.stack([one[: whole * each].reshape(whole, each) for one in by_stream], axis=-1)
            rest = np.concatenate([rest, *(one[whole * each :] for one in by_stream)])
            filled = len(rest) // self._group * self._group
            groups += [*stacked.reshape(whole, self._group), *rest[:filled].reshape(-1, self._group)]
            kinds += [bucket] * (len(groups) - len(kinds))
            rest = rest[filled:]
        order = sorted(range(len(groups)), key=lambda number: int(groups[number].max()))
        self._places = np.concatenate([*(groups[number] for number in order), rest])
        self._kinds = np.array([*(kinds[number] for number in order), last])
        self._visits = visits[:, self._places]
        steps = np.arange(self.length) // self._group
        self.moved = int((own[self._places] != self._kinds[steps]).sum())

    def bucket(self, position: int) -> int:
        """Return the bucket of the global batch of a position."""
        return int(self._kinds[position // self._group])

    def visits(self, positions: npt.NDArray[Any]) -> tuple[I64, I64, I64]:
        """Return (shard, record, repeat) of positions 0 … length-1; see `Plan.visits`."""
        shards, records, repeats = self._visits[:, positions]
        return shards, records, repeats

    def needs(self, rank: int, world_size: int) -> tuple[I64, I64, I64]:
        """Return which shards a rank needs and when; see `Plan.needs`."""
        shards, begins, ends = shard_spans(self._visits[0, rank::world_size])
        return shards, begins * world_size + rank, (ends - 1) * world_size + rank + 1
