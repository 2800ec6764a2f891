"""The batch sampler, the first stage of the pipeline: which samples of which source make each batch of this rank.

The batches of a loader come from one source, and those of a mix from several: either whole batches of each, or rows. A
*row* is one sample (or bin) for each rank, all from the same source: the n-th row of a source is the next `world_size`
positions of its endless stream of epochs. So every rank has the same shares and reads the streams of a plain loader. A
pass visits each sample of a source exactly once, for any number of ranks.

Steps are counted from the start of epoch 0. Batches are computed from the position of each source before a step.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from shardflow.order import keyed_rng
from shardflow.order.epochs import Located, ShardSpan
from shardflow.order.mixture import Shares

from .batch import Batch
from .shard_prefetcher import prefetching
from .shared_integers import SharedIntegers
from .source import EpochStart, Source

Starts = Sequence[EpochStart]
"""The position of each source."""


class WholeBatches:
    """Each batch comes from one source."""

    def __init__(self, sources: Sequence[Source], shares: Shares) -> None:
        self.sources, self._shares = list(sources), shares
        # The positions of a source that a step may take.
        self.unit = max(source.partition.global_batch for source in sources)

    def advance(self, starts: Starts, first: int, steps: int) -> list[EpochStart]:
        """Return where the sources are after `steps` steps from step `first`, before which they are at `starts`."""
        counts = self._shares.counts(first, first + steps)
        pairs = zip(self.sources, starts, counts, strict=True)
        return [source.after(start, count) for source, start, count in pairs]

    def batch(self, starts: Starts, step: int) -> Batch:
        """Return the batch of a step, before which the sources are at `starts`; its samples are located, not read."""
        (number,) = self._shares.source_of(np.array([step])).tolist()
        source, start = self.sources[number], starts[number]
        epochs = source.epochs
        positions, valid = source.partition.positions(start.position, 0)
        empty = not len(positions)
        if empty:
            positions, valid = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.bool_)
        found = epochs.locate(start.epoch, positions, start.streams)
        shape = epochs.shape(start.epoch, start.position, start.streams) if found.shapes is None else found.shapes
        return Batch(
            epoch=start.epoch,
            shape=shape,
            key=keyed_rng.key(epochs.key_seed, "batch", start.epoch, int(positions[0])),
            keys=found.keys,
            shards=found.shards,
            records=found.records,
            valid=np.repeat(valid, found.counts),
            bins=np.repeat(np.arange(len(positions)), found.counts),
            empty=empty,
            sources=[number] * len(found.keys),
        )

    def residue(self, source: int, epoch: int) -> int:  # noqa: ARG002 - the same in each epoch
        """Return the remainder, modulo the world size, of this rank's positions in an epoch of a source."""
        return self.sources[source].partition.rank


class Rows:
    """The samples of a batch come from all sources. `steps` is the number of batches per epoch; see `WholeBatches`."""

    def __init__(self, sources: Sequence[Source], shares: Shares, steps: int) -> None:
        self.sources, self._shares, self.steps = list(sources), shares, steps
        partition = sources[0].partition
        self._batch_size, self._rank, self.unit = partition.batch_size, partition.rank, partition.world_size

    def advance(self, starts: Starts, first: int, steps: int) -> list[EpochStart]:
        """Return where the sources are `steps` steps later."""
        counts = self._shares.counts(first * self._batch_size, (first + steps) * self._batch_size)
        return [
            source.at(source.stream_position(start) + rows * self.unit, start.streams)
            for source, start, rows in zip(self.sources, starts, counts, strict=True)
        ]

    def batch(self, starts: Starts, step: int) -> Batch:
        """Return the batch of a step."""
        sources = self._shares.source_of(np.arange(step * self._batch_size, (step + 1) * self._batch_size))
        counts = np.empty_like(sources)
        before = [source.stream_position(start) for source, start in zip(self.sources, starts, strict=True)]
        found: dict[int, Located] = {}
        for number in sorted({*sources.tolist()}):
            start, rows = starts[number], int((sources == number).sum())
            first = start.position + (self._rank - before[number]) % self.unit
            mine = first + self.unit * np.arange(rows)
            found[number] = self.sources[number].epochs.locate(start.epoch, mine, start.streams)
            counts[sources == number] = found[number].counts
        bins = np.repeat(np.arange(len(sources)), counts)
        shards, records = np.empty_like(bins), np.empty_like(bins)
        keys, shapes = np.empty(len(bins), dtype=np.uint64), np.zeros((len(bins), 2), dtype=np.int64)
        for number, located in found.items():
            here = sources[bins] == number
            shards[here], records[here], keys[here] = located.shards, located.records, located.keys
            if located.shapes is not None:
                shapes[here] = located.shapes
        number = int(sources[0])
        return Batch(
            epoch=step // self.steps,
            shape=shapes if self.sources[0].epochs.sampler.patch else None,
            key=keyed_rng.key(self.sources[0].epochs.seed, "mixed batch", number, before[number] + self._rank),
            keys=keys,
            shards=shards,
            records=records,
            valid=np.ones(len(bins), dtype=np.bool_),
            bins=bins,
            sources=sources[bins].tolist(),
        )

    def residue(self, source: int, epoch: int) -> int:
        """Return the remainder of this rank's positions in an epoch: ranks take turns in the stream of all epochs."""
        return (self._rank - epoch * self.sources[source].epochs.length) % self.unit


