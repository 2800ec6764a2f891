"""A mix of several datasets: their samples or batches, interleaved by weight."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from shardflow._validation import check_integer
from shardflow._wording import plural
from shardflow.dataset.label_numbering import common_classes
from shardflow.errors import ConfigError, ResumeMismatchError
from shardflow.formats.columns import COMPUTED_FIELDS
from shardflow.formats.labels import LABEL_PARTS
from shardflow.order.mixture import Shares

from . import checkpoint
from .batch_sampler import BatchPlan, Rows, WholeBatches
from .checkpoint import compare, saved_integers
from .engine import Engine
from .loader import Loader, check_sampler_on_ranks, compare_start_on_ranks
from .source import IMAGES, EpochStart, Source
from .whole_sample import WholeSample

STATE_VERSION = 1

_Given = Loader | str | os.PathLike[str]
_Weights = list[Any]  # [step, weights] pairs, as in JSON

_NOT_CLASSES = ("box_ids", "box_iscrowd")
"""Integer fields of COCO's boxes that are not classes. Any other integer field may be a class."""


class _Origin(NamedTuple):
    """A step, counted from the start of epoch 0, and the position of each loader before it."""

    step: int
    starts: list[EpochStart]


class Mix(Engine):
    """Interleaves several loaders in proportion to their weights; usable wherever a loader is.

    By default each batch has samples from all loaders. With `by="batch"`, all samples of a batch come from one.

    The loader of a sample (or batch) is a pure function of its number (`order.mixture.Shares`): all ranks agree without
    communication, and arithmetic finds any step. Each loader runs through its own epochs exactly; mixed by sample, no
    sample is lost at their ends. The order and random keys of a loader come from its seed and its number in the mix, so
    two loaders of one dataset draw independently, and the first draws as it does alone.

    Labels are the numbers in each dataset. If labels or integer fields of boxes are loaded, the lists of class names
    must be equal, or one must be the beginning of the other.

    >>> mix = shardflow.Mix([("photos256", 3), ("sketches256", 1)], batch_size=256)
    >>> schedule = [(0, [3, 1]), (10_000, [1, 1])]  # from three quarters of photos to a half
    >>> mix = shardflow.Mix(["photos256", "sketches256"], schedule=schedule, batch_size=256)

    Args:
        sources: Pairs (loader, weight) or (path or URL of a dataset, weight), with weights above 0; with `schedule`,
            loaders, paths or URLs without weights. A loader must be new; it defines how its source is sampled, read and
            transformed. Iterating or resuming it does not move the mix. The field "source" of a batch has the number
            of each sample's source.
        by: "sample" to mix samples within batches, "batch" to interleave whole batches. The first loader's workers
            serve all loaders. Loaders that are mixed by sample need equal `batch_size`, `group` and `batch_transform`;
            their `tail` has no effect.
        steps_per_epoch: Batches per iteration, 1 or more; by default the batches of all loaders' epochs together.
        schedule: Changing weights: pairs of a step, counted from the start of epoch 0, and the weights there, 0 or
            more. The first step is 0. The shares of the sources change linearly from one pair to the next, and stay
            constant after the last. For a sudden change, give two consecutive steps.
        options: Arguments of `Loader`, for the sources that are paths or URLs. `fields` names the fields of a batch, in
            order; loaders may then lack some. Mixed by batch, a missing field is None. Mixed by sample, the samples
            without it have None, which is possible only for parts, such as "txt", that come as lists. Loaders whose
            `WholeSample` transforms return the same fields may read different ones.

    Attributes:
        loaders: The loader of each source.
        classes: The class names of the labels, label 0 first; empty if no field has labels.

    Raises:
        ConfigError: `sources` is empty or has an entry that is not a pair with a weight above 0; options have no
            effect; loaders differ in a setting that must be equal, or are not new; or a label means different classes.
    """

    _kind = "mix"

    def __init__(
        self,
        sources: Sequence[tuple[_Given, float]] | Sequence[_Given],
        by: str = "sample",
        *,
        steps_per_epoch: int | None = None,
        schedule: Sequence[tuple[int, Sequence[float]]] | None = None,
        **options: Any,
    ) -> None:
        given, self._weights = _weighted(sources) if schedule is None else _scheduled(sources, schedule)
        if by not in ("sample", "batch"):
            raise ConfigError(f"by must be 'sample' or 'batch', found {by!r}")
        made = [source for source in given if isinstance(source, Loader)]
        unused = [name for name in options if name != "fields" or len({loader.fields for loader in made}) == 1]
        if unused and len(made) == len(given):
            raise ConfigError(f"{', '.join(unused)} would have no effect: all sources are loaders; set it on these")
        if steps_per_epoch is not None:
            steps_per_epoch = check_integer("steps_per_epoch", steps_per_epoch, 1)
        if by == "sample":
            if "tail" in options:
                raise ConfigError("a mix by sample has no tail: leave it out, or pass by='batch'")
            options = {**options, "tail": "short"}  # a source may have fewer samples than a batch
        self.loaders = [source if isinstance(source, Loader) else Loader(source, **options) for source in given]
        fields = _fields_of(self.loaders, options.get("fields"), by)
        if len(rules := {loader.annotations.boxes for loader in self.loaders}) > 1:
            shown = ", ".join(sorted(map(repr, rules)))
            raise ConfigError(f"the loaders' rules for boxes differ: {shown}; make them equal")
        _check_new(self.loaders)
        self._given = [loader.source for loader in self.loaders]
        numbers = self.loaders[0].batch_size if by == "sample" else 1  # per step
        later = [(step * numbers, weights) for step, weights in self._weights[1:]]
        self._shares = Shares(self._weights[0][1], later)
        self._by = by
        chosen = [replace(each, epochs=each.epochs.as_source(number)) for number, each in enumerate(self._given)]
        if by == "sample":
            _check_mixable(chosen)
            self._steps_per_epoch = steps_per_epoch or _whole_steps(chosen)
            plan: BatchPlan = Rows(chosen, self._shares, self._steps_per_epoch)
        else:
            self._steps_per_epoch = steps_per_epoch or sum(map(len, self.loaders))
            plan = WholeBatches(chosen, self._shares)
        self._origin = self._beginning()
        super().__init__(
            plan,
            fields=fields,
            classes=_common_classes(self.loaders),
            workers=self.loaders[0].workers,
        )

    def _beginning(self) -> _Origin:
        """Return the positions of the loaders at the start of epoch 0."""
        streams = [source.epochs.default_streams(source.partition.world_size) for source in self._given]
        return _Origin(0, [EpochStart(0, 0, each) for each in streams])

    def __repr__(self) -> str:
        by = "batches" if self._by == "batch" else "samples"
        sources = "; ".join(
            f"{' … '.join(f'{weights[number]:g}' for _, weights in self._weights)} x {loader.dataset.dataset.url}, "
            f"split {loader.split.name!r}"
            for number, loader in enumerate(self.loaders)
        )
        batches = f"{plural(len(self), 'batch')}, epoch {self.epoch}, {self.remaining} left"
        return f"<shardflow.Mix of {by}: {batches}; {sources}>"

    def source_of(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the source of each step since epoch 0; by sample, of step · batch_size + place in the batch."""
        return self._shares.source_of(steps)

    def _steps(self, position: int) -> int:
        return self._steps_per_epoch - position

    def _after(self, position: int, steps: int) -> int:
        return position + steps

    def _begin(self, epoch: int, position: int) -> tuple[int, list[EpochStart]]:
        step = epoch * self._steps_per_epoch + position
        if step < self._origin.step:
            self._origin = self._beginning()
        # From the state that was loaded, because earlier steps may have had another world size.
        return step, self._plan.advance(self._origin.starts, self._origin.step, step - self._origin.step)

    def _check(self) -> None:
        for number, (loader, source) in enumerate(zip(self.loaders, self._given, strict=True)):
            if loader.source is not source:
                raise ConfigError(
                    f"{_describe(number, loader)} has changed its sampler or batch size, on which the epochs and "
                    "states of the mix depend; make another mix"
                )
            loader.check_group()
            check_sampler_on_ranks(source)
            loader.dataset.dataset.refuse_replaced()

    def _compare_ranks(self, starts: Sequence[EpochStart]) -> Callable[[], None]:
        pairs = zip(self.loaders, starts, strict=True)
        checks = [compare_start_on_ranks(loader.dataset.dataset, loader.source, start) for loader, start in pairs]
        return checks[0]

    def describe(self) -> dict[str, Any]:
        """Return the settings that identify the data of a run, for its log: those of each loader, and the weights."""
        return {**self._settings(), "sources": [loader.describe() for loader in self.loaders]}

    def set_sampler(self, sampler: object) -> NoReturn:  # noqa: ARG002 - a loader's
        """Raise ConfigError: the samplers of a mix are fixed."""
        raise ConfigError("a mix keeps its samplers: its epochs and states depend on them; make another mix")

    def set_batch_size(self, batch_size: int) -> NoReturn:  # noqa: ARG002 - a loader's
        """Raise ConfigError: the batch size of a mix is fixed."""
        raise ConfigError("a mix keeps its batch size: its epochs and states depend on it; make another mix")

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the next batch, in the mix and in each of its sources."""
        self._warn_of_held()
        _, starts = self._begin(self._cursor.epoch, self._cursor.position)
        places = zip(self.loaders, self._plan.sources, starts, strict=True)
        return {
            **self._identity(),
            "epoch": self._cursor.epoch,
            "position": self._cursor.position,
            "sources": [checkpoint.save(loader.dataset.dataset, source, start) for loader, source, start in places],
        }

    def _identity(self) -> dict[str, Any]:
        """Return the settings that must be equal for a position to mean the same step."""
        return {"version": STATE_VERSION, **self._settings()}

    def _settings(self) -> dict[str, Any]:
        return {
            "weights": self._weights if len(self._weights) > 1 else self._weights[0][1],
            "by": self._by,
            "steps_per_epoch": self._steps_per_epoch,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration start where the state was saved.

        Raises:
            ResumeMismatchError: The state belongs to another mix, or is damaged.
        """
        if not isinstance(state, Mapping):
            raise ResumeMismatchError(f"a state is a dict from Mix.state_dict(), found {state!r}")
        if differences := compare(state, self._identity()):
            raise ResumeMismatchError(f"the state belongs to another mix: {'; '.join(differences)}; make these equal")
        sources = state.get("sources")
        if not isinstance(sources, Sequence) or len(sources) != len(self.loaders):
            raise ResumeMismatchError(f"the state is damaged: sources must be {len(self.loaders)} states")
        epoch, position = saved_integers(state, "epoch", "position")
        if position > self._steps_per_epoch:
            length = plural(len(self), "batch")
            raise ResumeMismatchError(f"the state is damaged: position {position} in an epoch of {length}")
        loaders = zip(self.loaders, self._plan.sources, sources, self._beginning().starts, strict=True)
        starts = [
            checkpoint.restore(saved, loader.dataset.dataset, source, start.streams)
            for loader, source, saved, start in loaders
        ]
        self._origin = _Origin(epoch * self._steps_per_epoch + position, starts)
        self._cursor.set(epoch, position)
        self._control.end()


def _weighted(sources: Any) -> tuple[list[_Given], _Weights]:
    """Return sources and constant weights, given as pairs."""
    if not sources or not isinstance(sources, Collection) or not all(map(_is_weighted, sources)):
        raise ConfigError(
            "a mix needs one or more pairs (loader, path or URL; finite weight above 0), such as "
            f'Mix([("photos256", 3), ("sketches256", 1)]), found {sources!r:.200}'
        )
    return [source for source, _ in sources], [[0, [float(weight) for _, weight in sources]]]


def _is_weighted(pair: Any) -> bool:
    """Return whether this is a pair of a source and a weight above 0."""
    return isinstance(pair, tuple | list) and len(pair) == 2 and _is_weight(pair[1]) and pair[1] > 0


def _is_weight(value: Any) -> bool:
    return isinstance(value, Real) and 0 <= float(value) < math.inf


def _scheduled(sources: Any, schedule: Any) -> tuple[list[_Given], _Weights]:
    """Return sources, and [step, weights] pairs."""
    if not sources or isinstance(sources, str) or any(isinstance(source, tuple | list) for source in sources):
        raise ConfigError(
            "with a schedule, a mix needs loaders, paths or URLs without weights, such as "
            f'Mix(["photos256", "sketches256"], schedule=[(0, [3, 1]), (10_000, [1, 1])]), found {sources!r:.200}'
        )
    pairs = list(schedule) if isinstance(schedule, Collection) else []
    points = [pair for pair in pairs if isinstance(pair, tuple | list) and len(pair) == 2]
    steps = [check_integer("a step of the schedule", step, 0) for step, _ in points]
    if not points or len(points) != len(pairs) or steps[0] or any(b <= a for a, b in itertools.pairwise(steps)):
        raise ConfigError(
            "schedule must be pairs of a step and weights, with ascending steps from 0, such as "
            f"[(0, [3, 1]), (10_000, [1, 1])]; found {schedule!r:.200}"
        )
    for step, weights in points:
        is_list = isinstance(weights, Collection) and all(map(_is_weight, weights))
        if not is_list or len(weights) != len(sources) or not sum(weights):
            raise ConfigError(
                f"schedule, step {step}: expected a finite weight of 0 or more for each of {len(sources)} sources, not "
                f"all 0, found {weights!r:.80}"
            )
    never = [number for number in range(len(sources)) if not any(list(weights)[number] for _, weights in points)]
    if never:
        raise ConfigError(f"schedule: source {never[0]} has weight 0 at all steps; leave it out")
    return list(sources), [
        [step, [float(weight) for weight in weights]] for step, (_, weights) in zip(steps, points, strict=True)
    ]


def _fields_of(loaders: Sequence[Loader], given: Any, by: str) -> tuple[str, ...]:
    """Return the fields of a batch; ConfigError if a loader lacks one that it must have."""
    if len(found := {loader.fields for loader in loaders}) == 1:
        read = [{*loader.source.fields} for loader in loaders]  # others than the batch's, for a `WholeSample`
        some = read[0].union(*read) - read[0].intersection(*read)
        if by == "sample" and (uneven := sorted(some.intersection((IMAGES, *COMPUTED_FIELDS)) - {"label"})):
            raise ConfigError(
                f"only some loaders read {', '.join(map(repr, uneven))}: give it to all of them, or pass by='batch'; "
                "loaders with transforms of whole samples may differ in 'label', parts and columns"
            )
        return loaders[0].fields
    if given is None:
        raise ConfigError(
            f"the loaders' fields differ: {'; '.join(map(str, sorted(found)))}; make them equal, or name those of a "
            "batch: with Mix(..., fields=(...)), a field is None where a source lacks it"
        )
    names = tuple(given) if isinstance(given, Collection) and not isinstance(given, str) else ()
    have = {field for loader in loaders for field in loader.fields}
    if len({*names}) < len(names) or {*names} != have:
        absent = ", ".join(map(repr, (name for name in names if name not in have)))
        remedy = f": make loaders with {absent} among their fields" if absent else ""
        raise ConfigError(
            f"fields must name all fields of the loaders{remedy}; found {given!r:.200} with "
            f"{'; '.join(map(str, sorted(found)))}"
        )
    for number, loader in enumerate(loaders if by == "sample" else ()):
        for field in names:
            other = any(field in each.annotations.names or field in each.source.columns for each in loaders)
            other = other or any(isinstance(each.source.transform, WholeSample) for each in loaders)
            if field not in loader.fields and (other or field in (IMAGES, *COMPUTED_FIELDS)):
                raise ConfigError(
                    f"field {field!r}: {_describe(number, loader)} lacks it. Mixed by sample, only parts that come as "
                    "lists may be missing; give the loader the field, or pass by='batch'"
                )
    return names


def _check_new(loaders: Sequence[Loader]) -> None:
    """Check that each loader is at the start of epoch 0, where a mix begins."""
    for number, loader in enumerate(loaders):
        state = loader.state_dict()
        if (state["epoch"], state["position"]) != (0, 0):
            raise ConfigError(
                f"{_describe(number, loader)} is at sample {state['position']} of epoch {state['epoch']}, but a mix "
                "begins with epoch 0 of each source; make a new loader, and move or resume the mix instead"
            )


def _check_mixable(sources: Sequence[Source]) -> None:
    """Check that samples of these sources can be in one batch."""
    for name, found in (
        ("batch_size", [source.partition.batch_size for source in sources]),
        ("group", [(source.partition.rank, source.partition.world_size) for source in sources]),
        ("batch_transform", [source.batch_transform for source in sources]),
        ("annotation fields", [source.annotations.kinds for source in sources]),
        ("columns", [_kinds_among(source, sources) for source in sources]),
        ("patch of a token budget", [source.epochs.sampler.patch for source in sources]),
    ):
        if any(each != found[0] for each in found):
            raise ConfigError(
                f"the loaders' {name} differ: {', '.join(map(repr, found))}; make them equal, or pass by='batch'"
            )
    for source in sources:
        if source.epochs.sampler.together != "sample":
            raise ConfigError("ClassBatches and AspectBuckets compose whole batches; pass by='batch'")
        if source.epochs.shuffle is not None and source.epochs.shuffle.shard_affinity:
            raise ConfigError(
                "Shuffle(shard_affinity=True) keeps the shards of a rank from epoch to epoch; pass by='batch'"
            )
    decoders = [source.decoder for source in sources]
    if any(each != decoders[0] for each in decoders) and not all(each.rows_are_images for each in decoders):
        raise ConfigError("encoded and decoded images cannot be mixed; give all loaders the same decoder")
    if len({len(decoder.views) for decoder in decoders}) > 1:
        raise ConfigError("the loaders' decoders have different numbers of views; make these equal")
    if any(decoder.padding != decoders[0].padding for decoder in decoders):
        raise ConfigError("the loaders' decoders stack or pad batches differently; make their settings equal")


def _kinds_among(source: Source, sources: Sequence[Source]) -> dict[str, str | None]:
    """Return the type of each field that is a column of a source; of a field that this one does not read, any's."""
    kinds: dict[str, str | None] = {}
    for each in (*sources, source):
        kinds |= {name: each.columns.kinds.get(name) for name in each.fields}
    return {name: kind for name, kind in kinds.items() if any(name in each.columns.kinds for each in sources)}


def _whole_steps(sources: Sequence[Source]) -> int:
    """Return the number of batches of all sources together, mixed by sample."""
    partition = sources[0].partition
    steps = sum(source.epochs.length for source in sources) // partition.global_batch
    if not steps:
        raise ConfigError(
            f"all sources together have fewer samples than one batch of {partition.batch_size} for each of "
            f"{partition.world_size} ranks; lower batch_size, or set steps_per_epoch"
        )
    return steps


def _common_classes(loaders: Sequence[Loader]) -> list[str]:
    """Return the class names of the labels in a batch; none if no field has labels."""
    fields = dict.fromkeys(field for loader in loaders for field in loader.source.fields)
    kinds = [loader.annotations.kinds for loader in loaders]
    numbers = [
        field
        for field in fields
        if field in ("label", "labels", *LABEL_PARTS)
        or (field not in _NOT_CLASSES and any(each.get(field) == "int64" for each in kinds))
    ]
    if not numbers:
        return []
    numbered = [loader for loader in loaders if not {*numbers}.isdisjoint(loader.source.fields)]
    datasets = [loader.dataset.dataset for loader in numbered]
    try:
        classes = list(common_classes([(dataset.url, dataset.classes) for dataset in datasets]) or ())
    except ConfigError as error:
        remedy = "" if set(numbers) <= {"label", "labels"} else "; or leave these fields out"
        raise ConfigError(f"the fields {', '.join(numbers)} hold class numbers: {error}{remedy}") from None
    if "labels" in fields and len(lengths := {len(dataset.classes or ()) for dataset in datasets}) > 1:
        raise ConfigError(
            f"the loaders' classes differ: the field 'labels' has a column for each class, here {sorted(lengths)}; "
            "pack all datasets with one `--classes FILE`"
        )
    return classes


def _describe(number: int, loader: Loader) -> str:
    return f"loader {number} of the mix, of {loader.dataset.dataset.url}, split {loader.split.name!r},"
