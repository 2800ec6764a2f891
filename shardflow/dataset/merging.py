"""Merge: several datasets as one dataset over the same tars."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shardflow.errors import ConfigError
from shardflow.formats.annotations import Annotations
from shardflow.formats.shard_index import Index

from .dataset import Dataset, Split, open_dataset
from .virtual_dataset import SelectedRows, TarLocation, VirtualReport, build_virtual_dataset, tar_locations


def merge(
    srcs: Sequence[str | os.PathLike[str]],
    dst: str | os.PathLike[str],
    *,
    src_options: Mapping[str, Any] | None = None,
    dst_options: Mapping[str, Any] | None = None,
) -> VirtualReport:
    """Make a dataset at `dst` of all samples of several datasets, split by split. No tar is copied.

    A sample that several of them have, because they are subsets of one dataset, comes once. Labels are numbers inside
    the tars, so these numbers must mean the same in all datasets: one list of classes, or lists that begin alike.

    >>> shardflow.merge(["photos256", "sketches256"], "both256")      # doctest: +SKIP

    Args:
        srcs: Two or more datasets.
        dst: A directory or URL without a dataset; on this machine if a source is.
        src_options, dst_options: Options of fsspec's file systems, where sources or `dst` are URLs.

    Returns:
        The fingerprint of the new dataset, and the numbers of its samples and shards.

    Raises:
        NotFoundError: There is no dataset.
        ConfigError: Fewer than two datasets, classes or annotations that do not fit together, or `dst` cannot name the
            tars.
        DatasetExistsError: `dst` holds a dataset.
        StoreError: A source cannot be read, or `dst` cannot be written.
    """
    if len(srcs) < 2:
        raise ConfigError(f"a merge takes two or more datasets, found {len(srcs)}")
    datasets = [open_dataset(src, storage_options=src_options) for src in srcs]
    recipes = [dict(dataset.recipe) for dataset in datasets]
    splits = list(dict.fromkeys(split for dataset in datasets for split in dataset))
    return build_virtual_dataset(
        dst,
        (rows for split in splits for rows in _merged_shards(datasets, split)),
        splits=splits,
        classes=_common_classes(datasets),
        recipe=recipes[0] if all(recipe == recipes[0] for recipe in recipes) else {},
        annotations=_common_annotations(datasets),
        made_by="merge of " + ", ".join(dataset.fingerprint for dataset in datasets),
        storage_options=dst_options,
    )


def _common_classes(datasets: Sequence[Dataset]) -> tuple[str, ...] | None:
    """Return the longest list of classes, of which all others must be the beginning."""
    longest = max(datasets, key=lambda dataset: len(dataset.classes or ()))
    names = longest.classes
    for dataset in datasets:
        if (dataset.classes is None) != (names is None):
            without = dataset if dataset.classes is None else longest
            raise ConfigError(f"{without.url} has no labels, and others have; merge datasets with and without apart")
        if dataset.classes is not None and names is not None and dataset.classes != names[: len(dataset.classes)]:
            number = next(number for number, name in enumerate(dataset.classes) if name != names[number])
            raise ConfigError(
                f"class {number} is {dataset.classes[number]!r} in {dataset.url} and {names[number]!r} in "
                f"{longest.url}, and these numbers are inside the tars. To give all the same numbers, write a FILE "
                "with all class names, one a line, run "
                f"`shardflow pack {dataset.url} NEW --preset original --classes FILE` for each dataset, which copies "
                "the images as they are, and merge the new datasets"
            )
    return names


def _common_annotations(datasets: Sequence[Dataset]) -> Annotations:
    first = datasets[0]
    for dataset in datasets:
        if (found := dataset.manifest.annotations) != first.manifest.annotations:
            ours, theirs = (str(each.describe() or "nothing") for each in (first.manifest.annotations, found))
            message = f"{first.url} declares {ours} of its parts, {dataset.url} declares {theirs}"
            raise ConfigError(f"{message}; their samples do not fit together: pack them alike, or load them with a Mix")
    return first.manifest.annotations


def _merged_shards(datasets: Sequence[Dataset], split: str) -> Iterator[SelectedRows]:
    """Yield the shards of a split: each tar once, with all records that any of the datasets has of it."""
    found: dict[str, list[tuple[TarLocation, Split, int]]] = {}
    for dataset in datasets:
        if split in dataset:
            for number, tar in enumerate(tar_locations(dataset, split)):
                found.setdefault(tar.sha256, []).append((tar, dataset[split], number))
    for places in found.values():
        indexes = [source.reader.index(number) for _, source, number in places]
        yield SelectedRows(split, places[0][0], _union(indexes))


def _union(indexes: Sequence[Index]) -> Index:
    """Return the records of all indexes of one tar, each once, in the order of the tar."""
    rows = np.concatenate(list(indexes))
    # A record has another number in each index, but the offset of its first member is the same.
    begins = np.concatenate([index["offset"][np.searchsorted(index["record"], index["record"])] for index in indexes])
    _, unique = np.unique(rows["offset"], return_index=True)
    rows, begins = rows[unique], begins[unique]
    rows["record"] = np.unique(begins, return_inverse=True)[1]
    return rows
