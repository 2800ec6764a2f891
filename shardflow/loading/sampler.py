"""The sampler, the first stage of the pipeline: which samples, in which order, for this rank and this worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import IterableDataset, get_worker_info

from shardflow.dataset.dataset import Split
from shardflow.dataset.sample import Sample
from shardflow.geometry.crops import Crops
from shardflow.order import keyed_rng
from shardflow.order.epochs import Epochs, ShardSpan
from shardflow.order.sampler import Shape
from shardflow.order.schedule import Schedule
from shardflow.order.window_shuffle import I64

from .shard_prefetcher import prefetching


@dataclass(slots=True)
class EpochStart:
    """Where an iteration starts."""

    epoch: int
    position: int
    lanes: int


class WorkerControl:
    """A few integers in shared memory, through which the training process and its workers talk.

    The training process publishes the start of the current iteration, and `extra` integers that belong to it; each
    worker publishes the step it works on.
    """

    def __init__(self, workers: int, extra: int = 0) -> None:
        self._steps_at = 4 + extra
        values = torch.zeros(self._steps_at + max(1, workers), dtype=torch.int64)
        self._values = values.share_memory_()  # type: ignore[no-untyped-call]

    def begin(self, start: EpochStart, extra: Sequence[int] = ()) -> int:
        """Publish the start of a new iteration, which ends the one before it, and return its number."""
        self._values[1 : self._steps_at] = torch.tensor([start.epoch, start.position, start.lanes, *extra])
        self._values[self._steps_at :] = -1
        self.end()
        return self.iteration()

    def end(self) -> None:
        """Declare the current iteration over, because the cursor has been moved."""
        self._values[0] += 1

    def iteration(self) -> int:
        """Return the number of the current iteration."""
        return int(self._values[0])

    def start(self) -> EpochStart:
        """Return the start of the current iteration."""
        return EpochStart(*self._values[1:4].tolist())

    def extra(self) -> list[int]:
        """Return the integers that belong to it."""
        values: list[int] = self._values[4 : self._steps_at].tolist()
        return values

    def begin_step(self, worker: int, step: int) -> None:
        """Publish that a worker begins the batch of a step."""
        self._values[self._steps_at + worker] = step

    def steps_begun(self) -> dict[int, int]:
        """Return the step that each worker began last, without workers that began none."""
        return {worker: step for worker, step in enumerate(self._values[self._steps_at :].tolist()) if step >= 0}


@dataclass(slots=True, kw_only=True)
class Batch:
    """A batch in a worker's pipeline; each stage fills in its part."""

    epoch: int
    shape: Shape | None  # that of all its images, if the sampler decides on it
    key: int  # the batch's own 64-bit key
    keys: keyed_rng.U64  # [B], the samples' keys: from (seed, epoch, sample) alone
    shards: I64  # [B], where the samples lie
    records: I64
    valid: npt.NDArray[np.bool_]  # [B], False for the repeats that fill a padded tail
    empty: bool  # no sample for this rank: the batch carries one, for its shapes and dtypes, and `Collate` removes it
    source: int = 0  # the number of the loader in a mix by batch
    sources: list[int] | None = None  # [B], the number of each sample's loader in a mix by sample
    samples: list[Sample] = field(default_factory=list)
    pixels: list[npt.NDArray[np.uint8] | None] = field(default_factory=list)  # [H, W, 3], those in the pixel cache
    images: Any = None  # from the decoder, then from the transform
    crops: Crops | tuple[Crops, ...] | None = None  # with views one for each
    masks: dict[str, list[torch.Tensor]] = field(default_factory=dict)  # field → [B], uint8 or int32 [1 or 3, H, W]
    objects: dict[str, list[torch.Tensor]] = field(default_factory=dict)  # boxes, their fields, keypoints
    read_bytes: int = 0  # of the samples' parts
    network_bytes: int = 0  # of the shards that were downloaded since the batch before
    substituted: list[str] = field(default_factory=list)  # the problem of each sample that another one replaces


class PlanSampler(IterableDataset[Batch]):
    """Yields this worker's batches of an iteration: every `workers`-th batch of the rank, as the DataLoader expects."""

    def __init__(self, split: Split, order: Epochs, schedule: Schedule, control: WorkerControl) -> None:
        self._split, self.order, self.schedule, self._control = split, order, schedule, control

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        iteration, start = self._control.iteration(), self._control.start()
        schedule, order = self.schedule, self.order
        with prefetching(self._split, self.needs(start), workers=workers, period=order.pass_length) as advance:
            for step in range(worker, schedule.steps(start.position), workers):
                if self._control.iteration() != iteration:
                    return  # the iteration was left early: batches still in the queue will be thrown away
                self._control.begin_step(worker, step)
                advance(schedule.after(start.position, step), schedule.after(start.position, step + 1))
                yield self.batch(start, step)

    def needs(self, start: EpochStart) -> Iterator[ShardSpan]:
        """Yield the shards of an iteration, then those of the next epoch, so that it does not begin with a wait."""
        order, schedule = self.order, self.schedule
        for epoch, first, before in ((start.epoch, start.position, 0), (start.epoch + 1, 0, order.length)):
            for span in order.needs(epoch, first, start.lanes, schedule.rank, schedule.world_size):
                yield ShardSpan(span.shard, span.begin + before, span.end + before)

    def batch(self, start: EpochStart, step: int) -> Batch:
        """Return the batch of step `step` of an iteration, its samples located but not read."""
        positions, valid = self.schedule.positions(start.position, step)
        empty = not len(positions)
        if empty:
            positions, valid = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.bool_)
        shards, records, keys = self.order.locate(start.epoch, positions, start.lanes)
        return Batch(
            epoch=start.epoch,
            shape=self.order.shape(start.epoch, self.schedule.after(start.position, step), start.lanes),
            key=keyed_rng.key(self.order.key_seed, "batch", start.epoch, int(positions[0])),
            keys=keys,
            shards=shards,
            records=records,
            valid=valid,
            empty=empty,
            source=self.order.source,
        )
