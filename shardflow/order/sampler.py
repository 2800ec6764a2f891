"""The interface of samplers, which choose the samples of an epoch, their order and their batches.

A sampler is bound to the facts of a run, and then plans each pass over the samples. Samplers are pure: equal facts give
equal epochs. To add a sampler, write a class with `bind`; `Subset` and `ClassBatches` are short examples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from shardflow._validation import is_series
from shardflow.errors import ConfigError

from .keyed_rng import I64
from .shuffle_settings import Shuffle
from .weights import as_numbers

Shape = tuple[int, int]
"""Height and width in pixels."""

Together = Literal["sample", "batch", "step"]
"""Positions that belong together: "sample", none; "batch", those of a rank's batch, consecutive; "step", of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts of a dataset and a run, for samplers. The callables read the indexes when they are called.

    Attributes:
        split: The name of the split, for messages.
        split_samples: Number of samples of the whole split: the length of arguments with a value per sample.
        shard_samples: Number of samples of each shard that take part, int64 [S]: with a limit, the first of the split.
        shuffle: The settings of the shuffle; None for the order of the split.
        batch_size, world_size: Samples of a rank's batch, and number of ranks.
        classes: The class names; None if the dataset has no labels.
        labels: Returns the class of each sample, int32 [split_samples]; ConfigError if one has none or several.
        image_sizes: Returns width and height of each image, int64 [split_samples, 2]; 0 if unknown.
        load: Returns the numbers in a file, given its path, or of a pandas Series in the order of the split.
        column: Returns the numbers in a column, [split_samples]; None if no column has this name; ConfigError if
            samples lack a value, of those that the second argument selects, bool [samples], or of all.
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
    column: Callable[[str, npt.NDArray[np.bool_] | None], npt.NDArray[Any] | None] = lambda *_: None
    where: Callable[[str], npt.NDArray[np.bool_]] = lambda _: np.empty(0, dtype=np.bool_)

    @property
    def samples(self) -> int:
        """Number of samples that take part."""
        return int(self.shard_samples.sum())


class EpochPlan(Protocol):
    """One pass over the samples: a pure function from positions 0 … length-1."""

    length: int

    def visits(self, positions: npt.NDArray[Any]) -> tuple[I64, I64, I64]:
        """Return (shard, record, repeat) of positions as int64; the repeats of a record count from 0.

        If positions have several samples (see `counts`), those of one position follow each other.
        """
        ...

    def counts(self, positions: npt.NDArray[Any]) -> I64:
        """Return the number of samples at each position: 1 unless positions are bins."""
        return np.ones(len(positions), dtype=np.int64)

    def needs(self, rank: int, world_size: int) -> tuple[I64, I64, I64]:
        """Return the shards of the positions p ≡ rank (mod world_size): (shards, begins, ends), by first use.

        The rank reads `shards[i]` only at positions from `begins[i]` to `ends[i]`-1. A shard may be listed twice.
        """
        ...

    def shape(self, position: int) -> Shape | None:  # noqa: ARG002 - for subclasses
        """Return the shape of the images in the batch of a position; None if the decoder decides."""
        return None


class ListPlan(EpochPlan):
    """A pass whose order is an array, in which positions are looked up.

    Args:
        visits: Shard, record and repeat of each position, int64 [3, N].
    """

    def __init__(self, visits: I64) -> None:
        self.length, self._visits = visits.shape[1], visits

    @classmethod
    def of_samples(cls, samples: I64, shard_samples: npt.ArrayLike) -> ListPlan:
        """Return the plan of samples, int64 numbers in the split; a number may be repeated."""
        ends = np.cumsum(np.asarray(shard_samples, dtype=np.int64))
        total = int(ends[-1]) if len(ends) else 0
        if len(bad := np.flatnonzero((samples < 0) | (samples >= total))):
            raise ConfigError(f"the sampler names sample {samples[bad[0]]}, but only 0 … {total - 1} take part")
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
        """Return the shards of a rank's positions, and when they are read."""
        shards, begins, ends = shard_spans(self._visits[0, rank::world_size])
        return shards, begins * world_size + rank, (ends - 1) * world_size + rank + 1


