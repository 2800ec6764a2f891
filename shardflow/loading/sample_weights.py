"""Sample weights: what `Loader(weights=...)` accepts, and the weight of each sample that it stands for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow.dataset.class_labels import single_classes
from shardflow.dataset.open_dataset import Split
from shardflow.errors import ConfigError
from shardflow.order.weights import Weights

WeightsLike = npt.ArrayLike | str | os.PathLike[str] | Mapping[str | int, float] | None
"""A weight per sample, as numbers or as the path of a `.npy`; "balanced" or "sqrt"; a weight per class; or None."""

_POWERS = {"balanced": 1.0, "sqrt": 0.5}


class Subset:
    """Some samples of a split, for `Loader(weights=Subset(...))`: a sample comes as often as its number is named.

    With `shuffle=False` they come in the order given, as those of PyTorch's `Subset`. Shards are then read as this
    order needs them, so numbers that go back and forth keep many open.

    Args:
        indices: Numbers of samples, 0 … N-1: integers, shape [M].
    """

    def __init__(self, indices: npt.ArrayLike) -> None:
        self.indices = np.asarray(indices)
        if self.indices.ndim != 1 or (self.indices.dtype.kind not in "iu" and len(self.indices)):
            found = f"dtype {self.indices.dtype} of shape {self.indices.shape}"
            raise ConfigError(f"Subset takes a list of sample numbers, found {found}")

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        return f"Subset({len(self)} samples)"


def make_weights(
    given: WeightsLike | Subset, split: Split, classes: Sequence[str] | None, samples: int, *, shuffle: bool
) -> Weights:
    """Return the weights of the first `samples` samples of a split; not shuffled, those of a `Subset` keep its order.

    Raises:
        ConfigError: They are not what `Loader` documents, or do not fit the split.
    """
    if isinstance(given, Subset):
        return _of_subset(given, split, samples, keep_order=not shuffle)
    if isinstance(given, Mapping) or (isinstance(given, str) and given in _POWERS):
        labels = class_labels(split, classes)[:samples]
        if isinstance(given, Mapping):
            return Weights(_of_classes(given, classes or ()), labels)
        return Weights(_by_frequency(labels, len(classes or ()), _POWERS[given]), labels)
    values = _load(given) if isinstance(given, str | os.PathLike) else given
    if not isinstance(values, np.memmap):
        values = np.asanyarray(values).copy()  # a training loop may change its losses while an epoch with them runs
    if values.ndim == 0:
        values = np.broadcast_to(values, len(split))
    if values.ndim == 1 and len(values) != len(split):
        raise ConfigError(
            f"weights has {len(values)} numbers, split {split.name!r} has {len(split)} samples; give one per sample"
        )
    return Weights(values[:samples])


def class_labels(split: Split, classes: Sequence[str] | None) -> npt.NDArray[np.int32]:
    """Return the class of each sample: int32 [N].

    Raises:
        ConfigError: The dataset has no classes, or a sample has none or several.
    """
    if classes is None:
        raise ConfigError("choosing samples by class needs a dataset with labels")
    labels = single_classes(split, len(classes))
    if len(without := np.flatnonzero(labels < 0)):
        raise ConfigError(
            f"choosing samples by class needs one class per sample; {len(without)} of {len(split)} samples have none "
            f"or several, the first is sample {without[0]}"
        )
    return labels


def _of_subset(subset: Subset, split: Split, samples: int, *, keep_order: bool) -> Weights:
    bad = np.flatnonzero((subset.indices < 0) | (subset.indices >= len(split)))
    if len(bad):
        raise ConfigError(
            f"Subset names sample {subset.indices[bad[0]]}, split {split.name!r} has samples 0 … {len(split) - 1}"
        )
    numbers = subset.indices.astype(np.int64)
    numbers = numbers[numbers < samples]
    is_listed = keep_order and bool((np.diff(numbers) < 0).any())  # in ascending order, the split's order is theirs
    return Weights(np.bincount(numbers, minlength=samples), listed=numbers if is_listed else None)


def _of_classes(given: Mapping[str | int, float], classes: Sequence[str]) -> npt.NDArray[np.float64]:
    """Return the weight of each class; 1 for those that are not named."""
    weights = np.ones(len(classes))
    numbers = {name: number for number, name in enumerate(classes)}
    for name, weight in given.items():
        number = numbers.get(name, name) if isinstance(name, str) else name
        if not isinstance(number, int | np.integer) or not 0 <= number < len(classes):
            message = f"weights name the class {name!r}, which the dataset does not have"
            raise ConfigError(f"{message}; it has {', '.join(classes[:10])}{', …' if len(classes) > 10 else ''}")
        if not isinstance(weight, Real):
            raise ConfigError(f"the weight of class {name!r} must be a number, found {weight!r}")
        weights[number] = weight
    return weights


def _by_frequency(labels: npt.NDArray[np.int32], classes: int, power: float) -> npt.NDArray[np.float64]:
    """Return weights that are proportional to 1 / (images of the class)**power, and keep the length of the epoch."""
    counts = np.bincount(labels, minlength=classes)
    weights = np.zeros(classes)
    weights[counts > 0] = counts[counts > 0] ** -power
    return weights * (len(labels) / float(np.dot(weights, counts)))


def _load(path: str | os.PathLike[str]) -> npt.NDArray[Any]:
    try:
        values: npt.NDArray[Any] = np.load(os.path.expanduser(path), mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise ConfigError(
            f"weights={os.fspath(path)!r} is neither a file nor one of {', '.join(map(repr, _POWERS))}"
        ) from None
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(f"weights={os.fspath(path)!r} is not a .npy file of numbers: {error}") from error
    return values
