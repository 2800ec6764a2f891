"""The seam of samplers: which samples make an epoch, in which order, and how they form batches.

A sampler is bound to the facts of a run, and then plans one pass over the samples after the other. Nothing here reads a
file, draws from a generator or knows about ranks and workers: the same facts give the same epochs. To add a
sampler, write one file with a class that has `bind`; `Subset` and `ClassBatches` are short examples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from shardflow.errors import ConfigError

from .keyed_rng import I64
from .shuffle_settings import Shuffle
from .weights import as_numbers

Shape = tuple[int, int]
"""Height and width in pixels."""

Together = Literal["sample", "batch", "step"]
"""Positions that belong together: none; those of one rank's batch, which are then in a row; those of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts of a dataset and a run, for samplers. The callables read the indexes when they are called.

    Attributes:
        split: The name of the split, for messages.
        split_samples: The samples of the whole split: the length of an argument with a number per sample.
        shard_samples: The samples of each shard that take part, int64 [S]. They are the first of the split.
        shuffle: How to shuffle; None for the order of the split.
        batch_size, world_size: The samples of a rank's batch, and the number of ranks.
        classes: The class names; None where the dataset has no labels.
        labels: Returns the class of each sample, int32 [split_samples]; ConfigError where one has none or several.
        image_sizes: Returns width and height of each image, int64 [split_samples, 2]; 0 where they are not known.
        load: Returns the numbers in a file, by its path.
        column: Returns the numbers in a column of the dataset, one per sample of the whole split; None if there is none
            of the name; ConfigError where samples lack a value.
        where: Returns which samples fulfil a condition, bool [split_samples].
    """

    split: str
    split_samples: int
    shard_samples: I64
    shuffle: Shuffle | None
    batch_size: int
    world_size: int
    classes: Sequence[str] | None
    labels: Callable[[], npt.NDArray[np.int32]]
    image_sizes: Callable[[], I64]
    load: Callable[[Any], npt.NDArray[Any]]
    column: Callable[[str], npt.NDArray[Any] | None] = lambda _: None
    where: Callable[[str], npt.NDArray[np.bool_]] = lambda _: np.empty(0, dtype=np.bool_)

    @property
    def samples(self) -> int:
        """Samples that take part."""
        return int(self.shard_samples.sum())


class EpochPlan(Protocol):
    """One pass over the samples: a pure function from positions 0 … length-1."""

    length: int

    def visits(self, positions: npt.NDArray[Any]) -> tuple[I64, I64, I64]:
        """Return (shard, record, repeat) of positions; the repeats of a record count from 0, in int64.

        Where positions have several samples, as `counts` says, those of each position follow each other.
        """
        ...

    def counts(self, positions: npt.NDArray[Any]) -> I64:
        """Return how many samples each of the positions has: one, if the sampler packs no bins."""
        return np.ones(len(positions), dtype=np.int64)

    def needs(self, rank: int, world_size: int) -> tuple[I64, I64, I64]:
        """Return which shards the positions p ≡ rank (mod world_size) need: (shards, begins, ends), by first need.

        Samples of `shards[i]` are at positions from `begins[i]` to `ends[i]`-1 only. A shard may come twice.
        """
        ...

    def shape(self, position: int) -> Shape | None:  # noqa: ARG002 - for those who decide on it
        """Return the shape of the images in the batch of a position; None where the decoder decides."""
        return None


class ListPlan(EpochPlan):
    """A pass whose order is one array, made again for each epoch; positions are found by lookup.

    Args:
        visits: Shard, record and repeat of each position, int64 [3, N].
    """

    def __init__(self, visits: I64) -> None:
        self.length, self._visits = visits.shape[1], visits

    @classmethod
    def of_samples(cls, samples: I64, shard_samples: npt.ArrayLike) -> ListPlan:
        """Return the plan of samples by their numbers in the split; one that is named several times comes so often."""
        ends = np.cumsum(np.asarray(shard_samples, dtype=np.int64))
        total = int(ends[-1]) if len(ends) else 0
        if len(bad := np.flatnonzero((samples < 0) | (samples >= total))):
            raise ConfigError(f"the sampler names sample {samples[bad[0]]}, and 0 … {total - 1} take part")
        shards: I64 = np.searchsorted(ends, samples, side="right")
        firsts = np.concatenate([[0], ends])[shards]
        order = np.argsort(samples, kind="stable")
        ascending, repeats = samples[order], np.empty_like(samples)
        repeats[order] = np.arange(len(samples)) - np.searchsorted(ascending, ascending)
        return cls(np.stack([shards, samples - firsts, repeats]))

    def visits(self, positions: npt.NDArray[Any]) -> tuple[I64, I64, I64]:
        """Return (shard, record, repeat) of positions."""
        shards, records, repeats = self._visits[:, positions]
        return shards, records, repeats

    def needs(self, rank: int, world_size: int) -> tuple[I64, I64, I64]:
        """Return which shards the positions of a rank need and when."""
        shards, begins, ends = shard_spans(self._visits[0, rank::world_size])
        return shards, begins * world_size + rank, (ends - 1) * world_size + rank + 1


class EpochSampler(Protocol):
    """A sampler that is bound to the facts of a run.

    Attributes:
        length: Positions in a pass: its samples, or bins of them.
        identity: Plain JSON that differs where the orders do, for checkpoints, and to compare ranks.
        together: Which positions belong together.
        shapes: The shapes of its batches; none where the decoder decides.
        patch: Where positions are bins, the height and width of each image are multiples of this; 0 without images, and
            None where a position is a sample.
        chosen: The numbers of the samples that each pass has; None where these are all, or not the same in each.
        warnings: Messages for the user.
        length_rule: The reason for the length of an epoch, and how to have a longer one: "; …", to end a message.
    """

    length: int
    identity: Any
    together: Together = "sample"
    shapes: Sequence[Shape] = ()
    patch: int | None = None
    chosen: I64 | None = None
    warnings: Sequence[str] = ()
    length_rule: str = ""

    def plan(self, *, seed: int, epoch: int, streams: int) -> EpochPlan:
        """Return the pass of an epoch; a pure function."""
        ...

    def drawn(self) -> I64 | None:
        """Return the numbers of the samples that can come; None where all of those that take part can."""
        return None

    def image_shapes(self, samples: I64) -> I64 | None:  # noqa: ARG002 - for those who decide on them
        """Return height and width of the images of samples, int64 [B, 2]; None if this does not decide on each."""
        return None


class Sampler(Protocol):
    """The argument of `Loader(sampler=...)`."""

    def bind(self, facts: Facts) -> EpochSampler:
        """Return the epochs that this sampler makes of these facts; ConfigError where it does not fit them."""
        ...


def bound(sampler: Any, facts: Facts) -> EpochSampler:
    """Return a sampler, bound; ConfigError if it is not a sampler, or lacks an identity."""
    if isinstance(sampler, type) or not callable(getattr(sampler, "bind", None)):
        raise ConfigError(
            "sampler must be one of shardflow.samplers, such as samplers.Weighted('balanced'), or an object with "
            f"`bind(facts)`, found {sampler!r:.80}"
        )
    epochs: EpochSampler = sampler.bind(facts)
    members = ("length", "identity", "plan", "together", "shapes", "patch", "image_shapes", "warnings")
    problem = ""
    if missing := [name for name in members if not hasattr(epochs, name)]:
        problem = f"bind() returned an object without {', '.join(missing)}; inherit from samplers.EpochSampler"
    elif epochs.together not in get_args(Together):
        problem = f"together must be one of {', '.join(get_args(Together))}, found {epochs.together!r}"
    elif not _is_plain(epochs.identity):
        problem = f"identity must be plain JSON that differs where the orders do, found {epochs.identity!r:.80}"
    if problem:
        raise ConfigError(f"{sampler!r:.80}: {problem}")
    return epochs


def per_sample(facts: Facts, given: Any, who: str) -> npt.NDArray[Any]:
    """Return numbers, one per sample of the split: an array, a column's name, a `.npy`, or one number for all.

    Raises:
        ConfigError: They are neither, or not as many.
    """
    values: Any = facts.column(given) if isinstance(given, str) else None
    if values is None:
        values = facts.load(given) if isinstance(given, str) or hasattr(given, "__fspath__") else given
    if not isinstance(values, np.memmap):
        # Copied: a training loop may change its losses while their epoch runs.
        values = as_numbers(f"{who} takes a number per sample", values).copy()
    if values.ndim == 0:
        values = np.broadcast_to(values, facts.split_samples)
    if values.ndim == 1 and len(values) != facts.split_samples:
        raise ConfigError(
            f"{who} has {len(values)} numbers, split {facts.split!r} has {facts.split_samples} samples; give "
            "one per sample"
        )
    found: npt.NDArray[Any] = values[: facts.samples]
    return found


def fulfilling(facts: Facts, where: str) -> npt.NDArray[np.bool_]:
    """Return which of the samples that take part fulfil a condition; ConfigError if none does."""
    mask = facts.where(where)[: facts.samples]
    if not mask.any():
        raise ConfigError(f"no sample of split {facts.split!r} fulfils the condition {where!r}")
    return mask


def known_sizes(facts: Facts, who: str) -> I64:
    """Return width and height of the images that take part; ConfigError if the index lacks one."""
    sizes = facts.image_sizes()[: facts.samples]
    if len(unknown := np.flatnonzero(~sizes.all(axis=1))):
        raise ConfigError(
            f"{who} needs the sizes of all images; the index lacks {len(unknown)} of {facts.samples}, "
            f"the first is that of sample {unknown[0]}"
        )
    return sizes


def _is_plain(identity: Any) -> bool:
    """Return whether an identity is the same after it was saved with a checkpoint."""
    try:
        return identity is not None and bool(json.loads(json.dumps(identity)) == identity)
    except (TypeError, ValueError):
        return False


def shard_spans(shards: I64) -> tuple[I64, I64, I64]:
    """Return the shards of a sequence, each once in the order of first need, and where each begins and ends in it."""
    found, begins = np.unique(shards, return_index=True)
    _, backwards = np.unique(shards[::-1], return_index=True)
    order = np.argsort(begins)
    return found[order], begins[order], len(shards) - backwards[order]
