"""Split: hold training samples out for validation, once or fold by fold, in datasets over the same tars."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardflow._validation import check_integer, check_share
from shardflow._wording import plural
from shardflow.errors import ConfigError
from shardflow.formats.shard import Shard
from shardflow.order import keyed_rng
from shardflow.storage.urls import url_text

from .class_labels import read_labels
from .open_dataset import Dataset, open_dataset
from .sample_groups import I64, Group, sample_groups
from .selection import Mask, sample_hashes, select_lowest, selected_contents
from .virtual_dataset import Contents, VirtualReport, build_virtual_dataset, find_virtual_dataset

logger = logging.getLogger(__name__)


def split(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    val: float = 0.1,
    group: Group = None,
    seed: int = 0,
    src_options: Mapping[str, Any] | None = None,
    dst_options: Mapping[str, Any] | None = None,
    progress: Callable[[Shard], None] | None = None,
) -> VirtualReport:
    """Make a dataset at `dst` in which a part of the split `train` of `src` is the split `val`. No tar is copied.

    Each class gives the same share, as nearly as whole groups of samples allow. Copies of one image are a group, also
    in different classes, and so are samples with the same value of `group`. Other splits are kept as they are.

    >>> shardflow.split("photos256", "photos256-held-out", val=0.1)      # doctest: +SKIP
    >>> shardflow.split("scans256", "scans256-held-out", val=0.1, group="patient")      # doctest: +SKIP

    Args:
        src: A dataset with a split `train` and no split `val`.
        dst: A directory or URL without a dataset; on this machine if `src` is.
        val: Share of the samples to hold out, above 0 and below 1.
        group: What must not be in both `train` and `val`, such as a patient, a place or a video: a field of the
            samples' `.json`, as packing makes one of each other column of a table, for which the tars are read; or a
            value for each training sample, in order. A sample without a value (None, NaN or "") is a group by itself.
        seed: Random seed; another seed holds out other samples.
        src_options, dst_options: Options of fsspec's file systems, where `src` or `dst` is a URL.
        progress: Called after each shard whose labels were read, and again after each whose groups were read.

    Returns:
        The fingerprint of the new dataset, and the numbers of its samples and shards. A warning tells of a group that
        is larger than `val` should be.

    Raises:
        NotFoundError: There is no dataset.
        ConfigError: An argument is wrong, a sample lacks the field `group`, `train` or `val` would be empty, or `dst`
            cannot name the tars.
        DatasetExistsError: `dst` holds a dataset.
        StoreError: `src` cannot be read, or `dst` cannot be written.
    """
    check_share("val", val)
    seed = check_integer("seed", seed)
    dataset = _open_without_val(src, src_options)
    samples = _read_samples(dataset, group, seed, progress)
    held_out = _stratified(samples, val, seed)
    most, wanted = int(np.bincount(samples.groups).max(initial=0)), round(len(held_out) * val)
    if not held_out.any() or held_out.all():
        message = f"val={val} of {plural(len(held_out), 'sample')} leaves train or val empty"
        if most > 1:
            message += f", as the largest group has {most:,} samples"
        raise ConfigError(f"{message}; choose another share")
    if most > wanted:
        _warn_of_group(samples, most, f"{wanted:,} of val={val}: val has {held_out.sum():,}")
    contents = _with_val(dataset, held_out, f"val {val}, seed {seed}{_grouped(group)}")
    return build_virtual_dataset(dst, contents, storage_options=dst_options)


def split_folds(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    folds: int = 5,
    group: Group = None,
    seed: int = 0,
    src_options: Mapping[str, Any] | None = None,
    dst_options: Mapping[str, Any] | None = None,
    progress: Callable[[Shard], None] | None = None,
) -> tuple[VirtualReport, ...]:
    """Make the datasets of a k-fold cross-validation: `dst/fold0`, `dst/fold1`, …. No tar is copied.

    Each training sample of `src` is in the split `val` of exactly one of them, and in `train` of all others. The folds
    have the same number of samples, and of samples of each class, to one, or as nearly as whole groups allow: see
    `split`. Other splits are kept as they are. The same call, made again after it was stopped, goes on.

    >>> shardflow.split_folds("photos256", "photos256-folds", folds=5)      # doctest: +SKIP

    Args:
        src, group, seed, src_options, dst_options, progress: As for `split`.
        dst: A directory or URL; on this machine if `src` is.
        folds: Number of folds, 2 or more.

    Returns:
        A report for each fold. A warning tells of a group that is larger than a fold should be.

    Raises:
        NotFoundError, ConfigError, StoreError: As for `split`.
        DatasetExistsError: A fold holds another dataset than this call makes. None is written then.
    """
    folds, seed = check_integer("folds", folds, 2), check_integer("seed", seed)
    dataset = _open_without_val(src, src_options)
    samples = _read_samples(dataset, group, seed, progress)
    sizes = np.bincount(samples.groups)
    if len(sizes) < folds:
        count = plural(len(samples.groups), "training sample")
        if len(sizes) < len(samples.groups):
            count += f" in {plural(len(sizes), 'group')}"
        raise ConfigError(f"{count} cannot be split into {folds} folds")
    fold_of = _folds(samples, folds)
    if (most := int(sizes.max())) > (wanted := -(-len(fold_of) // folds)):
        _warn_of_group(samples, most, f"{wanted:,} of an even fold: the largest has {np.bincount(fold_of).max():,}")
    places = [f"{url_text(dst).rstrip('/')}/fold{fold}" for fold in range(folds)]
    made_by = f"of {folds}, seed {seed}{_grouped(group)}"

    def contents(fold: int) -> Contents:
        return _with_val(dataset, fold_of == fold, f"fold {fold} {made_by}")

    found = [find_virtual_dataset(place, contents(n), storage_options=dst_options) for n, place in enumerate(places)]
    return tuple(
        there or build_virtual_dataset(place, contents(fold), storage_options=dst_options)
        for fold, (place, there) in enumerate(zip(places, found, strict=True))
    )


class _Samples(NamedTuple):
    """What decides about the training samples: arrays of one length."""

    classes: I64  # the lowest of several, -1 for none
    hashes: keyed_rng.U64  # random numbers, equal for copies of one image
    groups: I64  # numbers from 0


def _read_samples(dataset: Dataset, group: Group, seed: int, progress: Callable[[Shard], None] | None) -> _Samples:
    hashes = sample_hashes(dataset, "train", keyed_rng.key(seed, "split"))  # other ones than `subset` with this seed
    classes = _first_classes(dataset, progress)
    return _Samples(classes, hashes, sample_groups(dataset["train"], hashes, group, progress))


def _grouped(group: Group) -> str:
    if group is None:
        return ""
    return f", by {group}" if isinstance(group, str) else ", by groups"


def _warn_of_group(samples: _Samples, size: int, wanted: str) -> None:
    number = int(np.argmax(np.bincount(samples.groups)[samples.groups] == size))
    logger.warning("the group of training sample %d has %s, more than the %s", number, plural(size, "sample"), wanted)


def _open_without_val(src: str | os.PathLike[str], src_options: Mapping[str, Any] | None) -> Dataset:
    dataset = open_dataset(src, storage_options=src_options)
    if "val" in dataset:
        message = f"{dataset.url} already has a split val, with {plural(len(dataset['val']), 'sample')}"
        raise ConfigError(f"{message}; use that, or split a dataset of the training part alone")
    return dataset


def _with_val(dataset: Dataset, held_out: Mask, made_by: str) -> Contents:
    """Return the contents of the dataset whose split `val` has the training samples that are held out."""
    others = {name: (name, np.ones(len(dataset[name]), dtype=np.bool_)) for name in dataset if name != "train"}
    selection = {"train": ("train", ~held_out), "val": ("train", held_out), **others}
    return selected_contents(dataset, selection, f"split of {dataset.fingerprint}: {made_by}")


def _first_classes(dataset: Dataset, progress: Callable[[Shard], None] | None) -> I64:
    """Return the class of each training sample: the lowest of several, -1 if it has none."""
    train = dataset["train"]
    if dataset.classes is None:
        return np.full(len(train), -1, dtype=np.int64)
    labels = read_labels(train, len(dataset.classes), progress)
    return np.fromiter((min(each, default=-1) for each in labels), dtype=np.int64)


def _stratified(samples: _Samples, share: float, seed: int) -> Mask:
    """Return which samples are held out: the share of each class, and of all samples (largest remainders)."""
    part_of = _deal_groups(samples, np.array([share, 1 - share]))
    names, columns, sizes = np.unique(samples.classes, return_inverse=True, return_counts=True)
    exact = sizes * share
    counts = np.floor(exact).astype(np.int64)
    missing = round(len(part_of) * share) - int(counts.sum())
    tie_breaks = keyed_rng.fold_array(keyed_rng.key(seed, "remainders"), names)
    counts[np.lexsort((tie_breaks, counts - exact))[:missing]] += 1
    counts -= np.bincount(columns[part_of == 0], minlength=len(names))
    held_out: Mask = part_of == 0
    for name, count in zip(names.tolist(), counts.tolist(), strict=True):
        held_out |= select_lowest((samples.classes == name) & (part_of < 0), samples.hashes, max(0, count))
    return held_out


def _folds(samples: _Samples, folds: int) -> I64:
    """Return the fold of each sample: larger groups are dealt first, and the others are stretches of each class."""
    fold_of = _deal_groups(samples, np.full(folds, 1 / folds))
    names, columns = np.unique(samples.classes, return_inverse=True)
    dealt = fold_of >= 0
    have = np.zeros((len(names), folds), dtype=np.int64)
    np.add.at(have, (columns[dealt], fold_of[dealt]), 1)
    totals = have.sum(axis=0)
    order = np.lexsort((samples.hashes, columns))
    order = order[~dealt[order]]
    ends = np.cumsum(np.bincount(columns[order], minlength=len(names)))
    begins = np.concatenate([[0], ends[:-1]])
    # In random order, because the samples that classes have beyond an even share are dealt in turn.
    for column in np.argsort(_lowest(samples.hashes, columns, len(names)), kind="stable").tolist():
        begin, end = begins[column], ends[column]
        counts = _levelled(have[column], totals, int(end - begin))
        totals += counts
        fold_of[order[begin:end]] = np.repeat(np.arange(folds), counts)
    return fold_of


def _lowest(hashes: keyed_rng.U64, numbers: I64, count: int) -> keyed_rng.U64:
    """Return the lowest hash of each class or group, which are numbered from 0."""
    lowest = np.full(count, np.iinfo(np.uint64).max, dtype=np.uint64)
    np.minimum.at(lowest, numbers, hashes)
    return lowest


def _levelled(have: I64, totals: I64, count: int) -> I64:
    """Return how many of `count` samples each fold gets, so that folds, which have some, end as even as can be."""
    order = np.lexsort((totals, have))
    levels = have[order]
    missing = levels * np.arange(1, len(have) + 1) - np.cumsum(
        levels
    )  # until the first folds have the next one's level
    filled = int(np.searchsorted(missing, count, side="right"))
    order, levels = order[:filled], levels[:filled]
    each, rest = divmod(count - int(missing[filled - 1]), filled)
    counts = np.zeros_like(have)
    counts[order] = levels[-1] - levels + each
    counts[order[np.argsort((totals + counts)[order], kind="stable")[:rest]]] += 1
    return counts


def _deal_groups(samples: _Samples, shares: npt.NDArray[np.float64]) -> I64:
    """Return the part of each sample whose group has others, -1 for those that are alone.

    Groups are dealt from the largest power of two downwards, in random order within one, each to the part that lacks
    most of its classes and of all samples. So each part gets large and small groups by its share.
    """
    part_of = np.full(len(samples.groups), -1, dtype=np.int64)
    sizes = np.bincount(samples.groups)
    large = np.flatnonzero(sizes > 1)
    if not len(large):
        return part_of
    random = _lowest(samples.hashes, samples.groups, len(sizes))
    _, magnitudes = np.frexp(sizes[large])
    names, columns = np.unique(samples.classes, return_inverse=True)
    pairs, counts = np.unique(samples.groups * len(names) + columns, return_counts=True)
    begins = np.searchsorted(pairs, np.arange(len(sizes) + 1) * len(names)).tolist()
    seen, have = np.zeros(len(names) + 1), np.zeros((len(shares), len(names) + 1))
    parts = np.full(len(sizes), -1, dtype=np.int64)
    for group in large[np.lexsort((random[large], -magnitudes))].tolist():
        here = slice(begins[group], begins[group + 1])
        its = np.append(pairs[here] % len(names), len(names))  # its classes, and the column of all samples
        added = np.append(counts[here], sizes[group])
        seen[its] += added
        parts[group] = part = int(np.argmax((shares[:, None] * seen[its] - have[:, its]) @ added))
        have[part, its] += added
    part_of[:] = parts[samples.groups]
    return part_of
