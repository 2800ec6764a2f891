"""Split: the samples of a dataset parted into training and validation, as a dataset over the same tars."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow.errors import ConfigError
from shardflow.formats.manifest import Shard
from shardflow.order import keyed_rng

from .builder import VirtualReport, build_virtual_dataset
from .dataset import Dataset, open_dataset
from .label_scan import labels_of
from .selection import Records, lowest, sample_hashes, select_shards


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
    """Make a dataset at `dst` that holds a part of the train split at `src` out, as its split val. No tar is copied.

    Every class gives the same share, as nearly as whole samples allow, and copies of one image go the same way. Other
    splits are taken along as they are.

    >>> shardflow.split("photos256", "photos256-held-out", val=0.1)      # doctest: +SKIP

    Args:
        src: A dataset with a split train and none named val.
        dst: A directory or URL without a dataset; of a dataset on this machine, on this machine too.
        val: Share of the samples that is held out, above 0 and below 1.
        seed: Another one holds out others.
        src_options, dst_options: What fsspec's file systems take, where an end is a URL.
        progress: Called after each shard that is read, for its labels.

    Raises:
        NotFoundError: There is no dataset.
        ConfigError: An argument is wrong, one of the parts is empty, or `dst` cannot lead to the tars.
        DatasetExistsError: `dst` holds a dataset.
        StoreError: One of the ends failed.
    """
    if not 0 < val < 1:
        raise ConfigError(f"val is the share that is held out, above 0 and below 1, found {val}")
    dataset = open_dataset(src, storage_options=src_options)
    if "val" in dataset:
        raise ConfigError(f"{dataset.url} has a split val already, with {len(dataset['val'])} samples")
    drawn = sample_hashes(dataset, "train", seed)
    held_out = _stratified(_groups(dataset, progress), drawn, val, seed)
    if not held_out.any() or held_out.all():
        raise ConfigError(f"{val} of {len(held_out)} samples leaves one of train and val empty; choose another share")
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


def _groups(dataset: Dataset, progress: Callable[[Shard], None] | None) -> npt.NDArray[np.int64]:
    """Return the class of each training sample: the first of several, -1 without any."""
    train = dataset["train"]
    if dataset.classes is None:
        return np.full(len(train), -1, dtype=np.int64)
    groups: list[int] = []
    for number, shard in enumerate(train.shards):
        groups += [min(several, default=-1) for several in labels_of(train, number)]
        train.reader.unmap(number)
        if progress is not None:
            progress(shard)
    return np.array(groups, dtype=np.int64)


def _stratified(groups: npt.NDArray[np.int64], drawn: keyed_rng.U64, share: float, seed: int) -> Records:
    """Return which samples are held out: of each group its share, and of all together too (largest remainders)."""
    names, sizes = np.unique(groups, return_counts=True)
    exact = sizes * share
    counts = np.floor(exact).astype(np.int64)
    left = round(len(groups) * share) - int(counts.sum())
    among_equals = keyed_rng.fold_array(keyed_rng.key(seed, "remainders"), names)
    counts[np.lexsort((among_equals, counts - exact))[:left]] += 1
    held_out = np.zeros(len(groups), dtype=np.bool_)
    for name, count in zip(names.tolist(), counts.tolist(), strict=True):
        held_out |= lowest(groups == name, drawn, count)
    return held_out
