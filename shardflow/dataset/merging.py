"""Merge: several datasets as one, over the same tars."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shardflow.errors import ConfigError
from shardflow.formats.shard_index import Index

from .builder import SelectedRows, TarLocation, VirtualReport, build_virtual_dataset, tar_locations
from .dataset import Dataset, Split, open_dataset


def merge(
    srcs: Sequence[str | os.PathLike[str]],
    dst: str | os.PathLike[str],
    *,
    src_options: Mapping[str, Any] | None = None,
    dst_options: Mapping[str, Any] | None = None,
) -> VirtualReport:
    """Make a dataset at `dst` of all samples of several others, split by split. No tar is copied.

    A sample that several of them have, because they are subsets of one dataset, is there once. Labels are numbers
    inside the tars, so all must mean the same classes by them: one list of classes, or lists of which each begins with
    the shorter ones.

    >>> shardflow.merge(["photos256", "sketches256"], "both256")      # doctest: +SKIP

    Args:
        srcs: Two or more datasets.
        dst: A directory or URL without a dataset; of datasets on this machine, on this machine too.
        src_options, dst_options: What fsspec's file systems take, where these are URLs.

    Raises:
        NotFoundError: There is no dataset.
        ConfigError: Fewer than two datasets, other classes, or `dst` cannot lead to the tars.
        DatasetExistsError: `dst` holds a dataset.
        StoreError: One of the ends failed.
    """
    if len(srcs) < 2:
        raise ConfigError(f"a merge takes two or more datasets, found {len(srcs)}")
    datasets = [open_dataset(src, storage_options=src_options) for src in srcs]
    recipes = [dict(dataset.recipe) for dataset in datasets]
    splits = list(dict.fromkeys(split for dataset in datasets for split in dataset))
    return build_virtual_dataset(
        dst,
        (chosen for split in splits for chosen in _together(datasets, split)),
        splits=splits,
        classes=_classes(datasets),
        recipe=recipes[0] if all(recipe == recipes[0] for recipe in recipes) else {},
        made_by="merge of " + ", ".join(dataset.fingerprint for dataset in datasets),
        storage_options=dst_options,
    )


def _classes(datasets: Sequence[Dataset]) -> tuple[str, ...] | None:
    longest = max(datasets, key=lambda dataset: len(dataset.classes or ()))
    names = longest.classes
    for dataset in datasets:
        theirs = dataset.classes
        if (theirs is None) != (names is None):
            without = dataset if theirs is None else longest
            raise ConfigError(f"{without.url} has no labels, and others have; only both kinds apart can be merged")
        if theirs is not None and names is not None and theirs != names[: len(theirs)]:
            number = next(number for number, name in enumerate(theirs) if name != names[number])
            raise ConfigError(
                f"class {number} is {theirs[number]!r} in {dataset.url} and {names[number]!r} in {longest.url}, and "
                "these numbers are inside the tars. Number them alike with a FILE of all class names, one a line: "
                f"`shardflow pack {dataset.url} NEW --preset original --classes FILE`, the same for each, which copies "
                "the images as they are; and merge the new ones"
            )
    return names


def _together(datasets: Sequence[Dataset], split: str) -> Iterator[SelectedRows]:
    """Yield the shards of a split: each tar once, with all records that any of the datasets has of it."""
    found: dict[str, list[tuple[TarLocation, Split, int]]] = {}
    for dataset in datasets:
        if split in dataset:
            for number, tar in enumerate(tar_locations(dataset, split)):
                found.setdefault(tar.sha256, []).append((tar, dataset[split], number))
    for places in found.values():
        yield SelectedRows(split, places[0][0], _united([its.reader.index(number) for _, its, number in places]))


def _united(indexes: Sequence[Index]) -> Index:
    """Return the records of all indexes of one tar, each once, in the order in which they lie there."""
    rows = np.concatenate(list(indexes))
    # A record is told by where its first member is, which its number is not.
    begins = np.concatenate([index["offset"][np.searchsorted(index["record"], index["record"])] for index in indexes])
    _, once = np.unique(rows["offset"], return_index=True)
    rows, begins = rows[once], begins[once]
    rows["record"] = np.unique(begins, return_inverse=True)[1]
    return rows
