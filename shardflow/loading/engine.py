"""The engine: hands out the batches of one or several sources, in the order of the plan.

    in a worker       wds.DataPipeline: sampler → read → decode → annotate → augment → collate → send_errors → sender
    in this process   wds.WebLoader: the DataLoader that runs the workers → raises their errors, notices their death

The cursor (epoch, position) is the whole state. It is kept in the training process and moves when a batch is handed
out; workers receive the start of an iteration and compute everything else.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import webdataset as wds

from shardflow._wording import plural
from shardflow.errors import ConfigError, IntegrityError, ShardflowError, WorkerError
from shardflow.formats.image_types import IMAGE_PARTS

from .annotation_fields import AnnotationFields
from .batch import Batch
from .batch_sampler import BatchPlan, BatchSampler, Rows, WorkerControl
from .checkpoint import Cursor
from .collate import Collate
from .decoders.decoder import allocate
from .distributed import check_nothing
from .shared_memory import SLOTS_BEYOND_PREFETCH, BatchSender
from .source import EpochStart
from .stage_times import stage_cpu_ms
from .stages import Read, sample_stages
from .stats import Stats, StatsRecorder
from .transform_parts import settings_of
from .worker_pool import WorkerPool, send_errors
from .worker_settings import Workers

logger = logging.getLogger(__name__)

_FIXED = {"batch_size", "batch_transform", "decoder", "limit", "num_workers", "sampler", "seed", "shuffle", "tail"}
_FIXED |= {"transform"}
"""Settings of a loader that are no attributes, or properties, as far as a user could set them."""

_FIXED_ATTRIBUTES = {"annotations", "classes", "fields", "max_errors", "pads", "workers"}


class EpochSetter(NamedTuple):
    """The attribute `batch_sampler` of a torch DataLoader, which Lightning looks for.

    Lightning calls `loader.batch_sampler.sampler.set_epoch` and reads `loader.batch_sampler.batch_size`. A
    `loader.sampler` does not exist, because Lightning would replace it with a shuffling one.
    """

    sampler: Any  # the loader or mix itself
    batch_size: int


class Engine(wds.FluidInterface, ABC):  # type: ignore[misc] # webdataset has no types
    """The common part of `Loader` and `Mix`: iteration, statistics, and WebDataset's methods.

    Attributes:
        fields: The names of a batch's columns.
        batch_size: Samples per batch and rank; for a mix, of its first loader.
        workers: The settings of the worker processes.
        pads: Whether repeats fill the last batch; the field "valid" marks them.
        annotations: The fields that follow the crops, and the rule for boxes.
        classes: The class names of the labels, label 0 first; empty without labels.
        max_errors: Number of damaged samples that may be replaced by others, or left out of their bins.
        replaced: The errors of the samples that were replaced or left out.
    """

    _kind = "loader"

    def __init__(self, plan: BatchPlan, *, fields: Sequence[str], classes: Sequence[str], workers: Workers) -> None:
        self.fields, self.classes = tuple(fields), list(classes)
        self.workers, self.max_errors = workers, sum(source.max_errors for source in plan.sources)
        self.pads = any(source.partition.tail == "pad" for source in plan.sources)
        self.annotations = AnnotationFields.of_mix([source.annotations for source in plan.sources])
        self.replaced: set[str] = set()
        self._plan, self._cursor, self._stats = plan, Cursor(), StatsRecorder()
        self._control = WorkerControl(workers.count, len(plan.sources))
        sender = BatchSender(workers.prefetch_factor * workers.count + SLOTS_BEYOND_PREFETCH)
        # A transform may keep its input, so its images are not decoded into memory on loan.
        keeps = any(source.transform is not None or source.batch_transform is not None for source in plan.sources)
        allocator = allocate if keeps else sender.borrow
        self._pipeline = wds.DataPipeline(
            BatchSampler(plan, self._control),
            Read(plan.sources),
            sample_stages(plan.sources, allocator),
            Collate(plan.sources, fields, allocator, by_sample=isinstance(plan, Rows)),
            send_errors,
            sender,
        )
        self._pool = WorkerPool(self._pipeline, workers, sender)
        self._has_left, self._holding = False, set[str]()
        self._first_end: Callable[[], None] | None = None  # a check; None before the first iteration
        self._settings_of_workers: list[list[object]] = []

    def __setattr__(self, name: str, value: object) -> None:
        if name in _FIXED or (name in _FIXED_ATTRIBUTES and name in vars(self)):  # it would have no effect
            raise AttributeError(f"{name} is fixed once a {self._kind} is made; make another one")
        super().__setattr__(name, value)

    @abstractmethod
    def _steps(self, position: int) -> int:
        """Return the number of steps from a position of the cursor to the end of the epoch."""

    @abstractmethod
    def _after(self, position: int, steps: int) -> int:
        """Return the position of the cursor `steps` steps later."""

    @abstractmethod
    def _begin(self, epoch: int, position: int) -> tuple[int, list[EpochStart]]:
        """Return the number of the next step, and the positions of the sources before it."""

    @abstractmethod
    def _check(self) -> None:
        """Check that the dataset is there, and settings unchanged and equal on all ranks, which call this together."""

    @abstractmethod
    def _compare_ranks(self, starts: Sequence[EpochStart]) -> Callable[[], None]:
        """Warn if another rank begins its first iteration elsewhere, or over other samples.

        Returns a check for the end of the iteration, which warns if this rank reads alone.
        """

    def __len__(self) -> int:
        """Return the number of batches per rank in a whole epoch, also after a resume (see `remaining`)."""
        return self._steps(0)

    @property
    def batch_size(self) -> int:
        """Samples per batch and rank; for a mix, of its first loader."""
        return self._plan.sources[0].partition.batch_size

    @property
    def num_workers(self) -> int:
        """The number of worker processes."""
        return self.workers.count

    @property
    def epoch(self) -> int:
        """The epoch of the running iteration; between iterations, that of the next."""
        self._warn_of_left(epoch := self._cursor.next[0])
        return epoch

    def _warn_of_left(self, after: int) -> None:
        """Warn once if training left an epoch early and epoch `after` is another."""
        before, left = self._cursor.epoch, self._steps(self._cursor.position)
        if self._has_left or not left or after == before or self._plan.sources[0].epochs.shuffle is None:
            return
        self._has_left = True
        remedy = "to finish an interrupted epoch, call loader.load_state_dict(loader.state_dict()) before the loop; to"
        remedy += " train from the start, loader.set_epoch(0)"
        if self._cursor.was_peek:
            remedy = f"the second look in a row at one batch counts: call loader.set_epoch({before}) before training"
        message = "epoch %d was left with %s to go, and epoch %d is next; %s"
        logger.warning(message, before, plural(left, "batch"), after, remedy)

    @property
    def remaining(self) -> int:
        """The batches left in the running iteration, or in the next one; fewer than `len(self)` after a resume."""
        return self._steps(self._cursor.next[1])

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class name → label."""
        return {name: number for number, name in enumerate(self.classes)}

    @property
    def batch_sampler(self) -> EpochSetter:
        """The object on which Lightning looks for `set_epoch` and the batch size."""
        return EpochSetter(sampler=self, batch_size=self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        """Start at the cursor that was set or loaded; after any iteration, at the start of the next epoch.

        An iteration that is left early also ends its epoch, except after one batch: `next(iter(loader))` does not move
        the loader. The start is fixed when the first batch is requested, because Lightning calls `iter` before it sets
        the epoch. Starting another iteration, or moving the loader, ends the current one.
        """
        with self.new_iteration() as iteration:
            for columns in iteration.batches:
                iteration.hand_out()
                yield columns

    def new_iteration(self) -> Iteration:
        """Begin an iteration, which ends the current one. All ranks call this together."""
        self._check()
        return Iteration(self)

    def compose(self, *stages: Callable[[Iterator[Any]], Iterator[Any]]) -> wds.DataPipeline:
        """Return a WebDataset pipeline of this loader's batches and further stages, which run in this process.

        The other methods of `wds.WebLoader` work the same way. An iteration of the pipeline is one of the loader, which
        keeps the state.

        >>> loader = shardflow.Loader("photos256", batch_size=256)
        >>> samples = loader.unbatched().shuffle(1000).with_epoch(500)
        """
        return _Chain(self).compose(*stages)

    def _warn_of_held(self) -> None:
        """Warn, when a state is taken, of stages of a pipeline that hold samples which the state counts as received."""
        if self._holding:
            message = "the state counts samples that %s of the pipeline holds, and a resumed epoch lacks them"
            logger.warning(message, " and ".join(sorted(self._holding)))
            self._holding = set()

    def to_tuple(self, *names: str) -> NoReturn:
        """Raise ConfigError: batches are tuples already, of the `fields` of a loader."""
        words = [name.split(";")[0] for name in " ".join(names).split()]
        fields = tuple("image" if name in IMAGE_PARTS else {"cls": "label"}.get(name, name) for name in words)
        raise ConfigError(f"batches of a loader are tuples of its fields; leave to_tuple out, and pass fields={fields}")

    def with_epoch(self, nsamples: int = -1, nbatches: int = -1) -> wds.DataPipeline:
        """Return a WebDataset pipeline whose iterations have this many batches, taken from successive epochs.

        Each iteration continues where the last one ended, so every epoch is complete.
        """
        return self.compose().with_epoch(nsamples, nbatches)

    def _record_replaced(self, problems: Sequence[str]) -> None:
        for problem in problems:
            if problem not in self.replaced:
                self.replaced.add(problem)
                logger.warning("replaced: %s", problem)
        if len(self.replaced) > self.max_errors:
            raise IntegrityError(
                f"found {plural(len(self.replaced), 'damaged sample')}, max_errors allows {self.max_errors}; the last: "
                f"{problems[-1]}"
            )

    def _in_progress(self) -> str:
        """Describe the batches that the workers began last: a dead worker died on one of them."""
        first, _, starts = self._control.begun()
        batches = []
        for worker, step in self._control.steps_begun().items():
            batch = self._plan.batch(self._plan.advance(starts, first, step), first + step)
            batches.append(f"worker {worker}: {self._describe(batch)}")
        return f"Batches in progress: {'; '.join(batches)}" if batches else "No batch was in progress"

    def _describe(self, batch: Batch) -> str:
        reader = self._plan.sources[batch.sources[0]].split.reader
        shard, record = int(batch.shards[0]), int(batch.records[0])
        # An error message must not wait for a shard whose download may have killed the worker.
        sample = f"record {record}"
        if reader.is_local(shard):
            with contextlib.suppress(ShardflowError):  # damage must not hide the worker's death
                sample = f"sample {reader.key(shard, record)}"
            reader.close(shard)  # an open shard would keep its disk space after an eviction
        others = f" and {len(batch.keys) - 1} more" if len(batch.keys) > 1 else ""
        return f"{reader.url(shard)}, {sample}{others}"

    def stats(self, *, whole_run: bool = False) -> Stats:
        """Return the statistics of the current iteration, or of the whole run; `str()` of them names the remedy."""
        return self._stats.stats(whole_run=whole_run)

    def profile(self, seconds: float = 1.0) -> dict[str, float]:
        """Return the CPU milliseconds per image of each stage of the workers, measured in this process.

        The stages make the next batches for about `seconds`. The loader stays at its position, but an iteration in
        progress ends. Sending batches to the training process is not measured.

        >>> shardflow.Loader("photos256", batch_size=256).profile()
        {'plan': ..., 'read': ..., 'decode': ..., 'annotate': ..., 'augment': ..., 'collate': ...}
        """
        epoch, position = self._cursor.next
        if self._cursor.running or not self._steps(position):
            epoch, position = epoch + 1, 0
        first, starts = self._begin(epoch, position)
        self._control.begin(first, self._steps(position), starts)
        try:
            return stage_cpu_ms(self._pipeline, seconds)
        finally:
            self._control.end()

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration run through `epoch`, from its start.

        Setting the epoch of a state that was just loaded keeps its position, so that the usual
        `for epoch in range(start, epochs): loader.set_epoch(epoch)` resumes at the right place.
        """
        if self._cursor.set_epoch(epoch):
            self._control.end()

    def close(self) -> None:
        """End the worker processes now; another iteration starts new ones."""
        self._pool.end()


class _Chain(wds.FluidWrapper):  # type: ignore[misc] # webdataset has no types
    """The WebDataset pipeline of an engine's batches.

    `with_epoch` divides one endless iteration. WebDataset's version restarts for each part, and would lose the rest of
    an epoch and the contents of shuffle buffers.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.__iter__)
        self._engine, self._number = engine, -1
        self._endless: Iterator[Any] = iter(())

    def compose(self, *stages: Callable[[Iterator[Any]], Iterator[Any]]) -> _Chain:
        """Return this pipeline with more stages."""
        chain: _Chain = super().compose(*stages)
        chain._number = -1
        names = {getattr(getattr(stage, "f", type(stage)), "__name__", "").lstrip("_") for stage in stages}
        self._engine._holding |= names & {"batched", "detshuffle", "shuffle"}
        return chain

    def __iter__(self) -> Iterator[Any]:
        if self.nsamples <= 0 or self.repetitions != sys.maxsize:  # without `with_epoch`
            yield from super().__iter__()
            return
        control = self._engine._control
        if self._number != control.iteration:  # the loader was moved, or iterated elsewhere
            self._endless = self._without_end()
        try:
            for item in itertools.islice(self._endless, self.nsamples):
                self._number = control.iteration
                yield item
        except Exception:
            self._number = -1
            raise

    def _without_end(self) -> Iterator[Any]:
        empty = 0
        while empty < 2:  # the first epoch is empty after a resume at an epoch's end
            empty += 1
            for item in self.iterator1():
                empty = 0
                yield item


