"""The sampler of a mix: which samples of which source make each batch.

A *row* is one sample for each rank, all from the same source: the n-th row of a source is the next `world_size`
positions of its endless stream of passes. So every rank has the same shares, reads the lanes that it reads as a loader,
and each source's samples come exactly once per pass, whatever the number of ranks.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from shardflow.dataset.dataset import Split
from shardflow.order import keyed_rng
from shardflow.order.epochs import Epochs, ShardSpan
from shardflow.order.window_shuffle import I64

from .sampler import Batch, EpochStart, WorkerControl
from .shard_prefetcher import prefetching

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, rounded to odd


class Shares:
    """The source of each number of a sequence, in proportion to weights above 0."""

    def __init__(self, weights: Sequence[float]) -> None:
        shares = np.cumsum(weights) / sum(weights)
        self._bounds = np.array([min(int(share * 2**64), 2**64 - 1) for share in shares[:-1]], dtype=np.uint64)

    def source_of(self, numbers: I64) -> I64:
        """Return the source of each of these numbers, which are 0 or more."""
        values = numbers.astype(np.uint64) * np.uint64(_GOLDEN)
        sources: I64 = np.searchsorted(self._bounds, values, side="right")
        return sources


@dataclass(frozen=True, slots=True, kw_only=True)
class MixPlan:
    """How the rows of a mix become batches of this rank.

    Attributes:
        splits, orders: The split of each source, and its order.
        shares: The source of each row; rows are counted from the start of epoch 0.
        batch_size: Rows of a batch.
        steps: Batches of an epoch.
        rank, world_size: As for a loader.
    """

    splits: Sequence[Split]
    orders: Sequence[Epochs]
    shares: Shares
    batch_size: int
    steps: int
    rank: int
    world_size: int

    def rows(self, first: int, steps: int) -> I64:
        """Return the rows of so many steps, from step `first` on."""
        return np.arange(first * self.batch_size, (first + steps) * self.batch_size)

    def advance(self, positions: I64, first: int, steps: int) -> I64:
        """Return where each source's stream is after so many steps, if it is at `positions` before step `first`."""
        counts = np.bincount(self.shares.source_of(self.rows(first, steps)), minlength=len(self.orders))
        return positions + self.world_size * counts

    def batch(self, positions: I64, lanes: Sequence[int], step: int) -> Batch:
        """Return the batch of a step, its samples located but not read; before it, the streams are at `positions`."""
        sources = self.shares.source_of(self.rows(step, 1))
        shards, records = np.empty_like(sources), np.empty_like(sources)
        keys = np.empty(len(sources), dtype=np.uint64)
        for source in np.unique(sources).tolist():
            here = np.flatnonzero(sources == source)
            first = int(positions[source])
            mine = first + (self.rank - first) % self.world_size + self.world_size * np.arange(len(here))
            shards[here], records[here], keys[here] = self.orders[source].locate(0, mine, lanes[source])
        seed, source = self.orders[0].seed, int(sources[0])
        return Batch(
            epoch=step // self.steps,
            shape=None,
            key=keyed_rng.key(seed, "mixed batch", source, int(positions[source]) + self.rank),
            keys=keys,
            shards=shards,
            records=records,
            valid=np.ones(len(sources), dtype=np.bool_),
            empty=False,
            sources=sources.tolist(),
        )


class MixSampler(IterableDataset[Batch]):
    """Yields this worker's batches of an iteration: every `workers`-th batch of the rank, as the DataLoader expects."""

    def __init__(self, plan: MixPlan, control: WorkerControl) -> None:
        self.plan, self._control = plan, control

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        iteration, start, plan = self._control.iteration(), self._control.start(), self.plan
        positions, lanes = self.starts()
        first, done = start.epoch * plan.steps + start.position, 0
        with contextlib.ExitStack() as stack:
            advances = [
                stack.enter_context(
                    prefetching(
                        plan.splits[source],
                        self._needs(source, position, lanes[source]),
                        workers=workers,
                        period=order.pass_length,
                        sources=len(plan.orders),
                    )
                )
                for source, (order, position) in enumerate(zip(plan.orders, positions.tolist(), strict=True))
            ]
            for step in range(worker, plan.steps - start.position, workers):
                if self._control.iteration() != iteration:
                    return  # the iteration was left early: batches still in the queue will be thrown away
                self._control.begin_step(worker, step)
                positions, done = plan.advance(positions, first + done, step - done), step
                after = plan.advance(positions, first + step, 1)
                for advance, position, stop in zip(advances, positions.tolist(), after.tolist(), strict=True):
                    advance(position, max(stop, position + plan.world_size))  # a step may have no row of a source
                yield plan.batch(positions, lanes, first + step)

    def starts(self) -> tuple[I64, list[int]]:
        """Return the position of each source's stream at the start of the current iteration, and its lanes."""
        values = np.array(self._control.extra(), dtype=np.int64).reshape(-1, 2)
        return values[:, 0], values[:, 1].tolist()

    def _needs(self, source: int, position: int, lanes: int) -> Iterator[ShardSpan]:
        """Yield the shards that this rank reads from a position of a source's stream on, without end."""
        plan, order = self.plan, self.plan.orders[source]
        first_epoch, first = divmod(position, order.length)
        for epoch in itertools.count(first_epoch):
            before = epoch * order.length
            for span in order.needs(epoch, first, lanes, (plan.rank - before) % plan.world_size, plan.world_size):
                yield ShardSpan(span.shard, span.begin + before, span.end + before)
            first = 0


def stream_position(start: EpochStart, order: Epochs) -> int:
    """Return the place of a start in the endless stream of a source's passes."""
    return start.epoch * order.length + start.position


def stream_start(position: int, order: Epochs, lanes: int) -> EpochStart:
    """Return the start at a place of that stream."""
    epoch, within = divmod(position, order.length)
    return EpochStart(epoch, within, lanes)
