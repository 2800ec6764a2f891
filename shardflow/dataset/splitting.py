"""Split: hold training samples out for validation, once or fold by fold, in datasets over the same tars."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow._validation import check_integer, check_share
from shardflow._wording import plural
from shardflow.errors import ConfigError
from shardflow.formats.shard import Shard
from shardflow.order import keyed_rng
from shardflow.storage.urls import url_text

from .class_labels import read_labels
from .dataset import Dataset, open_dataset
from .selection import Mask, sample_hashes, select_lowest, select_shards
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
    check_share("val", val)
    seed = check_integer("seed", seed)
    dataset = _open_without_val(src, src_options)
    hashes = sample_hashes(dataset, "train", seed)
    held_out = _stratified(_first_classes(dataset, progress), hashes, val, seed)
    if not held_out.any() or held_out.all():
        message = f"val={val} of {plural(len(held_out), 'sample')} leaves train or val empty"
        raise ConfigError(f"{message}; choose another share")
    return _hold_out(dataset, held_out, dst, made_by=f"val {val}, seed {seed}", dst_options=dst_options)


def split_folds(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    folds: int = 5,
    seed: int = 0,
    src_options: Mapping[str, Any] | None = None,
    dst_options: Mapping[str, Any] | None = None,
    progress: Callable[[Shard], None] | None = None,
) -> tuple[VirtualReport, ...]:
    """Make the datasets of a k-fold cross-validation: `dst/fold0`, `dst/fold1`, …. No tar is copied.

    Each training sample of `src` is in the split `val` of exactly one of them, and in `train` of all others. The folds
    have the same number of samples, and of samples of each class, to one; copies of one image are in the same fold,
    except at the very border. Other splits are kept as they are.

    >>> shardflow.split_folds("photos256", "photos256-folds", folds=5)      # doctest: +SKIP

    Args:
        src, seed, src_options, dst_options, progress: As for `split`.
        dst: A directory or URL; on this machine if `src` is.
        folds: Number of folds, 2 or more.

    Returns:
        A report for each fold.

    Raises:
        NotFoundError, ConfigError, DatasetExistsError, StoreError: As for `split`.
    """
    folds, seed = check_integer("folds", folds, 2), check_integer("seed", seed)
    dataset = _open_without_val(src, src_options)
    if len(dataset["train"]) < folds:
        raise ConfigError(f"{plural(len(dataset['train']), 'training sample')} cannot be split into {folds} folds")
    hashes = sample_hashes(dataset, "train", seed)
    fold_of = _folds(_first_classes(dataset, progress), hashes, folds)
    return tuple(
        _hold_out(
            dataset,
            fold_of == fold,
            f"{url_text(dst).rstrip('/')}/fold{fold}",
            made_by=f"fold {fold} of {folds}, seed {seed}",
            dst_options=dst_options,
        )
        for fold in range(folds)
    )


def _open_without_val(src: str | os.PathLike[str], src_options: Mapping[str, Any] | None) -> Dataset:
    dataset = open_dataset(src, storage_options=src_options)
    if "val" in dataset:
        message = f"{dataset.url} already has a split val, with {plural(len(dataset['val']), 'sample')}"
        raise ConfigError(f"{message}; use that, or split a dataset of the training part alone")
    return dataset


def _hold_out(
    dataset: Dataset,
    held_out: Mask,
    dst: str | os.PathLike[str],
    *,
    made_by: str,
    dst_options: Mapping[str, Any] | None,
) -> VirtualReport:
    """Write the dataset whose split `val` has the training samples that are held out."""
    others = {name: (name, np.ones(len(dataset[name]), dtype=np.bool_)) for name in dataset if name != "train"}
    return build_virtual_dataset(
        dst,
        select_shards(dataset, {"train": ("train", ~held_out), "val": ("train", held_out), **others}),
        splits=("train", "val", *others),
        classes=dataset.classes,
        recipe=dataset.recipe,
        annotations=dataset.manifest.annotations,
        made_by=f"split of {dataset.fingerprint}: {made_by}",
        storage_options=dst_options,
    )


def _first_classes(dataset: Dataset, progress: Callable[[Shard], None] | None) -> npt.NDArray[np.int64]:
    """Return the class of each training sample: the lowest of several, -1 if it has none."""
    train = dataset["train"]
    if dataset.classes is None:
        return np.full(len(train), -1, dtype=np.int64)
    labels = read_labels(train, len(dataset.classes), progress)
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


def _folds(classes: npt.NDArray[np.int64], hashes: keyed_rng.U64, folds: int) -> npt.NDArray[np.int64]:
    """Return the fold of each sample: each fold is a stretch of each class, in the order of the hashes."""
    order = np.lexsort((hashes, classes))
    dealt = np.arange(len(order)) % folds  # in turn over all classes, so that counts differ by one at most
    fold_of = np.empty(len(order), dtype=np.int64)
    fold_of[order] = dealt[np.lexsort((dealt, classes[order]))]
    return fold_of
