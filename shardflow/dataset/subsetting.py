"""Subset: a selection of a dataset's samples, as a dataset over the same tars."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from shardflow._validation import check_integer, check_share, did_you_mean
from shardflow._wording import first_few, plural
from shardflow.errors import ConfigError
from shardflow.formats.shard import OnShard

from .class_labels import read_labels
from .open_dataset import Dataset, open_dataset
from .sample_table import refuse_other_name, select
from .selection import Mask, sample_hashes, select_lowest, selected_contents, shard_keys
from .virtual_dataset import VirtualReport, build_virtual_dataset

_SHOWN_NAMES = 3
_CHECKED = 5  # keys; one alone could be that of its file by chance


def subset(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    classes: Collection[str] | None = None,
    keys: Collection[str] | None = None,
    where: str | None = None,
    fraction: float | None = None,
    limit: int | None = None,
    seed: int = 0,
    src_options: Mapping[str, Any] | None = None,
    dst_options: Mapping[str, Any] | None = None,
    progress: OnShard = None,
) -> VirtualReport:
    """Make a dataset at `dst` of selected samples of the dataset at `src`. No tar is copied.

    The conditions are applied to each split, in the order of the arguments. Classes keep their numbers, which are
    inside the tars.

    >>> shardflow.subset("photos256", "cats256", classes=["cat", "kitten"])
    >>> shardflow.subset("photos256", "good256", where="score > 0.5 and width > height")
    >>> shardflow.subset("s3://bucket/photos256", "tenth256", fraction=0.1)

    Args:
        src: A dataset; of a subset, the new one refers directly to the tars.
        dst: A directory or URL without a dataset; on this machine if `src` is.
        classes: Keep the samples of these classes.
        keys: Keep the samples with these keys; "train:000000042" if several splits have the key.
        where: A condition in SQL, such as "score > 0.5 and class in ('cat', 'dog')". It may name added columns, and
            split, shard, number, key, class, classes, width, height, bytes and source. Samples that lack a value for it
            are not kept. It is evaluated now: later changes of columns do not change the subset.
        fraction: Keep this random share, above 0 and below 1, rounded to whole samples. The same seed keeps the same
            samples, and a smaller share is part of a larger one.
        limit: Keep at most this many samples of each split, at random in the same way.
        seed: Random seed of `fraction` and `limit`.
        src_options, dst_options: Options of fsspec's file systems for `src` and `dst`, if these are URLs.
        progress: Called with each shard after its labels, keys or values were read.

    Returns:
        The fingerprint of the new dataset, and the numbers of its samples and shards.

    Raises:
        NotFoundError: The dataset does not exist.
        ConfigError: An argument is wrong, no sample is selected, or `dst` cannot name the tars.
        DatasetExistsError: `dst` is a dataset.
        StoreError: `src` cannot be read, or `dst` cannot be written.
    """
    if all(condition is None for condition in (classes, keys, where, fraction, limit)):
        raise ConfigError("a subset needs a condition: give classes, keys, where, fraction or limit")
    for name, names in (("classes", classes), ("keys", keys)):
        if isinstance(names, str):
            raise ConfigError(f"{name} must be a list of names, found {names!r}")
    if fraction is not None:
        check_share("fraction", fraction)
    if limit is not None:
        limit = check_integer("limit", limit, 1)
    seed = check_integer("seed", seed)
    dataset = open_dataset(src, storage_options=src_options)
    masks = {split: np.ones(len(dataset[split]), dtype=np.bool_) for split in dataset}
    if classes is not None:
        _keep_classes(dataset, masks, classes, progress)
    if keys is not None:
        for split, mask in find_keys(dataset, keys, progress).items():
            masks[split] &= mask
    if where is not None:
        for name, mask in masks.items():
            mask &= select(dataset[name], dataset.classes, where, progress)
    if fraction is not None or limit is not None:
        for split, mask in masks.items():
            count = int(mask.sum())
            if fraction is not None:
                count = round(count * fraction)
            masks[split] = select_lowest(mask, sample_hashes(dataset, split, seed), min(count, limit or count))
    summary = _summary(classes=classes, keys=keys, where=where, fraction=fraction, limit=limit, seed=seed or None)
    selection = {split: (split, mask) for split, mask in masks.items()}
    contents = selected_contents(dataset, selection, f"subset of {dataset.fingerprint}: {summary}")
    return build_virtual_dataset(dst, contents, storage_options=dst_options)


def _keep_classes(dataset: Dataset, masks: dict[str, Mask], classes: Collection[str], progress: OnShard) -> None:
    if dataset.classes is None:
        raise ConfigError(f"{dataset.url} has no classes to choose from")
    unknown = sorted(set(classes) - set(dataset.classes))
    if unknown:
        known = f"{plural(len(dataset.classes), 'class')}: {first_few(dataset.classes, _SHOWN_NAMES)}"
        meant = did_you_mean(unknown[0], dataset.classes)
        known += "; give names, not a file" * os.path.isfile(unknown[0])
        raise ConfigError(f"{dataset.url} has no class {unknown[0]!r}{meant}, but {known}")
    wanted = {dataset.classes.index(name) for name in classes}
    for name, split in dataset.items():
        labels = read_labels(split, len(dataset.classes), progress)
        masks[name] &= np.fromiter((not wanted.isdisjoint(each) for each in labels), dtype=np.bool_)


def find_keys(
    dataset: Dataset, keys: Collection[str], progress: OnShard = None, *, gone: Collection[str] = ()
) -> dict[str, Mask]:
    """Return which samples of each split have these keys; ConfigError for unknown keys that are not `gone`."""
    wanted, found = set(keys), dict[str, list[tuple[int, str, str]]]()  # key → places of its samples
    masks: dict[str, Mask] = {}
    for name, split in dataset.items():
        kept: list[bool] = []
        for number, shard in enumerate(split.shards):
            for key in shard_keys(split, number):
                matches = {key, f"{name}:{key}"} & wanted
                for match in matches:
                    found.setdefault(match, []).append((len(kept), name, shard.name))
                kept.append(bool(matches))
            if progress is not None:
                progress(shard)
        masks[name] = np.array(kept, dtype=np.bool_)
    if missing := sorted(wanted - found.keys() - set(gone)):
        shown = ", ".join(map(repr, missing[:_SHOWN_NAMES]))
        lacking = f"{dataset.url} lacks {len(missing)} of {plural(len(wanted), 'key')}, such as {shown}"
        are_numbers = all(key.rpartition(":")[2].isdecimal() for key in missing)
        raise ConfigError(lacking + "; `shardflow table` lists the key of each file" * (not are_numbers))
    for bare in [key for key in found if ":" not in key][:_CHECKED]:
        number, name, _ = found[bare][0]
        refuse_other_name(dataset[name], number, bare)
    if several := sorted(key for key, places in found.items() if len(places) > 1):
        key, places = several[0], found[several[0]]
        named = [f"number {number} of {split} in {dataset.storage.url(tar)}" for number, split, tar in places]
        message = f"{dataset.url} has {len(named)} samples {key!r} ({first_few(named, _SHOWN_NAMES)})"
        number, name, _ = places[0]
        is_enough = len({split for _, split, _ in places}) == len(places)
        remedy = (
            f"its split, as in '{name}:{key}'" if is_enough else f"where=\"split = '{name}' and number = {number}\""
        )
        raise ConfigError(f"{message}; name {remedy}")
    return masks


def _summary(**conditions: Any) -> str:
    return ", ".join(
        f"{name} {value if isinstance(value, float | int | str) else f'{len(value)} given'}"
        for name, value in conditions.items()
        if value is not None
    )
