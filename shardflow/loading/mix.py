"""A mix of several datasets: their samples, or their batches, interleaved by weight."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from shardflow._validation import check_integer
from shardflow.dataset.label_numbering import common_classes
from shardflow.errors import ConfigError, ResumeMismatchError
from shardflow.formats.labels import LABEL_PARTS

from .annotation_fields import AnnotationFields
from .batch_run import BatchRun, ended_early
from .checkpoint import Cursor, compare, saved_integers
from .loader import BatchSampler, Loader
from .mix_sampler import MixPlan, MixSampler, Shares, stream_position, stream_start
from .pipeline import build_pipeline, describe_batches
from .sampler import EpochStart, WorkerControl
from .stats import Stats, StatsRecorder

STATE_VERSION = 1

_CHUNK = 1 << 20

_NOT_CLASSES = ("box_ids", "box_iscrowd")
"""Whole numbers of boxes that are not classes, as COCO has them. Any other may be one."""


class _Origin(NamedTuple):
    """A step, counted from the start of epoch 0, and where each loader is before it."""

    step: int
    starts: list[EpochStart]


class Mix:
    """Interleaves several loaders in proportion to their weights; usable wherever a loader is.

    By default each batch is mixed: its samples come from all of the loaders. With `by="batch"` each batch comes from
    one of them.

    The loader of a sample (or batch) is a pure function of its number: its value in a Weyl sequence (k / golden ratio,
    modulo 1; Weyl, "Über die Gleichverteilung von Zahlen mod. Eins", 1916), looked up among the weights. Any section
    has the right shares to within a few, all ranks agree without communication, and any step can be reached by
    arithmetic. Each loader runs through its own epochs, exactly; mixed by sample, nothing is left out at their ends.
    Order and random keys of each loader come from its seed and its number in the mix, so that two loaders of one
    dataset draw independently; those of the first are as without a mix.

    Labels come as the numbers that they are in each dataset. So where labels, or whole numbers of boxes, are among the
    fields, each number must mean the same class in all datasets: one list of class names, or lists that begin alike.

    >>> mix = shardflow.Mix([("photos256", 3), ("sketches256", 1)], batch_size=256)      # doctest: +SKIP

    Args:
        sources: Pairs (loader, weight) or (path or URL of a dataset, weight), with weights above 0. A loader
            is new when it joins a mix, joins once, and is then iterated, moved and resumed by the mix alone. The field
            "source" of a batch has the number of each sample's source.
        by: "sample" to mix samples within batches, "batch" to interleave whole batches. Loaders that are mixed by
            sample have equal `batch_size`, `rank`, `world_size` and `batch_transform`; the first one's workers serve
            all of them, so that there are not more processes than for one. Their `tail` has no effect.
        steps_per_epoch: Batches per iteration, 1 or more; by default as many as all loaders' epochs have together.
        options: Arguments of `Loader`, for the sources that are paths or URLs.

    Attributes:
        loaders: The loader of each source.
        classes: The class names of the labels, label 0 first; empty where no field has labels.

    Raises:
        ConfigError: There are no sources, one is not a pair or has no weight above 0, options have no effect, what must
            be equal differs, a number means different classes, or a loader is in use.
    """

    def __init__(
        self,
        sources: Sequence[tuple[Loader | str | os.PathLike[str], float]],
        *,
        by: str = "sample",
        steps_per_epoch: int | None = None,
        **options: Any,
    ) -> None:
        if not sources or not isinstance(sources, Collection) or not all(map(_is_weighted, sources)):
            raise ConfigError(
                "a mix needs one or more pairs, of a loader, path or URL and its weight, with finite weights above 0, "
                f"found {sources!r:.200}"
            )
        if by not in ("sample", "batch"):
            raise ConfigError(f"by must be 'sample' or 'batch', found {by!r}")
        if options and all(isinstance(source, Loader) for source, _ in sources):
            raise ConfigError(f"all sources are loaders already, so {', '.join(options)} would have no effect")
        if steps_per_epoch is not None:
            steps_per_epoch = check_integer("steps_per_epoch", steps_per_epoch, 1)
        if by == "sample":
            if "tail" in options:
                raise ConfigError("mixed by sample there is no tail: leave it out, or pass by='batch'")
            options = {**options, "tail": "short"}  # a source may have fewer samples than a batch
        self.loaders = [source if isinstance(source, Loader) else Loader(source, **options) for source, _ in sources]
        if len(found := {loader.fields for loader in self.loaders}) > 1:
            raise ConfigError(f"the loaders' fields differ: {'; '.join(map(str, sorted(found)))}; make them equal")
        if len(rules := {loader.annotations.boxes for loader in self.loaders}) > 1:
            shown = ", ".join(sorted(map(repr, rules)))
            raise ConfigError(f"the loaders' boxes differ: {shown}; make them equal, as the mix has one rule for them")
        _check_unused(self.loaders)
        self.classes = _common_classes(self.loaders)
        self._weights = [float(weight) for _, weight in sources]
        self._shares = Shares(self._weights)
        self._cursor = Cursor()  # its position counts steps
        self._origin = self._starts()  # from where other steps are reached by arithmetic
        self._running: list[Iterator[Any] | None] = [None] * len(sources)
        self._iterations = 0
        self._stats = StatsRecorder()
        self._reached = self._origin  # the step that was computed last
        self._samples: _Samples | None = None
        if by == "sample":
            self._samples = _Samples(self.loaders, self._shares, steps_per_epoch)
            self._samples.run.counted_by.append(self._stats)
            self._steps = self._samples.plan.steps
        else:
            self._steps = steps_per_epoch or sum(len(loader) for loader in self.loaders)
            for loader in self.loaders:
                loader.count_in(self._stats)
        for number, loader in enumerate(self.loaders):
            loader.join_mix(number)
        self._note_places()

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class name."""
        return {name: number for number, name in enumerate(self.classes)}

    @property
    def fields(self) -> tuple[str, ...]:
        """What a batch consists of."""
        return self.loaders[0].fields

    @property
    def annotations(self) -> AnnotationFields:
        """Which of the fields follow the crops, and which boxes stay, of the first loader."""
        return AnnotationFields.of_mix([loader.annotations for loader in self.loaders])

    @property
    def substituted(self) -> set[str]:
        """The problem of each sample that was replaced by another."""
        if self._samples is not None:
            return self._samples.run.substituted
        return set().union(*(loader.substituted for loader in self.loaders))

    @property
    def batch_size(self) -> int:
        """The samples per batch and rank, of the first loader."""
        return self.loaders[0].batch_size

    @property
    def epoch(self) -> int:
        """The epoch of the mix, as for a loader."""
        return self._cursor.epoch

    @property
    def remaining(self) -> int:
        """The batches of this epoch that are not handed out yet."""
        return self._steps - self._cursor.position

    def __repr__(self) -> str:
        by = "batches" if self._samples is None else "samples"
        sources = "; ".join(
            f"{weight:g} x {loader!r}" for weight, loader in zip(self._weights, self.loaders, strict=True)
        )
        return f"<shardflow.Mix of {by}: {len(self)} batches, epoch {self.epoch}, {self.remaining} left; {sources}>"

    def __len__(self) -> int:
        """Return the number of batches in an epoch of the mix."""
        return self._steps

    def source_of(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of the loader of each step, or row of samples; both count from the start of epoch 0."""
        return self._shares.source_of(steps)

    def __iter__(self) -> Iterator[Any]:
        """Start at the cursor that was set or loaded; after any iteration, at the start of the next epoch.

        One iteration at a time: starting another, or moving the mix, ends the one before it.
        """
        if self._cursor.begun:
            self._seek(self._cursor.epoch + 1)
        self._iterations += 1
        iteration = self._iterations
        epoch, first = self._cursor.epoch, self._cursor.position
        for step, batch in enumerate(self._stats.timed(self._batches(epoch, first)), start=first + 1):
            self._cursor.advance(step)
            yield batch
            if self._iterations == iteration:
                continue
            if step < self._steps:
                raise ended_early("mix")
            return
        self._cursor.set(epoch + 1)

    def _batches(self, epoch: int, first: int) -> Iterator[Any]:
        if self._samples is not None:
            for loader in self.loaders:
                loader.check_ranks()  # which a loader that is iterated does itself
            starts = self._starts_at(epoch * self._steps + first)
            yield from self._samples.batches(epoch, first, starts)
            return
        for step in range(first, self._steps):
            (source,) = self.source_of(np.array([epoch * self._steps + step])).tolist()
            yield self._next(source)

    def _next(self, source: int) -> Any:
        loader = self.loaders[source]
        if loader.place != self._places[source]:
            raise ConfigError(
                f"{_describe(source, loader)} was iterated or moved outside of the mix, which lost its place; make "
                "loaders and mix anew, and iterate, move and resume the mix alone"
            )
        while True:
            running = self._running[source] or iter(loader)
            self._running[source] = None  # after an error, and at the end of its epoch, it begins anew
            try:
                batch = next(running)
            except StopIteration:
                continue
            finally:
                self._places[source] = loader.place
            self._running[source] = running
            return batch

    def _note_places(self) -> None:
        """Note where the loaders are, to find one that is moved by others."""
        self._places = [loader.place for loader in self.loaders]

    def describe(self) -> dict[str, Any]:
        """Return what a run's log needs to name its data: the description of each loader, and the weights."""
        sources = [loader.describe() for loader in self.loaders]
        by = "batch" if self._samples is None else "sample"
        return {"weights": self._weights, "by": by, "steps_per_epoch": self._steps, "sources": sources}

    def set_sampler(self, sampler: object) -> NoReturn:  # noqa: ARG002 - a loader's
        """Raise ConfigError: shares, and the sampler of each loader, stay as the mix was made."""
        raise ConfigError("a mix keeps its samplers, as its epochs and states count on them; make another mix")

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration run through `epoch`, as for a loader."""
        if self._cursor.set_epoch(epoch):
            self._seek(epoch)

    @property
    def batch_sampler(self) -> BatchSampler:
        """Where Lightning looks for `set_epoch` and the batch size (that of the first loader)."""
        return BatchSampler(sampler=self, batch_size=self.loaders[0].batch_sampler.batch_size)

    def _seek(self, epoch: int) -> None:
        """Move every loader to where it is at the start of an epoch."""
        for loader, start in zip(self.loaders, self._starts_at(epoch * self._steps), strict=True):
            loader.move_to(start)
        self._move(epoch)

    def _starts_at(self, step: int) -> list[EpochStart]:
        """Return where each loader is before a step, counted from the start of epoch 0.

        Steps are counted from the state that was loaded: those before it may have had another size.
        """
        if step < self._origin.step:
            self._origin = self._reached = self._starts()
        origin = self._reached if self._origin.step <= self._reached.step <= step else self._origin
        size = 1 if self._samples is None else self._samples.plan.batch_size
        counts = np.zeros(len(self.loaders), dtype=np.int64)
        for begin in range(origin.step * size, step * size, _CHUNK):
            numbers = np.arange(begin, min(begin + _CHUNK, step * size))
            counts += np.bincount(self.source_of(numbers), minlength=len(counts))
        after = Loader.after if self._samples is None else self._samples.after
        starts = [after(*each) for each in zip(self.loaders, origin.starts, counts.tolist(), strict=True)]
        self._reached = _Origin(step, starts)
        return starts

    def _starts(self) -> _Origin:
        return _Origin(0, [loader.first_start() for loader in self.loaders])

    def _move(self, epoch: int, position: int = 0) -> None:
        self._cursor.set(epoch, position)
        self._note_places()
        self._running = [None] * len(self.loaders)
        self._iterations += 1
        if self._samples is not None:
            self._samples.control.end()

    def stats(self, *, whole_run: bool = False) -> Stats:
        """Return where the time went since the iteration began, or in all; its `str` says what to do about it."""
        return self._stats.stats(whole_run=whole_run)

    def close(self) -> None:
        """End the worker processes of all loaders now; another iteration starts new ones."""
        if self._samples is not None:
            self._samples.workers.end()
        for loader in self.loaders:
            loader.close()

    def state_dict(self) -> dict[str, Any]:
        """Return where the next batch starts, in the mix and in each of its loaders."""
        if self._samples is not None:
            starts = self._starts_at(self._cursor.epoch * self._steps + self._cursor.position)
            for loader, start in zip(self.loaders, starts, strict=True):
                loader.move_to(start)
        return {
            **self._identity(),
            **({} if self._samples is None else {"by": "sample"}),
            "epoch": self._cursor.epoch,
            "position": self._cursor.position,
            "sources": [loader.state_dict() for loader in self.loaders],
        }

    def _identity(self) -> dict[str, Any]:
        """Return the settings that must be equal for a position to mean the same step."""
        return {"version": STATE_VERSION, "weights": self._weights, "steps_per_epoch": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration start where the state was saved.

        Raises:
            ResumeMismatchError: The state belongs to another mix, or is damaged.
        """
        if not isinstance(state, Mapping):
            raise ResumeMismatchError(f"a state is a dict from Mix.state_dict(), found {state!r}")
        by = None if self._samples is None else "sample"
        if differences := compare(state, {**self._identity(), "by": by}):
            raise ResumeMismatchError(f"the state belongs to another mix: {'; '.join(differences)}; make these equal")
        sources = state.get("sources")
        if not isinstance(sources, Sequence) or len(sources) != len(self.loaders):
            raise ResumeMismatchError(f"the state is damaged: sources must be {len(self.loaders)} states")
        epoch, position = saved_integers(state, "epoch", "position")
        if position > self._steps:
            raise ResumeMismatchError(f"the state is damaged: position {position} in an epoch of {self._steps} batches")
        # All states are checked before any loader is moved.
        starts = [loader.start_of(source) for loader, source in zip(self.loaders, sources, strict=True)]
        for loader, start in zip(self.loaders, starts, strict=True):
            loader.move_to(start)
        self._origin = self._reached = _Origin(epoch * self._steps + position, starts)
        self._move(epoch, position)


def _is_weighted(pair: Any) -> bool:
    """Return whether this is a pair of a source and a weight above 0."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        return False
    return isinstance(pair[1], Real) and 0 < float(pair[1]) < math.inf


def _check_unused(loaders: Sequence[Loader]) -> None:
    """Check that each loader is new and comes once: its order becomes that of a source of the mix."""
    for number, loader in enumerate(loaders):
        what = _describe(number, loader)
        if loader.is_mixed or any(loader is other for other in loaders[:number]):
            raise ConfigError(f"{what} is in another mix already, or twice in this one; make a loader for each place")
        if loader.has_moved:
            epoch, position = loader.place
            raise ConfigError(
                f"{what} was iterated, moved or resumed: it is at sample {position} of epoch {epoch}, and a mix begins "
                "with epoch 0 of each source; make a new loader for the mix, and move or resume the mix instead"
            )


def _common_classes(loaders: Sequence[Loader]) -> list[str]:
    """Return the classes that the labels in a batch mean; none where no field has labels."""
    fields = loaders[0].fields
    kinds = [loader.annotations.kinds for loader in loaders]
    numbers = [
        field
        for field in fields
        if field in ("label", "labels", *LABEL_PARTS)
        or (field not in _NOT_CLASSES and any(each.get(field) == "int64" for each in kinds))
    ]
    if not numbers:
        return []
    datasets = [loader.dataset.dataset for loader in loaders]
    try:
        classes = list(common_classes([(dataset.url, dataset.classes) for dataset in datasets]) or ())
    except ConfigError as error:
        remedy = "" if set(numbers) <= {"label", "labels"} else "; or leave these fields out"
        raise ConfigError(f"fields with numbers of classes, {', '.join(numbers)}: {error}{remedy}") from None
    if "labels" in fields and len(lengths := {len(dataset.classes or ()) for dataset in datasets}) > 1:
        raise ConfigError(
            f"the loaders' classes differ: the field 'labels' has a column for each class, here {sorted(lengths)}; "
            "pack all datasets with one `--classes FILE`"
        )
    return classes


def _describe(number: int, loader: Loader) -> str:
    return f"loader {number} of the mix, of {loader.dataset.dataset.url}, split {loader.split.name!r},"


class _Samples:
    """The batches of a mix by sample: one set of workers reads the sources of all loaders."""

    def __init__(self, loaders: Sequence[Loader], shares: Shares, steps_per_epoch: int | None) -> None:
        settings = [loader.mix_settings() for loader in loaders]
        for name, value in settings[0].items():
            if any(other[name] != value for other in settings):
                found = ", ".join(repr(other[name]) for other in settings)
                raise ConfigError(f"the loaders' {name} differ: {found}; make them equal, or pass by='batch'")
        if any(loader.order.sampler.together != "sample" for loader in loaders):
            raise ConfigError("ClassBatches and AspectBuckets compose whole batches; pass by='batch'")
        if any(loader.order.shuffle is not None and loader.order.shuffle.sticky for loader in loaders):
            raise ConfigError("Shuffle(sticky=True) keeps the shards of a rank from epoch to epoch; pass by='batch'")
        first, splits = loaders[0], [loader.split for loader in loaders]
        rank, world_size = settings[0]["rank"], settings[0]["world_size"]
        orders = [loader.order.as_source(number) for number, loader in enumerate(loaders)]
        steps = steps_per_epoch or sum(order.length for order in orders) // (first.batch_size * world_size)
        if not steps:
            raise ConfigError(
                f"all sources together have less than one batch of {first.batch_size} for each of {world_size} ranks; "
                "lower batch_size, or set steps_per_epoch"
            )
        self.plan = MixPlan(
            splits=splits,
            orders=orders,
            shares=shares,
            batch_size=first.batch_size,
            steps=steps,
            rank=rank,
            world_size=world_size,
        )
        self.control = WorkerControl(first.num_workers, extra=2 * len(loaders))
        self._sampler, self._splits, self._persistent = MixSampler(self.plan, self.control), splits, first.persistent
        max_bad = sum(loader.max_bad for loader in loaders)
        self.workers = first.new_workers(
            partial(
                build_pipeline,
                self._sampler,
                [loader.pipeline_source() for loader in loaders],
                fields=first.fields,
                classes=len(first.classes),
                batch_transform=settings[0]["batch_transform"],
                substitute=max_bad > 0,
            )
        )
        self.run = BatchRun(self.workers, self.control, max_bad=max_bad, what="mix")

    def batches(self, epoch: int, first: int, starts: Sequence[EpochStart]) -> Iterator[Any]:
        """Yield the batches of an epoch from a step on, before which the sources are at `starts`."""
        streams = zip(starts, self.plan.orders, strict=True)
        extra = [number for start, order in streams for number in (stream_position(start, order), start.lanes)]
        iteration = self.control.begin(EpochStart(epoch, first, 0), extra)
        batches = self.run.batches(iteration, self.plan.steps - first, partial(self._in_progress, epoch, first))
        with contextlib.closing(batches):
            for _, columns in batches:
                yield columns
        if not self._persistent:
            self.workers.end()

    def after(self, loader: Loader, start: EpochStart, rows: int) -> EpochStart:
        """Return where a source is, so many rows after a start."""
        position = stream_position(start, loader.order) + rows * self.plan.world_size
        return stream_start(position, loader.order, start.lanes)

    def _in_progress(self, epoch: int, first: int) -> str:
        positions, lanes = self._sampler.starts()
        begin, batches = epoch * self.plan.steps + first, {}
        for worker, step in self.control.steps_begun().items():
            reached = self.plan.advance(positions, begin, step)
            batches[worker] = self.plan.batch(reached, lanes, begin + step)
        return describe_batches(batches, self._splits)
