"""The sampler, the first stage of the pipeline: which samples, in which order, for this rank and this worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import IterableDataset, get_worker_info

from shardflow._validation import check_integer
from shardflow.dataset.dataset import Split
from shardflow.dataset.sample import Sample
from shardflow.errors import ConfigError
from shardflow.order import keyed_rng
from shardflow.order.bucket_plan import BucketPlan
from shardflow.order.class_batches import ClassBatches, ClassBatchPlan
from shardflow.order.list_plan import ListPlan
from shardflow.order.plan import MOST_LANES, MOST_WINDOW, WINDOW, Plan, default_lanes
from shardflow.order.schedule import MOST_POSITIONS, Schedule
from shardflow.order.weights import ShardWeights, Weights
from shardflow.order.window_shuffle import I64

from .geometry import Geometry
from .shard_prefetcher import ShardSpan, prefetching

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle:
    """How a loader shuffles; `shuffle=True` stands for `Shuffle()`.

    >>> loader = shardflow.Loader("photos256", batch_size=256, shuffle=shardflow.Shuffle(lanes=64))  # doctest: +SKIP

    Attributes:
        window: Samples of a lane that are shuffled together, 1 … 2**40. A larger window mixes better, a smaller one
            keeps fewer shards open.
        lanes: Parallel streams into which the epoch is cut, 1 … 1,048,576; None for eight per rank. A resumed run
            that leaves this at None keeps the lanes of the saved run.
        sticky: Keep the shards of a lane from epoch to epoch, and shuffle their order and their samples alone. Then a
            host reads the same shards in every epoch, and needs a cache for its share of the dataset only; samples of
            different ranks never meet in a rank's batch (docs/performance.md). Not with `samples_per_epoch` or
            `samples_per_class`, nor in a `Mix` by sample.

    Raises:
        ConfigError: A value is out of its range.
    """

    window: int = WINDOW
    lanes: int | None = None
    sticky: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "window", check_integer("window", self.window, 1, MOST_WINDOW))
        if self.lanes is not None:
            object.__setattr__(self, "lanes", check_integer("lanes", self.lanes, 1, MOST_LANES))
        if not isinstance(self.sticky, bool | np.bool_):
            raise ConfigError(f"sticky must be True or False, found {self.sticky!r}")
        object.__setattr__(self, "sticky", bool(self.sticky))


def augmentation_keys(seed: int, number: int, samples: I64, repeats: I64 | None = None) -> keyed_rng.U64:
    """Return the keys of samples, by their numbers in the split, in pass `number` over it: uint64 [B].

    A sample that comes several times has a key for each of its repeats; that of the first, 0, is as without repeats.
    """
    keys = keyed_rng.fold_array(keyed_rng.key(seed, "augment", number), samples)
    if repeats is None:
        return keys
    # Within a word, because a transform on the device folds its own small number into a key.
    within = keyed_rng.fold_array(keys, np.array([keyed_rng.key("repeat")], dtype=np.uint64))
    return np.where(repeats > 0, keyed_rng.fold_array(within, repeats), keys)


class Buckets(NamedTuple):
    """How an epoch is grouped into buckets.

    Attributes:
        of_samples: The bucket of each sample that takes part, an integer from 0.
        sizes: The shape of each bucket, for the state.
        global_batch: Samples of all ranks in a step.
    """

    of_samples: I64
    sizes: list[list[int]]
    global_batch: int


class Visit(NamedTuple):
    """A sample's turn in the order of a loader.

    Attributes:
        epoch: The epoch.
        bucket: The bucket of its batch; 0 without buckets.
        key: Its key.
    """

    epoch: int
    bucket: int
    key: int


AnyPlan = Plan | ClassBatchPlan | BucketPlan | ListPlan


class EpochOrder:
    """The order of a loader's epochs, and which samples of the split take part, and how often.

    With `samples_per_epoch` the passes over the samples, each in its own order, form one endless stream, and epoch e is
    the e-th section of that length. `lanes` is None where `default_lanes` decides.

    Attributes:
        source: The number of the loader in a mix; 0 without.
        source_seed: The seed of the order and of the random keys: sources of a mix that have one seed, and may be one
            dataset, draw independently. That of source 0 is `seed`.
    """

    def __init__(
        self,
        split: Split,
        *,
        seed: int,
        shuffle: bool | Shuffle = True,
        limit: int | None = None,
        samples_per_epoch: int | None = None,
    ) -> None:
        self.class_batches: ClassBatches | None = None
        self.buckets: Buckets | None = None
        if not isinstance(shuffle, bool | np.bool_ | Shuffle):
            raise ConfigError(f"shuffle must be True, False or Shuffle(...), found {shuffle!r}")
        settings = shuffle if isinstance(shuffle, Shuffle) else Shuffle()
        self.split, self.seed = split, check_integer("seed", seed)
        self.source, self.source_seed = 0, self.seed
        self.shuffle, self.window, self.lanes = bool(shuffle), settings.window, settings.lanes
        self.sticky = settings.sticky
        self.limit, self.samples_per_epoch = limit, samples_per_epoch
        self._sizes = sizes = split.shard_samples
        if limit is not None:
            self.limit = check_integer("limit", limit, 1)
            sizes = np.clip(min(self.limit, int(sizes.sum())) - (np.cumsum(sizes) - sizes), 0, sizes)
            self._sizes = sizes[sizes > 0]
        if samples_per_epoch is not None:
            self.samples_per_epoch = check_integer("samples_per_epoch", samples_per_epoch, 1, MOST_POSITIONS)
            if self.sticky:
                raise ConfigError(
                    "Shuffle(sticky=True) keeps the shards of a rank in epochs that are whole passes; with "
                    "samples_per_epoch each pass would begin at another rank: leave one of them out"
                )
        self.set_weights(None)

    @property
    def samples(self) -> int:
        """Samples of the split that take part."""
        return int(self._sizes.sum())

    def set_source(self, number: int) -> None:
        """Make this the order of source `number` of a mix."""
        self.source = number
        self.source_seed = self.seed if number == 0 else keyed_rng.key(self.seed, "source", number)
        self._plans.clear()

    def set_weights(self, weights: Weights | None) -> None:
        """Set how often each of the first `samples` samples comes in a pass; None for once."""
        self.weights = weights
        self._shard_weights = None if weights is None else ShardWeights(weights, self._sizes)
        self._set_length(self.samples if weights is None else weights.length)

    def set_class_batches(self, class_batches: ClassBatches) -> None:
        """Compose the batches of the first `samples` samples by class."""
        self.class_batches = class_batches
        self._set_length(class_batches.length)

    def set_buckets(self, buckets: Buckets) -> None:
        """Make each global batch of one bucket."""
        self.buckets = buckets

    def bucket(self, epoch: int, position: int, lanes: int) -> int:
        """Return the bucket of the global batch of a position; 0 without buckets."""
        if self.buckets is None:
            return 0
        plan = self._plan(epoch, lanes)
        assert isinstance(plan, BucketPlan)
        return plan.bucket(position)

    def _set_length(self, length: int) -> None:
        self.pass_length = length
        self.length = self.samples_per_epoch or length
        self._plans: dict[tuple[int, int], AnyPlan] = {}  # of the two passes used last

    def default_lanes(self, world_size: int) -> int:
        """Return the number of lanes of a run with `world_size` ranks."""
        return default_lanes(world_size, self.shuffle) if self.lanes is None else self.lanes

    def locate(self, epoch: int, positions: I64, lanes: int) -> tuple[I64, I64, keyed_rng.U64]:
        """Return shard, record and key of the samples at positions 0 … length-1 of an epoch."""
        first_pass, offset = divmod(epoch * self.length, self.pass_length)  # of any size, and only then in 64 bits
        passes, within = np.divmod(offset + positions, self.pass_length)
        shards, records, repeats = (np.empty_like(positions) for _ in range(3))
        keys = np.empty(len(positions), dtype=np.uint64)
        for later in np.unique(passes).tolist():
            here, number = passes == later, first_pass + later
            shards[here], records[here], repeats[here] = self._plan(number, lanes).visits(within[here])
            samples = self.split.first_sample(shards[here]) + records[here]
            keys[here] = augmentation_keys(self.source_seed, number, samples, repeats[here])
        return shards, records, keys

    def visit(self, sample: int, number: int, lanes: int) -> Visit | None:
        """Return the first turn of a sample in pass `number` over the split; None if it does not come there."""
        (key,) = augmentation_keys(self.source_seed, number, np.array([sample])).tolist()
        if (self.samples_per_epoch, self.weights, self.class_batches, self.buckets) == (None, None, None, None):
            return Visit(number, 0, key)
        shard, record = self.split.locate(sample)
        for begin in range(0, self.pass_length, _CHUNK):
            positions = number * self.pass_length + np.arange(begin, min(begin + _CHUNK, self.pass_length))
            shards, records, keys = self.locate(0, positions, lanes)
            found = np.flatnonzero((shards == shard) & (records == record))
            if len(found):
                epoch, position = divmod(int(positions[found[0]]), self.length)
                return Visit(epoch, self.bucket(epoch, position, lanes), int(keys[found[0]]))
        return None

    def needs(self, epoch: int, first: int, lanes: int, rank: int, world_size: int) -> Iterator[ShardSpan]:
        """Yield the shards that a rank reads from position `first` of an epoch on, in the order of first need."""
        if not self.length:
            return
        start = epoch * self.length
        for number in range((start + first) // self.pass_length, -(-(start + self.length) // self.pass_length)):
            before = number * self.pass_length - start  # positions of the epoch before this pass
            plan = self._plan(number, lanes)
            shards, begins, ends = plan.needs((rank - before) % world_size, world_size)
            wanted = (ends + before > first) & (begins + before < self.length)
            columns = shards[wanted], begins[wanted] + before, ends[wanted] + before
            yield from map(ShardSpan, *(column.tolist() for column in columns))

    def _plan(self, number: int, lanes: int) -> AnyPlan:
        if (number, lanes) not in self._plans:
            while len(self._plans) > 1:
                del self._plans[next(iter(self._plans))]
            self._plans[number, lanes] = self._new_plan(number, lanes)
        return self._plans[number, lanes]

    def _new_plan(self, number: int, lanes: int) -> AnyPlan:
        if self.class_batches is not None:
            return ClassBatchPlan(self.class_batches, self._sizes, seed=self.source_seed, epoch=number)
        plan: Plan | ListPlan = Plan(
            self._sizes,
            seed=self.source_seed,
            epoch=number,
            lanes=lanes,
            window=self.window,
            shuffle=self.shuffle,
            sticky=self.sticky,
            weights=self._shard_weights,
        )
        if self.weights is not None and self.weights.listed is not None:
            plan = ListPlan(self.weights.listed, self._sizes)
        if (buckets := self.buckets) is None:
            return plan
        firsts = self.split.first_sample(np.arange(len(self._sizes)))
        return BucketPlan(plan, buckets.of_samples, firsts, group=buckets.global_batch, lanes=lanes)


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
    bucket: int  # that of all its images; 0 without buckets
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
    geometry: Geometry | tuple[Geometry, ...] | None = None  # with views one for each
    masks: dict[str, list[torch.Tensor]] = field(default_factory=dict)  # field → [B], uint8 or int32 [1 or 3, H, W]
    objects: dict[str, list[torch.Tensor]] = field(default_factory=dict)  # boxes, their fields, keypoints
    read_bytes: int = 0  # of the samples' parts
    network_bytes: int = 0  # of the shards that were downloaded since the batch before
    substituted: list[str] = field(default_factory=list)  # the problem of each sample that another one replaces


class PlanSampler(IterableDataset[Batch]):
    """Yields this worker's batches of an iteration: every `workers`-th batch of the rank, as the DataLoader expects."""

    def __init__(self, order: EpochOrder, schedule: Schedule, control: WorkerControl) -> None:
        self._order, self.schedule, self._control = order, schedule, control

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        iteration, start = self._control.iteration(), self._control.start()
        schedule, order = self.schedule, self._order
        with prefetching(order.split, self.needs(start), workers=workers, period=order.pass_length) as advance:
            for step in range(worker, schedule.steps(start.position), workers):
                if self._control.iteration() != iteration:
                    return  # the iteration was left early: batches still in the queue will be thrown away
                self._control.begin_step(worker, step)
                advance(schedule.after(start.position, step), schedule.after(start.position, step + 1))
                yield self.batch(start, step)

    def needs(self, start: EpochStart) -> Iterator[ShardSpan]:
        """Yield the shards of an iteration, then those of the next epoch, so that it does not begin with a wait."""
        order, schedule = self._order, self.schedule
        for epoch, first, before in ((start.epoch, start.position, 0), (start.epoch + 1, 0, order.length)):
            for span in order.needs(epoch, first, start.lanes, schedule.rank, schedule.world_size):
                yield ShardSpan(span.shard, span.begin + before, span.end + before)

    def batch(self, start: EpochStart, step: int) -> Batch:
        """Return the batch of step `step` of an iteration, its samples located but not read."""
        positions, valid = self.schedule.positions(start.position, step)
        empty = not len(positions)
        if empty:
            positions, valid = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.bool_)
        shards, records, keys = self._order.locate(start.epoch, positions, start.lanes)
        return Batch(
            epoch=start.epoch,
            bucket=self._order.bucket(start.epoch, self.schedule.after(start.position, step), start.lanes),
            key=keyed_rng.key(self._order.source_seed, "batch", start.epoch, int(positions[0])),
            keys=keys,
            shards=shards,
            records=records,
            valid=valid,
            empty=empty,
            source=self._order.source,
        )
