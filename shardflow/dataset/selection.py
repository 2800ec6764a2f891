"""Chosen: which records of a dataset a view gets, and the drawing of lots.

A sample's lot depends on its image and on the seed, not on where it lies. So a choice stays what it was when others are
added, smaller shares are parts of larger ones, and copies of one image go the same way, but at the very border.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.formats.shard_index import Index
from shardflow.order import keyed_rng

from .builder import SelectedRows, select_rows, tar_locations
from .dataset import Dataset

Records = npt.NDArray[np.bool_]
"""Whether each sample of a split is chosen."""


def sample_hashes(dataset: Dataset, split: str, seed: int) -> keyed_rng.U64:
    """Return the lot of each sample of a split, from its index alone.

    Raises:
        StoreError: An index is missing or out of reach.
        IntegrityError: It is not the one packed.
    """
    key = keyed_rng.key(seed, "view")
    drawn = [contents(dataset[split].index(number)) for number in range(len(dataset[split].shards))]
    return keyed_rng.fold_array(key, np.concatenate([np.empty(0, dtype=np.uint64), *drawn]))


def lowest(records: Records, drawn: keyed_rng.U64, count: int) -> Records:
    """Return those `count` of the chosen records that have the lowest lots."""
    candidates = np.flatnonzero(records)
    few = np.zeros_like(records)
    few[candidates[np.argsort(drawn[candidates], kind="stable")[:count]]] = True
    return few


def select_shards(dataset: Dataset, choice: Mapping[str, tuple[str, Records]]) -> Iterator[SelectedRows]:
    """Yield the shards of a view: for each of its splits, which records of which split of a dataset it gets."""
    for name, (source, records) in choice.items():
        split, tars, begin = dataset[source], tar_locations(dataset, source), 0
        for number, shard in enumerate(split.shards):
            mine = records[begin : begin + shard.samples]
            begin += shard.samples
            if mine.any():
                yield SelectedRows(name, tars[number], select_rows(split.index(number), mine))


def contents(index: Index) -> keyed_rng.U64:
    """Return a number for what each record is: the CRC-32 and the size of its image, or of its first part."""
    records = int(index["record"][-1]) + 1 if len(index) else 0
    rows = np.searchsorted(index["record"], np.arange(records))
    images = np.flatnonzero(np.isin(index["part"], [part.encode() for part in IMAGE_PARTS]))
    with_image, first = np.unique(index["record"][images], return_index=True)
    rows[with_image] = images[first]
    numbers: keyed_rng.U64 = index["crc32"][rows].astype(np.uint64) << np.uint64(32) | index["size"][rows]
    return numbers
