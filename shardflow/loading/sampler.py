"""The head of the pipeline: which samples, in which order, for this rank and this worker."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from shardflow._validation import check_integer
from shardflow.dataset.dataset import Split
from shardflow.order import keyed_rng
from shardflow.order.plan import I64, Plan
from shardflow.order.schedule import Schedule

from .batch import Batch
from .exit_with_parent import exit_with_parent
from .shard_prefetcher import ShardSpan, prefetching


def augmentation_keys(seed: int, number: int, samples: I64) -> keyed_rng.U64:
    """Return the keys that a pass over the split has for samples, given by their numbers in it: uint64 [B]."""
    return keyed_rng.fold_array(keyed_rng.key(seed, "augment", number), samples)


class EpochOrder:
    """The order of a loader's epochs, and which samples of the split take part.

    Args:
        split: What is read.
        seed, window, shuffle: As in the plan.
        limit: Use the first `limit` samples of the split alone; None for all.
        samples_per_epoch: Length of the loader's epochs; None for one pass over the samples. Otherwise the passes, each
            in its own order, form one endless stream, of which epoch e is the e-th stretch of that length.
    """

    def __init__(
        self,
        split: Split,
        *,
        seed: int,
        window: int,
        shuffle: bool,
        limit: int | None = None,
        samples_per_epoch: int | None = None,
    ) -> None:
        self.split, self.shuffle = split, shuffle
        self.seed, self.window = check_integer("seed", seed), check_integer("window", window)
        self.limit = limit = None if limit is None else check_integer("limit", limit, 1)
        if samples_per_epoch is not None:
            samples_per_epoch = check_integer("samples_per_epoch", samples_per_epoch, 1)
        sizes = split.shard_samples
        if limit is not None:
            before = np.cumsum(sizes) - sizes
            sizes = np.clip(limit - before, 0, sizes)
            sizes = sizes[sizes > 0]
        self._sizes = sizes
        self.pass_length = int(sizes.sum())
        self.samples_per_epoch = samples_per_epoch
        self.length = self.pass_length if samples_per_epoch is None else samples_per_epoch
        self._plans: dict[tuple[int, int], Plan] = {}  # of the two passes used last

    def locate(self, epoch: int, positions: I64, lanes: int) -> tuple[I64, I64, keyed_rng.U64]:
        """Return shard, record and key of the samples at positions 0 … length-1 of an epoch."""
        passes, within = np.divmod(epoch * self.length + positions, self.pass_length)
        shards, records = np.empty_like(positions), np.empty_like(positions)
        keys = np.empty(len(positions), dtype=np.uint64)
        for number in np.unique(passes).tolist():
            here = passes == number
            shards[here], records[here] = self._plan(number, lanes).locate(within[here])
            samples = self.split.first_sample(shards[here]) + records[here]
            keys[here] = augmentation_keys(self.seed, number, samples)
        return shards, records, keys

    def needs(self, epoch: int, first: int, lanes: int, rank: int, world_size: int) -> Iterator[ShardSpan]:
        """Yield which shards a rank reads from position `first` of an epoch on, in the order of first need."""
        if not self.length:
            return
        start = epoch * self.length
        for number in range((start + first) // self.pass_length, -(-(start + self.length) // self.pass_length)):
            before = number * self.pass_length - start  # positions of the epoch before this pass
            plan = self._new_plan(number, lanes)
            shards, begins, ends = plan.needs((rank - before) % world_size, world_size)
            wanted = (ends + before > first) & (begins + before < self.length)
            columns = shards[wanted], begins[wanted] + before, ends[wanted] + before
            yield from map(ShardSpan, *(column.tolist() for column in columns))

    def _plan(self, number: int, lanes: int) -> Plan:
        if (number, lanes) not in self._plans:
            while len(self._plans) > 1:
                del self._plans[next(iter(self._plans))]
            self._plans[number, lanes] = self._new_plan(number, lanes)
        return self._plans[number, lanes]

    def _new_plan(self, number: int, lanes: int) -> Plan:
        return Plan(self._sizes, seed=self.seed, epoch=number, lanes=lanes, window=self.window, shuffle=self.shuffle)


@dataclass(slots=True)
class EpochStart:
    """Where an iteration starts: shared with the workers, which outlive it."""

    epoch: int
    position: int
    lanes: int


class WorkerControl:
    """What the training process and its workers tell each other: a few integers in shared memory.

    The training process says where the current iteration starts; each worker says which step it is making.
    """

    def __init__(self, workers: int) -> None:
        self.workers = max(1, workers)
        self.owner = os.getpid()
        self._values = torch.zeros(4 + self.workers, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def begin(self, start: EpochStart) -> int:
        """Set the start of a new iteration and return its number; the iteration before it is over."""
        self._values[1:4] = torch.tensor([start.epoch, start.position, start.lanes])
        self._values[4:] = -1
        self.end()
        return self.iteration()

    def end(self) -> None:
        """Declare that the current iteration is over: the cursor has been moved."""
        self._values[0] += 1

    def iteration(self) -> int:
        """Return the number of the iteration that is current."""
        return int(self._values[0])

    def read(self) -> EpochStart:
        """Return the start of the current iteration."""
        return EpochStart(*self._values[1:4].tolist())

    def making(self, worker: int, step: int) -> None:
        """Say that a worker has begun to make a step's batch."""
        self._values[4 + worker] = step

    def made_by(self, worker: int) -> int:
        """Return the step that a worker began last, -1 before its first."""
        return int(self._values[4 + worker])


@functools.cache
def _begin_work(owner: int) -> None:
    """Do what a worker does once, before its first batch."""
    gc.freeze()  # collecting what a fork inherited would touch, and so copy, all of it: 30,000 pages
    exit_with_parent(owner)


class PlanSampler(IterableDataset[Batch]):
    """Yields this worker's batches of an iteration: every `workers`-th of the rank's, as the DataLoader asks."""

    def __init__(self, order: EpochOrder, schedule: Schedule, shared: WorkerControl) -> None:
        self._order, self._schedule, self._shared = order, schedule, shared

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        if info:
            _begin_work(self._shared.owner)
        iteration, start = self._shared.iteration(), self._shared.read()
        schedule, order = self._schedule, self._order
        with prefetching(order.split, self.needs(start), workers=workers, period=order.pass_length) as reach:
            for step in range(worker, schedule.steps(start.position), workers):
                if self._shared.iteration() != iteration:
                    return  # left early: what is still prefetched will be thrown away
                self._shared.making(worker, step)
                reach(schedule.after(start.position, step), schedule.after(start.position, step + 1))
                yield self.batch(start, step)

    def needs(self, start: EpochStart) -> Iterator[ShardSpan]:
        """Yield what an iteration reads and then what the next epoch will, which is not to begin with a wait."""
        order, schedule = self._order, self._schedule
        for epoch, first, before in ((start.epoch, start.position, 0), (start.epoch + 1, 0, order.length)):
            for need in order.needs(epoch, first, start.lanes, schedule.rank, schedule.world_size):
                yield ShardSpan(need.shard, need.begin + before, need.end + before)

    def batch(self, start: EpochStart, step: int) -> Batch:
        """Return what step `step` of an iteration consists of."""
        positions, valid = self._schedule.positions(start.position, step)
        empty = not len(positions)
        if empty:
            positions, valid = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.bool_)
        shards, records, keys = self._order.locate(start.epoch, positions, start.lanes)
        return Batch(
            key=keyed_rng.key(self._order.seed, "batch", start.epoch, int(positions[0])),
            keys=keys,
            shards=shards,
            records=records,
            valid=valid,
            empty=empty,
        )