class EpochSampler(Protocol):
    """A sampler that is bound to the facts of a run.

    Attributes:
        length: Positions in a pass: samples, or bins of them.
        identity: Plain JSON that differs if the orders differ, for checkpoints and to compare ranks.
        together: What belongs together: "sample", nothing; "batch", a rank's batch; "step", the batches of all ranks.
        shapes: The shapes of the batches; empty if the decoder decides.
        patch: If positions are bins, the sides of each image are multiples of this, or 0 without images; None if a
            position is a sample.
        chosen: The numbers of the samples of each pass; None if these are all samples, or differ between passes.
        warnings: Messages for the user.
        length_rule: The end of a message, "; …": why an epoch has this length, and how to get a longer one.
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
        """Return the plan of an epoch, or of a pass with `samples_per_epoch`; a pure function."""
        ...

    def drawn(self) -> I64 | None:
        """Return the numbers of the samples that an epoch can have; None if all of those that take part."""
        return None

    def image_shapes(self, samples: I64) -> I64 | None:  # noqa: ARG002 - for subclasses
        """Return height and width of the images of samples, int64 [B, 2]; None if the sampler does not choose them."""
        return None


class Sampler(Protocol):
    """The argument of `Loader(sampler=...)`."""

    def bind(self, facts: Facts) -> EpochSampler:
        """Return the sampler's epochs for these facts; ConfigError if it does not fit them."""
        ...


def bound(sampler: Any, facts: Facts) -> EpochSampler:
    """Bind a sampler; ConfigError if it does not follow the interface."""
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
        problem = f"identity must be plain JSON that differs if the orders differ, found {epochs.identity!r:.80}"
    if problem:
        raise ConfigError(f"{sampler!r:.80}: {problem}")
    return epochs


def per_sample(facts: Facts, given: Any, who: str, chosen: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[Any]:
    """Return the numbers of the samples that take part, given as an array, a column, a `.npy`, or one number for all.

    With `chosen`, the numbers of other samples are 0, and a column may lack them.

    Raises:
        ConfigError: They are none of these, or not one per sample of the split.
    """
    values: Any = facts.column(given, chosen) if isinstance(given, str) else None
    if values is None:
        is_loaded = isinstance(given, str) or hasattr(given, "__fspath__") or is_series(given)
        values = facts.load(given) if is_loaded else given
    if not isinstance(values, np.memmap):
        # A copy, as a training loop may update its array of losses during the epoch.
        values = as_numbers(f"{who} takes a number per sample", values).copy()
    if values.ndim == 0:
        values = np.broadcast_to(values, facts.split_samples)
    if values.ndim == 1 and len(values) != facts.split_samples:
        raise ConfigError(
            f"{who} has {len(values)} numbers for the {facts.split_samples} samples of split {facts.split!r}; give one "
            "per sample"
        )
    found: npt.NDArray[Any] = values[: facts.samples]
    return found if chosen is None or found.ndim != 1 else np.where(chosen, found, 0)


def fulfilling(facts: Facts, where: str) -> npt.NDArray[np.bool_]:
    """Return which samples that take part fulfil a condition, as bool; ConfigError if none does."""
    mask = facts.where(where)[: facts.samples]
    if not mask.any():
        raise ConfigError(f"no sample of split {facts.split!r} fulfils the condition {where!r}")
    return mask


def known_sizes(facts: Facts, who: str) -> I64:
    """Return width and height of the images that take part; ConfigError if the index lacks one."""
    sizes = facts.image_sizes()[: facts.samples]
    if len(unknown := np.flatnonzero(~sizes.all(axis=1))):
        raise ConfigError(
            f"{who} needs the sizes of all images, but the index lacks {len(unknown)} of {facts.samples}, such as that "
            f"of sample {unknown[0]}; pack the images instead of indexing them"
        )
    return sizes


def _is_plain(identity: Any) -> bool:
    """Return whether an identity survives being saved as JSON."""
    try:
        return identity is not None and bool(json.loads(json.dumps(identity)) == identity)
    except (TypeError, ValueError):
        return False


def shard_spans(shards: I64) -> tuple[I64, I64, I64]:
    """Return the different shards of a sequence in the order of first use, and where each begins and ends in it."""
    found, begins = np.unique(shards, return_index=True)
    _, backwards = np.unique(shards[::-1], return_index=True)
    order = np.argsort(begins)
    return found[order], begins[order], len(shards) - backwards[order]
