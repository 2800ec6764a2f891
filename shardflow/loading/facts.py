"""The facts of a split for samplers, read on demand."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow._validation import is_series
from shardflow._wording import plural
from shardflow.dataset.class_labels import single_classes
from shardflow.dataset.open_dataset import Split
from shardflow.dataset.sample_table import select
from shardflow.dataset.selection import in_split_order
from shardflow.errors import ConfigError
from shardflow.formats.columns import NUMBERS
from shardflow.order.epochs import limited
from shardflow.order.sampler import Facts
from shardflow.order.shuffle_settings import Shuffle


def split_facts(
    split: Split,
    classes: Sequence[str] | None,
    *,
    shuffle: object = None,
    limit: int | None = None,
    batch_size: int = 1,
    world_size: int = 1,
) -> Facts:
    """Return the facts of a split, given these arguments of a loader."""
    return Facts(
        split=split.name,
        split_samples=len(split),
        shard_samples=limited(split.shard_samples, limit),
        shuffle=Shuffle.of(shuffle, split.name),
        batch_size=batch_size,
        world_size=world_size,
        classes=classes,
        labels=partial(class_labels, split, classes),
        image_sizes=split.image_sizes,
        load=partial(load_numbers, split),
        column=partial(column_numbers, split),
        where=partial(select, split, classes),
    )


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
            f"choosing samples by class needs one class per sample, but {len(without)} of {len(split)} samples have "
            f"none or several, such as sample {without[0]}; give weights as a column, or a pandas Series by path"
        )
    return labels


def column_numbers(split: Split, name: str, chosen: npt.NDArray[np.bool_] | None) -> npt.NDArray[Any] | None:
    """Return the numbers in a column, one per sample; None if the dataset has no such column.

    Raises:
        ConfigError: The values are not numbers, or samples lack one; with `chosen`, samples that it selects.
    """
    if (kind := split.columns.kinds.get(name)) is None:
        return None
    if kind not in NUMBERS:
        raise ConfigError(f"column {name!r} has values of type {kind}; choosing samples needs a column of numbers")
    values, present = split.column(name)
    if missing := int(np.sum(~present if chosen is None else chosen & ~present[: len(chosen)])):
        message = f"column {name!r}: {plural(missing, 'sample')} of split {split.name!r} have no value"
        remedy = f"or leave them out with Weighted(..., where={f'{name} is not null'!r})"
        raise ConfigError(f"{message}; add values for all with `shardflow columns add --replace`, {remedy}")
    return values


def load_numbers(split: Split, path: str | os.PathLike[str]) -> npt.NDArray[Any]:
    """Return the numbers in a `.npy`, memory-mapped; ConfigError if it is missing or not a `.npy` of numbers.

    A pandas Series in place of the path has numbers by the paths of the samples.
    """
    if is_series(path):
        return np.array(in_split_order(split, "the sampler's argument", path))
    try:
        values: npt.NDArray[Any] = np.load(os.path.expanduser(path), mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise ConfigError(
            f"{os.fspath(path)!r} is neither a column nor a file, nor 'balanced' or 'sqrt' of Weighted"
            f"{split.json_remedy(os.fspath(path))}"
        ) from None
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(f"{os.fspath(path)!r} is not a .npy file of numbers: {error}") from error
    return values
