"""Selection: which records of a dataset a virtual dataset gets: by label, by key, or at random.

The random choice depends on a hash of the sample's image and of the seed, not on where the sample lies. So added
samples do not change it, a smaller share is part of a larger one, and copies of one image are chosen together, except
at the very border.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from shardflow.errors import ConfigError, NotFoundError
from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.formats.shard import OnShard
from shardflow.formats.shard_index import KEY_PART, Index
from shardflow.order import keyed_rng

from .open_dataset import Dataset, Split
from .virtual_dataset import Contents, SelectedRows, tar_locations

_Result = TypeVar("_Result")

Mask = npt.NDArray[np.bool_]
"""For each sample of a split, whether it is selected."""


def read_records(split: Split, read: Callable[[int, int], _Result], progress: OnShard) -> Iterator[_Result]:
    """Yield `read(shard, record)` for each sample of a split. Remote tars are downloaded into the cache."""
    for number, shard in enumerate(split.shards):
        for record in range(shard.samples):
            yield read(number, record)
        split.reader.close(number)
        if progress is not None:
            progress(shard)


def shard_keys(split: Split, number: int) -> list[str]:
    """Return the keys of the samples of a shard, from its receipt or, without one, from its tar."""
    made = split.receipt(number)
    if made is not None and len(made.sources) == split.shards[number].samples:
        return made.keys()
    return split.stored_keys(number)


def in_split_order(split: Split, argument: str, values: Any) -> list[Any]:
    """Return the value of each sample of a split, from a dict or pandas Series by path, or path without extension.

    In a dataset without receipts, which have the paths, it is by key. If several samples have a path, it is by split
    and key, such as "train:000000042".

    Raises:
        ConfigError: A sample has no value, or several.
    """
    try:
        paths = split.sources()
    except NotFoundError:
        paths = [key for shard in range(len(split.shards)) for key in split.stored_keys(shard)]
    stems = [os.path.splitext(path)[0] for path in paths]
    stems = stems if len({*stems}) == len({*paths}) else paths
    given = [(str(name), value) for name, value in values.items()]
    found = dict(given)
    names = [path if path in found else stem for path, stem in zip(paths, stems, strict=True)]
    counts = Counter(paths)
    if len(counts) < len(paths):
        keys = [f"{split.name}:{key}" for shard in range(len(split.shards)) for key in shard_keys(split, shard)]
        of_keys, several = Counter(keys), [number for number, path in enumerate(paths) if counts[path] > 1]
        if unclear := [number for number in several if keys[number] not in found or of_keys[keys[number]] > 1]:
            path, key = paths[unclear[0]], keys[unclear[0]]
            message = f"{argument}: {counts[path]} samples of split {split.name!r} have the source {path!r}"
            remedy = f"give each of them a value by its key, such as {key!r}"
            if of_keys[key] > 1:
                remedy = f"and {of_keys[key]} the key {key!r}: rename tars or files, and pack or index them again"
            raise ConfigError(f"{message}; {remedy}")
        for number in several:
            names[number] = keys[number]
    lacking = [path for path, name in zip(paths, names, strict=True) if name not in found]
    if len(found) == len(given) and not lacking:
        return [found[name] for name in names]
    if lacking:
        wrong = f"{len(lacking)} of {len(paths)} lack a value, such as {lacking[0]!r}"
    else:
        wrong = f"{Counter(name for name, _ in given).most_common(1)[0][0]!r} repeats"
    raise ConfigError(
        f"{argument} does not have each sample of split {split.name!r} once: {wrong}; a Series, "
        "which has the order of its table, needs the paths or ids as its index: table.set_index('id')['fold']"
    )


def sample_hashes(dataset: Dataset, split: str, seed: int) -> keyed_rng.U64:
    """Return a random number for each sample of a split, from its image and the seed. Only the index is read."""
    key = keyed_rng.key(seed, "view")
    reader = dataset[split].reader
    images = [image_checksums(reader.index(shard)) for shard in range(len(reader.shards))]
    return keyed_rng.fold_array(key, np.concatenate([np.empty(0, dtype=np.uint64), *images]))


def select_lowest(mask: Mask, hashes: keyed_rng.U64, count: int) -> Mask:
    """Return the mask of the `count` samples with the lowest hashes among those that `mask` selects."""
    candidates = np.flatnonzero(mask)
    lowest = np.zeros_like(mask)
    lowest[candidates[np.argsort(hashes[candidates], kind="stable")[:count]]] = True
    return lowest


def selected_contents(dataset: Dataset, selection: Mapping[str, tuple[str, Mask]], made_by: str) -> Contents:
    """Return the contents of a virtual dataset: for each of its splits, the samples of a split of `dataset`."""
    return Contents(
        selected=_selected_shards(dataset, selection),
        splits=tuple(selection),
        classes=dataset.manifest.classes,
        recipe=dataset.recipe,
        annotations=dataset.manifest.annotations,
        made_by=made_by,
        kinds={name: column.kind for name, column in dataset.manifest.columns.items()},
    )


def _selected_shards(dataset: Dataset, selection: Mapping[str, tuple[str, Mask]]) -> Iterator[SelectedRows]:
    for name, (source, mask) in selection.items():
        split, tars, begin = dataset[source], tar_locations(dataset, source), 0
        for number, shard in enumerate(split.shards):
            records = mask[begin : begin + shard.samples]
            begin += shard.samples
            if records.any():
                columns = {column: split.columns.read(column, number).take(records) for column in split.columns.kinds}
                yield SelectedRows(name, tars[number], select_rows(split.reader.index(number), records), columns)


def select_rows(index: Index, records: Mask) -> Index:
    """Return the rows of the selected records of an index, renumbered from 0."""
    rows: Index = index[records[index["record"]]].copy()
    rows["record"] = (np.cumsum(records) - 1)[rows["record"]]
    return rows


def image_checksums(index: Index) -> keyed_rng.U64:
    """Return for each record the CRC-32 and the size of its image, or of its largest part, as one number.

    The parts of samples without an image may begin with one that many have, such as the number of a class.
    """
    records = int(index["record"][-1]) + 1 if len(index) else 0
    sizes = np.where(index["part"] == KEY_PART, -1, index["size"].astype(np.int64))
    order = np.lexsort((-sizes, index["record"]))
    rows = order[np.searchsorted(index["record"][order], np.arange(records))]
    images = np.flatnonzero(np.isin(index["part"], [part.encode() for part in IMAGE_PARTS]))
    with_image, first = np.unique(index["record"][images], return_index=True)
    rows[with_image] = images[first]
    checksums: keyed_rng.U64 = index["crc32"][rows].astype(np.uint64) << np.uint64(32) | index["size"][rows]
    return checksums
