"""Weighted: each sample comes in proportion to its weight, by systematic sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow._validation import is_series
from shardflow._wording import first_few
from shardflow.errors import ConfigError
from shardflow.formats.labels import are_ids

from .sampler import EpochSampler, Facts, fulfilling, per_sample
from .shuffle_plan import ShuffledEpochs
from .weights import Weights

_FEW_SIZES = 12
"""Different sizes of classes, up to which two weights that occur as often as a class are probably those of a class."""

_POWERS = {"balanced": 1.0, "sqrt": 0.5}


class Weighted:
    """Draws each sample ⌊w⌋ or ⌈w⌉ times per epoch, on average w; weights are 0 or more.

    An epoch has as many samples as the sum of the weights, rounded, and weights are scaled to that: with a sum of 83.6,
    a weight of 3 becomes 3.014, which may come 4 times. Each repeat of a sample has another random key.

    >>> loader = shardflow.Loader("photos256", batch_size=256, sampler=shardflow.samplers.Weighted("balanced"))
    >>> cats = shardflow.samplers.Weighted("score", where="class = 'cat'")

    Args:
        weights: A number per sample ([N], the name of a column of the dataset, or the path of a `.npy`), or one for
            all. Or a mapping from the name of a class, or its number unless that is a name, to a weight, 1 for missing
            classes. Or "balanced": each class equally often; or "sqrt": each class in proportion to the square root of
            its number of images; both keep the epoch's length.
        where: Only samples that fulfil this condition come, see `Subset`; class frequencies are counted among them.
    """

    def __init__(
        self, weights: npt.ArrayLike | str | Mapping[str | int, float] | Any, *, where: str | None = None
    ) -> None:
        self.weights, self.where = weights, where

    def __repr__(self) -> str:
        where = "" if self.where is None else f", where={self.where!r}"
        return f"Weighted({' '.join(repr(self.weights).split()):.60}{where})"  # a Series is shown over several lines

    def bind(self, facts: Facts) -> EpochSampler:
        """Return epochs of samples by weight."""
        weights, warnings = self._of(facts)
        epochs = ShuffledEpochs(facts, weights)
        epochs.warnings = warnings
        epochs.length_rule = (
            f"; it is the sum of the weights of {self!r}: scale them, by weights / weights.mean() for an epoch as long "
            "as the split, or pass the loader samples_per_epoch="
        )
        return epochs

    def _of(self, facts: Facts) -> tuple[Weights, list[str]]:
        """Return the weights, and warnings."""
        given, samples = self.weights, facts.samples
        mask = None if self.where is None else fulfilling(facts, self.where)
        if isinstance(given, Mapping) or (isinstance(given, str) and given in _POWERS):
            if isinstance(given, str) and facts.column(given, mask) is not None:
                raise ConfigError(f"{self!r} is a rule, but a column has this name too; pass the column's values")
            classes, labels = facts.classes or (), facts.labels()[:samples]
            if isinstance(given, Mapping):
                by_class = _of_classes(given, classes)
            else:
                by_class = _by_frequency(labels if mask is None else labels[mask], len(classes), _POWERS[given])
            if mask is not None:
                return Weights(by_class[labels] * mask, facts.shard_samples), []
            return Weights(by_class, facts.shard_samples, labels), []
        numbers = per_sample(facts, given, "Weighted", mask)
        weights = Weights(numbers, facts.shard_samples)
        is_in_order = isinstance(given, str) or is_series(given) or mask is not None
        return weights, [] if is_in_order else _other_order(facts, numbers)


def _other_order(facts: Facts, weights: npt.NDArray[Any]) -> list[str]:
    """Return a warning if weights occur as often as classes, but with other samples than those of the classes."""
    numbers, counts = np.unique(weights, return_inverse=True, return_counts=True)[1:]
    if not 1 < len(counts) <= len(facts.classes or ()):
        return []
    try:
        labels = facts.labels()[: facts.samples]
    except ConfigError:  # samples without a class, or with several
        return []
    sizes, number = np.unique(np.bincount(labels)[np.unique(labels)], return_counts=True)
    fit = sorted(np.repeat(sizes, number)), sorted(sizes * number)  # classes of one size may have one weight
    fits = sorted(counts) in fit
    if len(counts) == 2 and len(sizes) <= _FEW_SIZES:
        fits |= 1 < min(counts) in sizes  # one class has its own
    if len(sizes) == 1 or not fits or len({*zip(labels, numbers, strict=True)}) == number.sum():
        return []
    return [
        "the weights occur as often as the samples of the classes, but not with these samples: their order seems to be "
        'that of a table, which pack shuffles; pass Weighted("balanced"), a mapping from class to weight, or a pandas '
        "Series whose index has the ids of the images"
    ]


def _of_classes(given: Mapping[str | int, float], classes: Sequence[str]) -> npt.NDArray[np.float64]:
    """Return the weight of each class; 1 for those that `given` lacks."""
    weights = np.ones(len(classes))
    numbers, ids = {name: number for number, name in enumerate(classes)}, are_ids(classes)
    for name, weight in given.items():
        number = numbers.get(str(name), None if ids else name)
        if not isinstance(number, int | np.integer) or not 0 <= number < len(classes):
            raise ConfigError(f"weights name the unknown class {name!r}; the dataset has {first_few(classes, 10)}")
        if not isinstance(weight, Real):
            raise ConfigError(f"the weight of class {name!r} must be a number, found {weight!r}")
        weights[number] = weight
    return weights


def _by_frequency(labels: npt.NDArray[np.int32], classes: int, power: float) -> npt.NDArray[np.float64]:
    """Return weights in proportion to 1 / (images of the class)**power that keep the length of the epoch."""
    counts = np.bincount(labels, minlength=classes)
    weights = np.zeros(classes)
    weights[counts > 0] = counts[counts > 0] ** -power
    return weights * (len(labels) / float(np.dot(weights, counts)))
