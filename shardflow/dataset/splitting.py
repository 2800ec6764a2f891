"""Split: datasets over the same tars that hold out training samples, once or fold by fold."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardflow._validation import check_integer, check_share, explain_unknown_arguments
from shardflow._wording import first_few, plural
from shardflow.errors import ConfigError, FormatError, IntegrityError, NotFoundError
from shardflow.formats.shard import OnShard
from shardflow.order import keyed_rng
from shardflow.storage.urls import url_text

from .class_labels import read_labels
from .image_copies import source_of
from .open_dataset import Dataset, open_dataset
from .sample_groups import I64, ByPath, Group, sample_folds, sample_groups
from .selection import Mask, sample_hashes, select_lowest, selected_contents
from .virtual_dataset import Contents, VirtualReport, build_virtual_dataset, find_virtual_dataset

logger = logging.getLogger(__name__)

_SHOWN_CLASSES = 10
_OF_SKLEARN = {
    "groups": "use group=",
    "n_splits": "use folds=",
    "random_state": "use seed=",
    "stratify": "classes always keep their shares",
    "test_size": "use test= or val=",
}
_GROUPED = re.compile(r"^split of .*, by (.+?)(?:, keeping sha256:\w+)?$")


@explain_unknown_arguments(_OF_SKLEARN)
def split(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    val: float | None = None,
    test: float | None = None,
    group: Group = None,
    keep: str | os.PathLike[str] | None = None,
    seed: int = 0,
    src_options: Mapping[str, Any] | None = None,
    dst_options: Mapping[str, Any] | None = None,
    progress: OnShard = None,
) -> VirtualReport:
    """Make a dataset at `dst` in which parts of the split `train` of `src` are `val`, `test` or both. No tar is copied.

    The same share of each class is held out, as nearly as whole groups of samples allow. Copies of an image form a
    group, also in different classes, as do samples with the same value of `group`. Other splits do not change.

    >>> shardflow.split("scans256", "scans256-held-out", val=0.1)
    >>> shardflow.split("scans256", "scans256-by-patient", val=0.1, test=0.1, group="patient")
    >>> shardflow.split("scans256", "scans256-extended", val=0.1, keep="scans256-held-out")

    Args:
        src: A dataset with a split `train`, and without the new splits.
        dst: A directory or URL without a dataset; on this machine if `src` is.
        val, test: Shares of the samples to hold out, above 0 and together below 1; by default `val=0.1`. With `keep`
            also 0, if all new samples are for training.
        group: Samples of one group, such as a patient, place or video, stay in one split. A field of the samples'
            `.json`, to which packing adds the other columns of a table (the tars are read for it); or a dict or pandas
            Series with the value of each path, or path without extension. Each sample whose value is None, NaN or "" is
            a separate group.
        keep: An earlier split of `src`, before samples were added: its images stay in their splits, as do images of
            the same groups, and the shares are those of the others. Images that are packed in another way are found by
            their sources. By default all samples are split again.
        seed: Random seed; another seed holds out other samples.
        src_options, dst_options: Options of fsspec's file systems for `src` (and `keep`) and `dst`, if these are URLs.
        progress: Called with each shard after its labels were read, and again after its groups were read.

    Returns:
        The fingerprint of the new dataset, and the numbers of its samples and shards. Warnings name a group that is
        larger than `val` or `test` should be, classes that a split lacks, and images of `keep` that `src` lacks.

    Raises:
        NotFoundError: The dataset does not exist.
        ConfigError: An argument is wrong, a sample lacks the field `group`, a split would be empty, `dst` cannot name
            the tars, or `keep` has none of the images, another split, one group in several splits, or groups while
            `group` is None.
        DatasetExistsError: `dst` is a dataset.
        StoreError: `src` cannot be read, or `dst` cannot be written.
    """
    shares = {name: share for name, share in (("val", val), ("test", test)) if share is not None} or {"val": 0.1}
    for name, share in shares.items():
        if keep is None or share != 0:
            check_share(name, share)
    if any(shares.values()):
        check_share(" + ".join(shares), sum(shares.values()))
    seed = check_integer("seed", seed)
    dataset = _open_without(shares, src, src_options)
    samples, has_several = _read_samples(dataset, group, seed, progress)
    earlier = None if keep is None else open_dataset(keep, storage_options=src_options)
    if earlier and group is None and (by := _GROUPED.search(earlier.manifest.tools.get("made by", ""))):
        raise ConfigError(f"{earlier.url} was split by {by[1]}; give the same group, with group= or --group")
    kept = _earlier_splits(samples, dataset, earlier, ["train", *shares], seed)
    total, most = int((kept < 0).sum()), int(np.bincount(samples.groups[kept < 0]).max(initial=0))
    given = ", ".join(f"{name}={share}" for name, share in shares.items())
    held_out, left = dict[str, Mask](), kept < 0
    for number, (name, share) in enumerate(shares.items(), 1):
        held_out[name] = kept == number
        rest = _Samples(samples.classes[left], samples.hashes[left], samples.groups[left])
        held_out[name][left] = _stratified(rest, min(1.0, share * total / max(1, left.sum())), seed)
        left &= ~held_out[name]
        if not (left.any() or (kept == 0).any()) or not held_out[name].any():
            message = f"{given} of {plural(total, 'sample')} leaves train or {name} empty"
            if most > 1:
                message += f", as the largest group has {most:,} samples"
            raise ConfigError(f"{message}; choose another share")
        if share and most > (wanted := round(total * share)):
            _warn_of_group(samples, most, f"{wanted:,} of {name}={share}: {name} has {held_out[name].sum():,}")
    shown = ", ".join(f"{name} {share}" for name, share in shares.items())
    keeping = "" if earlier is None else f", keeping {earlier.fingerprint}"
    contents = _with_splits(dataset, held_out, f"{shown}, seed {seed}{_grouped(group)}{keeping}")
    report = build_virtual_dataset(dst, contents, storage_options=dst_options)
    if has_several:
        return report
    return _with_classes(report, dataset, samples, {"train": left | (kept == 0), **held_out})


def _earlier_splits(
    samples: _Samples, dataset: Dataset, earlier: Dataset | None, names: Sequence[str], seed: int
) -> I64:
    """Return for each sample which of the splits `names` its group has in the earlier dataset, -1 for a new group."""
    found = np.full(len(samples.groups), -1, dtype=np.int64)
    if earlier is None:
        return found
    if other := [name for name in earlier if name not in dataset and name not in names]:
        remedy = f"split with `--{other[0]} SHARE` too" if other[0] == "test" else "give the split that was made of it"
        raise ConfigError(f"{earlier.url} has a split {other[0]}, which would become train; {remedy}")
    hashes = {name: _hashes(earlier, name, seed) for name in names if name in earlier}
    is_new = ~np.isin(samples.hashes, np.concatenate([*hashes.values()]))
    for number, name in enumerate(names):
        if name not in earlier:
            continue
        lacking = np.flatnonzero(~np.isin(hashes[name], samples.hashes))
        kept = np.isin(samples.hashes, hashes[name]) | _from_same_sources(dataset, is_new, earlier, name, lacking)
        groups = samples.groups[kept]
        if len(twice := groups[found[groups] >= 0]):
            sample, remedy = int(np.argmax(samples.groups == twice[0])), "give the groups with which it was split"
            what = f"the group of training sample {sample} is"
            if len({*samples.hashes[samples.groups == twice[0]].tolist()}) == 1:
                what, remedy = f"copies of training sample {sample} are", "remove all but one, or split by given folds"
            where = f"in the splits {names[found[twice[0]]]} and {name} of {earlier.url}"
            raise ConfigError(f"{what} {where}; {remedy}")
        found[groups] = number
    if (found < 0).all():
        raise ConfigError(f"none of the training images is in {earlier.url}: another dataset, or packed otherwise")
    return found[samples.groups]


def _from_same_sources(dataset: Dataset, is_new: Mask, earlier: Dataset, name: str, lacking: I64) -> Mask:
    """Return which new training samples were packed from the sources of the `lacking` samples of an earlier split.

    Warn of the lacking samples whose sources have no new sample, either.
    """
    kept, left = np.zeros(len(is_new), dtype=np.bool_), len(lacking)
    if left and is_new.any():
        try:
            sources, own = np.array(earlier[name].sources())[lacking], np.array(dataset["train"].sources())
        except NotFoundError:
            pass  # without receipts
        except (FormatError, IntegrityError) as error:
            message = f"{plural(left, 'image')} of split {name!r} in {earlier.url} cannot be found by path: {error}"
            remedy = "pack it there again as before, and the new one at another place"
            raise ConfigError(f"{message}. If the dataset was packed again in its place, {remedy}") from error
        else:
            kept = is_new & np.isin(own, sources)
            left -= int(np.isin(sources, own[kept]).sum())
    if left:
        message = "%s of split %r in %s are not in %s: removed, or packed otherwise and perhaps in another split"
        logger.warning(message, plural(left, "image"), name, earlier.url, dataset.url)
    return kept


@explain_unknown_arguments(_OF_SKLEARN)
def split_folds(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    folds: int | str | ByPath = 5,
    group: Group = None,
    seed: int = 0,
    src_options: Mapping[str, Any] | None = None,
    dst_options: Mapping[str, Any] | None = None,
    progress: OnShard = None,
) -> dict[str, VirtualReport]:
    """Make the datasets of a k-fold cross-validation: `dst/fold0`, `dst/fold1`, …. No tar is copied.

    Each training sample of `src` is in the split `val` of exactly one dataset, and in `train` of all others; with given
    folds, one of fold -1 is in all `train`, as for scikit-learn's PredefinedSplit. The numbers of samples in the folds,
    in total and per class, differ by one at most, or as little as whole groups allow, see `split`. Other splits do not
    change. After an interruption, the same call continues.

    Existing folds come from a field, such as the column `fold` of a packed table: fold 3 becomes `dst/fold3`.

    >>> shardflow.split_folds("scans256", "scans256-folds", folds=5)
    >>> shardflow.split_folds("scans256", "scans256-given", folds="fold")

    Args:
        src, group, seed, src_options, dst_options, progress: As for `split`.
        dst: A directory or URL; on this machine if `src` is.
        folds: Number of folds, 2 or more; or a field with the fold of each sample, or a dict or Series as for `group`;
            -1 is never held out. Existing folds stay; with `group`, a warning counts the samples whose groups they
            divide.

    Returns:
        Name below `dst`, such as "fold0" → report. Warnings name a group that is larger than a fold should be, classes
        that a split lacks, and copies of an image in several existing folds.

    Raises:
        NotFoundError, ConfigError, StoreError: As for `split`.
        DatasetExistsError: A fold's place has another dataset than this call makes. Then nothing is written.
    """
    seed = check_integer("seed", seed)
    dataset = _open_without(["val"], src, src_options)
    if not isinstance(folds, int | np.integer):
        names, fold_of = sample_folds(dataset["train"], folds, progress)
        samples, has_several = _read_samples(dataset, group, seed, progress)
        if len(names) < 2:
            raise ConfigError(f"all training samples are in fold {', '.join(names)}; a cross-validation needs two")
        if "-1" in names:
            never = names.index("-1")
            names.remove("-1")
            fold_of = np.where(fold_of == never, -1, fold_of - (fold_of > never))
        folds_of_groups = np.bincount(np.unique(np.stack([samples.groups, fold_of]), axis=1)[0])
        if len(torn := np.flatnonzero((folds_of_groups > 1)[samples.groups])):
            alike = np.flatnonzero(samples.groups == samples.groups[torn[0]])
            two = alike[np.unique(fold_of[alike], return_index=True)[1][:2]].tolist()  # in different folds
            counted, shared = plural(len(torn), "image"), "copies" if group is None else "their groups"
            shown = " and ".join(source_of([dataset["train"]], each) for each in two)
            message = "%s of split 'train' have %s in other existing folds, such as %s; folds=%d or `--folds %d` would "
            logger.warning(f"{message}keep them together", counted, shared, shown, len(names), len(names))
        made_by = f"of {len(names)} given{f', from {folds}' if isinstance(folds, str) else ''}"
    else:
        folds = check_integer("folds", folds, 2)
        samples, has_several = _read_samples(dataset, group, seed, progress)
        names, fold_of = [str(fold) for fold in range(folds)], _even_folds(samples, folds)
        made_by = f"of {folds}, seed {seed}{_grouped(group)}"
    places = [f"{url_text(dst).rstrip('/')}/fold{name}" for name in names]

    def contents(fold: int) -> Contents:
        return _with_splits(dataset, {"val": fold_of == fold}, f"fold {names[fold]} {made_by}")

    found = [find_virtual_dataset(place, contents(n), storage_options=dst_options) for n, place in enumerate(places)]
    reports = {}
    for fold, (name, place) in enumerate(zip(names, places, strict=True)):
        report = found[fold] or build_virtual_dataset(place, contents(fold), storage_options=dst_options)
        if not has_several:
            parts = {"train": fold_of != fold, "val": fold_of == fold}
            report = _with_classes(report, dataset, samples, parts, f"fold{name}: ")
        reports[f"fold{name}"] = report
    return reports


def _even_folds(samples: _Samples, folds: int) -> I64:
    """Return the fold of each sample, and warn of a group that is larger than a fold."""
    sizes = np.bincount(samples.groups)
    if len(sizes) < folds:
        count = plural(len(samples.groups), "training sample")
        if len(sizes) < len(samples.groups):
            count += f" in {plural(len(sizes), 'group')}"
        raise ConfigError(f"{count} cannot be split into {folds} folds; choose fewer")
    fold_of = _folds(samples, folds)
    if (most := int(sizes.max())) > (wanted := -(-len(fold_of) // folds)):
        _warn_of_group(samples, most, f"{wanted:,} of an even fold: the largest has {np.bincount(fold_of).max():,}")
    return fold_of


def _with_classes(
    report: VirtualReport, dataset: Dataset, samples: _Samples, parts: Mapping[str, Mask], where: str = ""
) -> VirtualReport:
    """Return a report with the class counts of these parts of `train`; warn of classes that a part lacks."""
    names = dataset.classes or ()
    counts = {
        split: np.bincount(samples.classes[part & (samples.classes >= 0)], minlength=len(names))
        for split, part in parts.items()
    }
    totals = np.sum([*counts.values()], axis=0)
    for split, found in counts.items():
        if lacking := [names[label] for label in np.flatnonzero((totals > 0) & (found == 0)).tolist()]:
            number = f"{len(lacking):,} of {len(names):,} classes"
            logger.warning("%s%s has no sample of %s: %s", where, split, number, first_few(lacking, _SHOWN_CLASSES))
    classes = {split: dict(zip(names, found.tolist(), strict=True)) for split, found in counts.items()}
    return replace(report, classes=classes)


class _Samples(NamedTuple):
    """The properties of the training samples by which they are split, arrays of one length."""

    classes: I64  # the lowest class of several, -1 for none
    hashes: keyed_rng.U64  # random numbers, equal for copies of an image
    groups: I64  # numbers from 0


def _read_samples(dataset: Dataset, group: Group, seed: int, progress: OnShard) -> tuple[_Samples, bool]:
    """Return the training samples, and whether any of them has several classes."""
    hashes = _hashes(dataset, "train", seed)
    classes, has_several = _first_classes(dataset, progress)
    return _Samples(classes, hashes, sample_groups(dataset["train"], hashes, group, progress)), has_several


def _hashes(dataset: Dataset, split: str, seed: int) -> keyed_rng.U64:
    return sample_hashes(dataset, split, keyed_rng.key(seed, "split"))  # independent of `subset` with this seed


def _grouped(group: Group) -> str:
    if group is None:
        return ""
    return f", by {group}" if isinstance(group, str) else ", by groups"


def _warn_of_group(samples: _Samples, size: int, wanted: str) -> None:
    number = int(np.argmax(np.bincount(samples.groups)[samples.groups] == size))
    logger.warning("the group of training sample %d has %s, more than the %s", number, plural(size, "sample"), wanted)


def _open_without(
    splits: Collection[str], src: str | os.PathLike[str], src_options: Mapping[str, Any] | None
) -> Dataset:
    dataset = open_dataset(src, storage_options=src_options)
    for split in splits:
        if split in dataset:
            message = f"{dataset.url} already has a split {split}, with {plural(len(dataset[split]), 'sample')}"
            other = "; `--test 0.1` makes a split test" if split == "val" and "test" not in dataset else ""
            raise ConfigError(f"{message}; use it, or split a dataset with only the training part{other}")
    return dataset


def _with_splits(dataset: Dataset, parts: Mapping[str, Mask], made_by: str) -> Contents:
    """Return the contents of the dataset with these parts of `train` as splits, and the rest as `train`."""
    selection = {name: (name, np.ones(len(dataset[name]), dtype=np.bool_)) for name in dataset}
    left = ~np.logical_or.reduce([*parts.values()])
    selection |= {"train": ("train", left), **{name: ("train", mask) for name, mask in parts.items()}}
    return selected_contents(dataset, selection, f"split of {dataset.fingerprint}: {made_by}")


def _first_classes(dataset: Dataset, progress: OnShard) -> tuple[I64, bool]:
    """Return the lowest class of each training sample, -1 for none, and whether any has several."""
    train = dataset["train"]
    if dataset.classes is None:
        return np.full(len(train), -1, dtype=np.int64), False
    labels = read_labels(train, len(dataset.classes), progress)
    has_several, found = False, np.empty(len(train), dtype=np.int64)
    for number, each in enumerate(labels):
        found[number] = min(each, default=-1)
        has_several |= len(each) > 1
    return found, has_several


def _stratified(samples: _Samples, share: float, seed: int) -> Mask:
    """Return which samples are held out: this share of each class and of all samples, by largest remainders."""
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
    """Return the fold of each sample: groups are dealt first, then single samples class by class."""
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
    # Classes in random order, because their samples beyond an even share are dealt in turn.
    for column in np.argsort(_lowest(samples.hashes, columns, len(names)), kind="stable").tolist():
        begin, end = begins[column], ends[column]
        counts = _levelled(have[column], totals, int(end - begin))
        totals += counts
        fold_of[order[begin:end]] = np.repeat(np.arange(folds), counts)
    return fold_of


def _lowest(hashes: keyed_rng.U64, numbers: I64, count: int) -> keyed_rng.U64:
    """Return the lowest hash of each class or group, numbered from 0."""
    lowest = np.full(count, np.iinfo(np.uint64).max, dtype=np.uint64)
    np.minimum.at(lowest, numbers, hashes)
    return lowest


def _levelled(have: I64, totals: I64, count: int) -> I64:
    """Return how many of `count` samples each fold gets, so that the folds end up as even as possible."""
    order = np.lexsort((totals, have))
    levels = have[order]
    missing = levels * np.arange(1, len(have) + 1) - np.cumsum(levels)  # until the first have the next one's level
    filled = int(np.searchsorted(missing, count, side="right"))
    order, levels = order[:filled], levels[:filled]
    each, rest = divmod(count - int(missing[filled - 1]), filled)
    counts = np.zeros_like(have)
    counts[order] = levels[-1] - levels + each
    counts[order[np.argsort((totals + counts)[order], kind="stable")[:rest]]] += 1
    return counts


def _deal_groups(samples: _Samples, shares: npt.NDArray[np.float64]) -> I64:
    """Return the part of each sample in a group of several, -1 for single samples.

    Groups are dealt by descending power of two of their size, in random order within a power. Each goes to the part
    that lacks most of its classes and of all samples, so each part gets large and small groups by its share.
    """
    sizes = np.bincount(samples.groups)
    parts = np.full(len(sizes), -1, dtype=np.int64)
    large = np.flatnonzero(sizes > 1)
    if not len(large):
        return parts[samples.groups]
    random = _lowest(samples.hashes, samples.groups, len(sizes))
    _, magnitudes = np.frexp(sizes[large])
    names, columns = np.unique(samples.classes, return_inverse=True)
    pairs, counts = np.unique(samples.groups * len(names) + columns, return_counts=True)
    begins = np.searchsorted(pairs, np.arange(len(sizes) + 1) * len(names)).tolist()
    seen, have = np.zeros(len(names) + 1), np.zeros((len(shares), len(names) + 1))
    for group in large[np.lexsort((random[large], -magnitudes))].tolist():
        here = slice(begins[group], begins[group + 1])
        its = np.append(pairs[here] % len(names), len(names))  # its classes, and the column of all samples
        added = np.append(counts[here], sizes[group])
        seen[its] += added
        parts[group] = part = int(np.argmax((shares[:, None] * seen[its] - have[:, its]) @ added))
        have[part, its] += added
    return parts[samples.groups]
