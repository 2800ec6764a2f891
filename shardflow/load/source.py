"""The head of the pipeline: which samples, in which order, for this rank and this worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from shardflow import keyed
from shardflow.dataset import Split
from shardflow.plan import Plan
from shardflow.schedule import Schedule

from .batch import Batch


class Order:
    """The order of a split's epochs, and which of its samples take part.

    Args:
        split: What is read.
        seed, window, shuffle: As in the plan.
        limit: Use the first `limit` samples of the split alone; None for all.
    """

    def __init__(self, split: Split, *, seed: int, window: int, shuffle: bool, limit: int | None) -> None:
        self.split, self.seed, self.window, self.shuffle, self.limit = split, seed, window, shuffle, limit
        sizes = split.shard_samples
        if limit is not None:
            before = np.cumsum(sizes) - sizes
            sizes = np.clip(limit - before, 0, sizes)
            sizes = sizes[sizes > 0]
        self._sizes = sizes
        self.length = int(sizes.sum())

    def plan(self, epoch: int, lanes: int) -> Plan:
        """Return the plan of an epoch."""
        return Plan(self._sizes, seed=self.seed, epoch=epoch, lanes=lanes, window=self.window, shuffle=self.shuffle)

    def sample_keys(self, epoch: int, shards: Any, records: Any) -> keyed.U64:
        """Return the keys of samples: uint64, from (seed, epoch, sample number in the split)."""
        numbers = self.split.first_sample(shards) + records
        return keyed.fold_array(keyed.key(self.seed, "augment", epoch), numbers)


@dataclass(slots=True)
class Start:
    """Where an iteration starts: shared with the workers, which outlive it."""

    epoch: int
    position: int
    lanes: int


class SharedStart:
    """The one thing that the training process tells persistent workers: a few integers in shared memory."""

    def __init__(self) -> None:
        self._values = torch.zeros(4, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def begin(self, start: Start) -> int:
        """Set the start of a new iteration and return its number; the iteration before it is over."""
        self._values[1:] = torch.tensor([start.epoch, start.position, start.lanes])
        self._values[0] += 1
        return self.iteration()

    def iteration(self) -> int:
        """Return the number of the iteration that is current."""
        return int(self._values[0])

    def read(self) -> Start:
        """Return the start of the current iteration."""
        return Start(*self._values[1:].tolist())


class PlanSource(IterableDataset[Batch]):
    """Yields this worker's batches of an iteration: every `workers`-th of the rank's, as the DataLoader asks."""

    def __init__(self, order: Order, schedule: Schedule, start: SharedStart) -> None:
        self._order, self._schedule, self._start = order, schedule, start

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        iteration, start = self._start.iteration(), self._start.read()
        plan = self._order.plan(start.epoch, start.lanes)
        batch_key = keyed.key(self._order.seed, "batch", start.epoch)
        for step in range(worker, self._schedule.steps(start.position), workers):
            if self._start.iteration() != iteration:
                return  # left early: what is still prefetched will be thrown away
            positions, valid = self._schedule.positions(start.position, step)
            empty = not len(positions)
            if empty:
                positions, valid = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.bool_)
            shards, records = plan.locate(positions)
            yield Batch(
                key=keyed.fold(batch_key, int(positions[0])),
                keys=self._order.sample_keys(start.epoch, shards, records),
                shards=shards,
                records=records,
                valid=valid,
                empty=empty,
            )
