"""Split: hold a part of the training samples out for validation, in a dataset over the same tars."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow.errors import ConfigError
from shardflow.formats.manifest import Shard
from shardflow.order import keyed_rng

from .dataset import Dataset, open_dataset
from .selection import Mask, read_records, record_labels, sample_hashes, select_lowest, select_shards
from .virtual_dataset import VirtualReport, build_virtual_dataset


def split(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    val: float = 0.1,
    seed: int = 0,
    src_options: Mapping[str, Any] | None = None,
    dst_options: Mapping[str, Any] | None = None,
    progress: Callable[[Shard], None] | None = None,
) -> VirtualReport:
    """Make a dataset at `dst` in which a part of the split `train` of `src` is the split `val`. No tar is copied.

    Each class gives the same share, as nearly as whole samples allow, and copies of one image go the same way. Other
    splits are kept as they are.

    >>> shardflow.split("photos256", "photos256-held-out", val=0.1)      # doctest: +SKIP

    Args:
        src: A dataset with a split `train` and no split `val`.
        dst: A directory or URL without a dataset; on this machine if `src` is.
        val: Share of the samples to hold out, above 0 and below 1.
        seed: Random seed; another seed holds out other samples.
        src_options, dst_options: Options of fsspec's file systems, where `src` or `dst` is a URL.
        progress: Called after each shard whose labels were read.

    Returns:
        The fingerprint of the new dataset, and the numbers of its samples and shards.

    Raises:
        NotFoundError: There is no dataset.
        ConfigError: An argument is wrong, `train` or `val` would be empty, or `dst` cannot name the tars.
        DatasetExistsError: `dst` holds a dataset.
        StoreError: `src` cannot be read, or `dst` cannot be written.
    """
    if not 0 < val < 1:
        raise ConfigError(f"val must be above 0 and below 1, found {val}")
    dataset = open_dataset(src, storage_options=src_options)
    if "val" in dataset:
        raise ConfigError(f"{dataset.url} already has a split val, with {len(dataset['val'])} samples")
    hashes = sample_hashes(dataset, "train", seed)
    held_out = _stratified(_first_classes(dataset, progress), hashes, val, seed)
    if not held_out.any() or held_out.all():
        raise ConfigError(f"val={val} of {len(held_out)} samples leaves train or val empty; choose another share")
    others = {name: (name, np.ones(len(dataset[name]), dtype=np.bool_)) for name in dataset if name != "train"}
    return build_virtual_dataset(
        dst,
        select_shards(dataset, {"train": ("train", ~held_out), "val": ("train", held_out), **others}),
        splits=("train", "val", *others),
        classes=dataset.classes,
        recipe=dataset.recipe,
        made_by=f"split of {dataset.fingerprint}: val {val}, seed {seed}",
        storage_options=dst_options,
    )


def _first_classes(dataset: Dataset, progress: Callable[[Shard], None] | None) -> npt.NDArray[np.int64]:
    """Return the class of each training sample: the lowest of several, -1 if it has none."""
    train = dataset["train"]
    if dataset.classes is None:
        return np.full(len(train), -1, dtype=np.int64)
    labels = read_records(train, partial(record_labels, train), progress)
    return np.fromiter((min(each, default=-1) for each in labels), dtype=np.int64)


def _stratified(classes: npt.NDArray[np.int64], hashes: keyed_rng.U64, share: float, seed: int) -> Mask:
    """Return which samples are held out: the share of each class, and of all samples (largest remainders)."""
    names, sizes = np.unique(classes, return_counts=True)
    exact = sizes * share
    counts = np.floor(exact).astype(np.int64)
    missing = round(len(classes) * share) - int(counts.sum())
    tie_breaks = keyed_rng.fold_array(keyed_rng.key(seed, "remainders"), names)
    counts[np.lexsort((tie_breaks, counts - exact))[:missing]] += 1
    held_out = np.zeros(len(classes), dtype=np.bool_)
    for name, count in zip(names.tolist(), counts.tolist(), strict=True):
        held_out |= select_lowest(classes == name, hashes, count)
    return held_out