class Iteration:
    """One iteration of an engine. A batch counts when it is handed out, not when it is taken from `batches`.

    So a thread may take batches ahead of the training step, as `device.Prefetcher` does. The cursor moves in
    `hand_out` and at the end of the context, unless another iteration has begun.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        engine._warn_of_left(engine._cursor.next_start[0])
        self._epoch, self._position = engine._cursor.begin()
        first, starts = engine._begin(self._epoch, self._position)
        if engine._first_end is None:
            engine._first_end = engine._compare_ranks(starts)
        self._steps, self._handed_out = engine._steps(self._position), 0
        self._number = engine._control.begin(first, self._steps, starts)
        self.batches = self._take()

    def __enter__(self) -> Iteration:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.batches.close()
        if self._is_over:
            return
        if kind is not None:
            is_peek = kind is GeneratorExit and self._handed_out == 1
            self._engine._cursor.leave(self._position if is_peek else None)
            return
        self._engine._cursor.set(self._epoch + 1)
        if self._engine._first_end is not None:
            self._engine._first_end()
            self._engine._first_end = check_nothing
        if not self._engine.workers.persistent_workers:
            self._engine._pool.end()

    @property
    def _is_over(self) -> bool:
        """Whether another iteration has begun, or the engine was moved."""
        return self._engine._control.iteration != self._number

    def hand_out(self) -> None:
        """Count one more batch as handed out, and move the cursor behind it."""
        if not self._is_over:
            self._handed_out += 1
            self._engine._cursor.advance(self._engine._after(self._position, self._handed_out))

    def _take(self) -> Generator[Any, None, None]:
        """Yield the batches.

        Raises:
            ConfigError: Another iteration began, or the engine was moved, before the last batch.
            WorkerError: A worker died; the message names the batches in progress.
        """
        engine, taken = self._engine, 0
        if not self._steps:  # a state of an epoch's end: workers would start for nothing
            engine._stats.begin()
            return
        settings = [
            settings_of((source.decoder, source.transform, source.batch_transform)) for source in engine._plan.sources
        ]
        if settings != engine._settings_of_workers:  # as with a DataLoader, whose workers begin with each epoch
            engine._pool.end()
            engine._settings_of_workers = settings
        outputs = iter(engine._pool)
        try:
            for output in engine._stats.timed(outputs):
                if output.replaced:
                    engine._record_replaced(output.replaced)
                engine._stats.count(output.counts, len(output.replaced))
                taken += 1
                yield output.columns
                if self._is_over:
                    break
            else:
                if taken != self._steps:
                    message = f"the workers ended after {taken} of {plural(self._steps, 'batch')}"
                    raise WorkerError(f"{message}; iterate again")
        except GeneratorExit:  # must be first: at interpreter exit the name in the next clause no longer exists
            raise
        except BaseException as error:  # an interrupt, too
            engine._pool.end()  # the workers' state is unknown
            if isinstance(error, WorkerError):
                raise WorkerError(f"{error}. {engine._in_progress()}") from None
            raise
        finally:
            outputs.close()
        if self._is_over and taken < self._steps:
            raise ConfigError(
                f"this iteration ended, because the {engine._kind} was iterated again, or moved by set_epoch or "
                f"load_state_dict; move it between iterations, or make another {engine._kind} for a second iteration"
            )
