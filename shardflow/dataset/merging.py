"""Merge: several datasets become one, over the same tars."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow._wording import plural
from shardflow.errors import ConfigError
from shardflow.formats.annotations import Annotations
from shardflow.formats.shard_index import Index

from .column_files import Values, no_values
from .image_copies import warn_of_copies
from .label_numbering import common_classes
from .open_dataset import Dataset, Split, open_dataset
from .virtual_dataset import Contents, SelectedRows, TarLocation, VirtualReport, build_virtual_dataset, tar_locations

logger = logging.getLogger(__name__)


def merge(
    srcs: Sequence[str | os.PathLike[str]],
    dst: str | os.PathLike[str],
    *,
    src_options: Mapping[str, Any] | None = None,
    dst_options: Mapping[str, Any] | None = None,
) -> VirtualReport:
    """Make a dataset at `dst` of all samples of several datasets, split by split. No tar is copied.

    A sample that the datasets have more than once, in the same tar or in tars of equal bytes, comes once, and a warning
    counts the others; if it is in different splits, the merge is refused. Labels are numbers inside the tars and must
    mean the same in all datasets: the lists of classes must be equal, or one must be the beginning of the other.

    >>> shardflow.merge(["photos256", "sketches256"], "both256")

    Args:
        srcs: Two or more datasets.
        dst: A directory or URL without a dataset; on this machine if a source is.
        src_options, dst_options: Options of fsspec's file systems for `srcs` and `dst`, if these are URLs.

    Returns:
        The fingerprint of the new dataset, and the numbers of its samples and shards.

    Raises:
        NotFoundError: A dataset does not exist.
        ConfigError: `srcs` has fewer than two datasets, their classes, annotations or columns do not fit together, a
            sample is in different splits, a tar was rewritten between them, or `dst` cannot name the tars.
        DatasetExistsError: `dst` is a dataset.
        StoreError: A source cannot be read, or `dst` cannot be written.
    """
    if len(srcs) < 2:
        raise ConfigError(f"a merge takes two or more datasets, found {len(srcs)}")
    datasets = [open_dataset(src, storage_options=src_options) for src in srcs]
    recipes = [dict(dataset.recipe) for dataset in datasets]
    splits = list(dict.fromkeys(split for dataset in datasets for split in dataset))
    _check_tars(datasets)
    report = build_virtual_dataset(
        dst,
        Contents(
            selected=(rows for split in splits for rows in _merged_shards(datasets, split)),
            splits=splits,
            classes=common_classes([(dataset.url, dataset.classes) for dataset in datasets]),
            recipe=recipes[0] if all(recipe == recipes[0] for recipe in recipes) else {},
            annotations=_common_annotations(datasets),
            made_by="merge of " + ", ".join(dataset.fingerprint for dataset in datasets),
            kinds=_common_kinds(datasets),
        ),
        storage_options=dst_options,
    )
    given = sum(len(split) for dataset in datasets for split in dataset.values())
    if again := given - sum(report.samples.values()):
        message = "left out %s that the datasets have more than once, in one tar or in tars of equal bytes"
        logger.warning(message, plural(again, "sample"))
    warn_of_copies(*datasets)
    return report


def _common_annotations(datasets: Sequence[Dataset]) -> Annotations:
    first = datasets[0]
    for dataset in datasets:
        if (found := dataset.manifest.annotations) != first.manifest.annotations:
            ours, theirs = (str(each.describe() or "nothing") for each in (first.manifest.annotations, found))
            message = f"{first.url} declares the annotations {ours}, {dataset.url} declares {theirs}"
            raise ConfigError(f"{message}; pack both with the same annotations, or load them with a Mix")
    return first.manifest.annotations


def _common_kinds(datasets: Sequence[Dataset]) -> dict[str, str]:
    """Return the columns of all datasets → kinds; ConfigError if a column has different kinds."""
    kinds: dict[str, str] = {}
    for dataset in datasets:
        for name, column in dataset.manifest.columns.items():
            if kinds.setdefault(name, column.kind) != column.kind:
                message = f"column {name!r} has values of {column.kind} in {dataset.url}, in another of {kinds[name]}"
                raise ConfigError(f"{message}; drop one with `shardflow columns drop {dataset.url} {name}`")
    return kinds


def _check_tars(datasets: Sequence[Dataset]) -> None:
    """Check that no tar was rewritten between two datasets, and that no sample is in different splits of them."""
    found: dict[str, list[tuple[Dataset, str, int]]] = {}
    first: dict[tuple[str, str], tuple[str, Dataset]] = {}
    for dataset in datasets:
        for split in dataset:
            for number, tar in enumerate(tar_locations(dataset, split)):
                sha256, other = first.setdefault((tar.root, tar.path), (tar.sha256, dataset))
                if sha256 != tar.sha256:
                    message = f"{tar.root}/{tar.path} was rewritten: {other.url} and {dataset.url} read other versions"
                    raise ConfigError(f"{message}; make the older one again, or take the newer one alone")
                found.setdefault(tar.sha256, []).append((dataset, split, number))
    for places in found.values():
        if len({split for _, split, _ in places}) == 1:
            continue
        read = [(dataset, split, dataset[split].reader.index(number)["offset"]) for dataset, split, number in places]
        for (one, split, ours), (other, other_split, theirs) in itertools.combinations(read, 2):
            if one is not other and split != other_split and np.isin(ours, theirs).any():
                raise ConfigError(
                    f"samples of the split {split} of {one.url} are in the split {other_split} of {other.url}; merge "
                    "the datasets before splitting, and split the result"
                )


def _merged_shards(datasets: Sequence[Dataset], split: str) -> Iterator[SelectedRows]:
    """Yield the shards of a split: each tar once, with the records of all datasets."""
    found: dict[str, list[tuple[TarLocation, Split, int]]] = {}
    for dataset in datasets:
        if split in dataset:
            for number, tar in enumerate(tar_locations(dataset, split)):
                found.setdefault(tar.sha256, []).append((tar, dataset[split], number))
    for places in found.values():
        indexes = [source.reader.index(number) for _, source, number in places]
        union = _union(indexes)
        targets = [np.searchsorted(_begins(union), _begins(index)) for index in indexes]
        kinds = {name: kind for _, source, _ in places for name, kind in source.columns.kinds.items()}
        columns = {name: no_values(kind, int(union["record"][-1]) + 1) for name, kind in kinds.items()}
        for (_, source, number), rows in zip(places, targets, strict=True):
            for name in source.columns.kinds:
                _fill(columns[name], source.columns.read(name, number), rows, f"{source.reader.url(number)}: {name!r}")
        yield SelectedRows(split, places[0][0], union, columns)


def _begins(index: Index) -> npt.NDArray[np.uint64]:
    """Return where each record begins in its tar."""
    begins: npt.NDArray[np.uint64] = index["offset"][np.searchsorted(index["record"], np.unique(index["record"]))]
    return begins


def _fill(column: Values, values: Values, rows: npt.NDArray[np.intp], what: str) -> None:
    """Put values into these rows of a column; ConfigError if they contradict values there."""
    both = column.present[rows] & values.present
    found, given = column.values[rows[both]], values.values[both]
    if not ((found == given) | ((found != found) & (given != given))).all():  # NaN is equal to NaN here
        message = f"column {what} has different values for the same samples in two of the datasets"
        raise ConfigError(f"{message}; drop it from one of them with `shardflow columns drop`")
    column.values[rows[values.present]] = values.values[values.present]
    column.present[rows[values.present]] = True


def _union(indexes: Sequence[Index]) -> Index:
    """Return the different records of all indexes of a tar, in the order of the tar."""
    rows = np.concatenate(list(indexes))
    # A record's number differs between indexes, but the offset of its first member does not.
    begins = np.concatenate([index["offset"][np.searchsorted(index["record"], index["record"])] for index in indexes])
    _, unique = np.unique(rows["offset"], return_index=True)
    rows, begins = rows[unique], begins[unique]
    rows["record"] = np.unique(begins, return_inverse=True)[1]
    return rows
