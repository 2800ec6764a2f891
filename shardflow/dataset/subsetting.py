"""Subset: some of the samples of a dataset, as a dataset of its own over the same tars."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from shardflow.errors import ConfigError
from shardflow.formats.manifest import Shard

from .builder import VirtualReport, build_virtual_dataset
from .dataset import Dataset, open_dataset
from .label_scan import keys_of, labels_of
from .selection import Records, lowest, sample_hashes, select_shards

_NAMED = 3


def subset(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    classes: Collection[str] | None = None,
    samples: Collection[str] | None = None,
    fraction: float | None = None,
    limit: int | None = None,
    seed: int = 0,
    src_options: Mapping[str, Any] | None = None,
    dst_options: Mapping[str, Any] | None = None,
    progress: Callable[[Shard], None] | None = None,
) -> VirtualReport:
    """Make a dataset at `dst` of some samples of the one at `src`. Its tars stay where they are, and are not copied.

    What is said is applied in the order of the arguments, to each split. The numbers of the classes stay what they are,
    because they are inside the tars.

    >>> shardflow.subset("photos256", "cats256", classes=["cat", "kitten"])      # doctest: +SKIP
    >>> shardflow.subset("s3://bucket/photos256", "tenth256", fraction=0.1)      # doctest: +SKIP

    Args:
        src: A dataset. A subset of a subset leads to the tars themselves.
        dst: A directory or URL without a dataset; of a dataset on this machine, on this machine too.
        classes: Take the samples of these classes, given by their names.
        samples: Take the samples with these keys; "train:000000042" where a key is in several splits.
        fraction: Take this share, above 0 and below 1, rounded to whole samples. The same seed takes the same ones, and
            smaller shares are parts of larger ones.
        limit: Take so many samples at most of each split, in the same way.
        seed: Of `fraction` and `limit`.
        src_options, dst_options: What fsspec's file systems take, where an end is a URL.
        progress: Called after each shard that is read, which is done for `classes` and `samples` alone.

    Raises:
        NotFoundError: There is no dataset.
        ConfigError: An argument is wrong, nothing is left, or `dst` cannot lead to the tars.
        DatasetExistsError: `dst` holds a dataset.
        StoreError: One of the ends failed.
    """
    if all(wanted is None for wanted in (classes, samples, fraction, limit)):
        raise ConfigError("say what to take: classes, samples, a fraction or a limit")
    if fraction is not None and not 0 < fraction < 1:
        raise ConfigError(f"fraction is above 0 and below 1, found {fraction}")
    if limit is not None and limit < 1:
        raise ConfigError(f"limit is 1 or more, found {limit}")
    dataset = open_dataset(src, storage_options=src_options)
    choice = {split: np.ones(len(dataset[split]), dtype=np.bool_) for split in dataset}
    if classes is not None:
        _keep_classes(dataset, choice, classes, progress)
    if samples is not None:
        _keep_samples(dataset, choice, samples, progress)
    if fraction is not None or limit is not None:
        for split, records in choice.items():
            count = int(records.sum())
            if fraction is not None:
                count = round(count * fraction)
            choice[split] = lowest(records, sample_hashes(dataset, split, seed), min(count, limit or count))
    said = {"classes": classes, "samples": samples, "fraction": fraction, "limit": limit, "seed": seed or None}
    return build_virtual_dataset(
        dst,
        select_shards(dataset, {split: (split, records) for split, records in choice.items()}),
        splits=dataset.splits,
        classes=dataset.classes,
        recipe=dataset.recipe,
        made_by=f"subset of {dataset.fingerprint}: {_spoken(said)}",
        storage_options=dst_options,
    )


def _keep_classes(
    dataset: Dataset,
    choice: dict[str, Records],
    classes: Collection[str],
    progress: Callable[[Shard], None] | None,
) -> None:
    if dataset.classes is None:
        raise ConfigError(f"{dataset.url} has no classes to choose from")
    strange = sorted(set(classes) - set(dataset.classes))
    if strange:
        known = ", ".join(dataset.classes[:_NAMED])
        raise ConfigError(f"{dataset.url} has no class {strange[0]!r}; its {len(dataset.classes)} begin with {known}")
    wanted = {dataset.classes.index(name) for name in classes}
    for name, split in dataset.items():
        kept: list[bool] = []
        for number, shard in enumerate(split.shards):
            kept += [not wanted.isdisjoint(several) for several in labels_of(split, number)]
            split.reader.unmap(number)
            if progress is not None:
                progress(shard)
        choice[name] &= np.array(kept, dtype=np.bool_)


def _keep_samples(
    dataset: Dataset,
    choice: dict[str, Records],
    samples: Collection[str],
    progress: Callable[[Shard], None] | None,
) -> None:
    wanted, found, twice = set(samples), set[str](), set[str]()
    for name, split in dataset.items():
        kept: list[bool] = []
        for number, shard in enumerate(split.shards):
            for key in keys_of(split, number):
                here = {key, f"{name}:{key}"} & wanted
                kept.append(bool(here))
                twice |= here & found
                found |= here
            split.reader.unmap(number)
            if progress is not None:
                progress(shard)
        choice[name] &= np.array(kept, dtype=np.bool_)
    if missing := sorted(wanted - found):
        named = ", ".join(map(repr, missing[:_NAMED]))
        raise ConfigError(f"{dataset.url} lacks {len(missing)} of the {len(wanted)} samples named, such as {named}")
    if twice:
        key = min(twice)
        raise ConfigError(f"{dataset.url} has more than one sample {key!r}; say of which split, as in 'train:{key}'")


def _spoken(said: Mapping[str, Any]) -> str:
    """Return what was asked for in a few words; of long lists, how long they are."""
    given = {name: value for name, value in said.items() if value is not None}
    texts = {name: value if isinstance(value, float | int) else f"{len(value)} given" for name, value in given.items()}
    return ", ".join(f"{name} {text}" for name, text in texts.items())