BatchPlan = WholeBatches | Rows
"""How the samples of sources become batches."""


class WorkerControl:
    """A few integers in shared memory, through which the training process and its workers communicate.

    The training process publishes the first step of the current iteration, the number of its steps, and where the
    sources are before it. Each worker publishes its current step.
    """

    def __init__(self, workers: int, sources: int = 1) -> None:
        self._steps_at = 3 + 3 * sources
        self._shared = SharedIntegers(self._steps_at + max(1, workers))
        self.iteration = 0  # the number of the current iteration, in the training process

    def begin(self, first: int, steps: int, starts: Starts) -> int:
        """Publish a new iteration, which ends the previous one, and return its number."""
        places = [number for start in starts for number in (start.epoch, start.position, start.streams)]
        values = self._shared.to_set()
        values[1 : self._steps_at] = torch.tensor([first, steps, *places], device="cpu")
        values[self._steps_at :] = -1
        self.end()
        return self.iteration

    def end(self) -> None:
        """End the current iteration, because the cursor has moved."""
        self.iteration += 1
        self._shared.to_set()[0] = self.iteration

    def published(self) -> int:
        """Return the number of the current iteration, in a worker."""
        return int(self._shared.values[0])

    def begun(self) -> tuple[int, int, list[EpochStart]]:
        """Return the first step of the current iteration, its number of steps, and where the sources start."""
        first, steps, *places = self._shared.values[1 : self._steps_at].tolist()
        return first, steps, [EpochStart(*places[at : at + 3]) for at in range(0, len(places), 3)]

    def begin_step(self, worker: int, step: int) -> None:
        """Publish that a worker begins the batch of a step of the iteration."""
        self._shared.values[self._steps_at + worker] = step

    def steps_begun(self) -> dict[int, int]:
        """Return the step that each worker began last, without workers that have not begun one."""
        return {worker: step for worker, step in enumerate(self._shared.values[self._steps_at :].tolist()) if step >= 0}


class BatchSampler(IterableDataset[Batch]):
    """Yields this worker's batches of an iteration: every `workers`-th batch of the rank, as the DataLoader expects."""

    def __init__(self, plan: BatchPlan, control: WorkerControl) -> None:
        self.plan, self._control = plan, control

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        iteration, plan = self._control.published(), self.plan
        first, steps, starts = self._control.begun()
        done = 0
        with contextlib.ExitStack() as stack:
            advances = [
                stack.enter_context(
                    prefetching(
                        source.split,
                        self.needs(number, start),
                        workers=workers,
                        period=source.epochs.pass_length,
                        sources=len(plan.sources),
                    )
                )
                for number, (source, start) in enumerate(zip(plan.sources, starts, strict=True))
            ]
            for step in range(worker, steps, workers):
                if self._control.published() != iteration:
                    return  # the iteration ended early: batches still in the queue are discarded
                self._control.begin_step(worker, step)
                starts, done = plan.advance(starts, first + done, step - done), step
                after = plan.advance(starts, first + step, 1)
                for source, advance, start, end in zip(plan.sources, advances, starts, after, strict=True):
                    position, stop = source.stream_position(start), source.stream_position(end)
                    advance(position, max(stop, position + plan.unit))  # a step may take no sample of a source
                yield plan.batch(starts, first + step)

    def needs(self, number: int, start: EpochStart) -> Iterator[ShardSpan]:
        """Yield the shards that this rank reads from a start on, endlessly, as spans of the source's stream."""
        source, first, idle = self.plan.sources[number], start.position, 0
        for epoch in itertools.count(start.epoch):
            idle += 1
            before, residue = epoch * source.epochs.length, self.plan.residue(number, epoch)
            for span in source.epochs.needs(epoch, first, start.streams, residue, source.partition.world_size):
                idle = 0
                yield ShardSpan(span.shard, span.begin + before, span.end + before)
            if idle > source.partition.world_size:
                return  # fewer samples than ranks: this rank never gets any
            first = 0
