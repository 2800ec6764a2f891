"""Samples read one by one where they lie, so that a look at a few of them fetches no whole shard.

The index is sealed by the manifest and says where a sample is and what it must be, so its own bytes are read by a
ranged request, and checked.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from shardflow.dataset import Dataset
from shardflow.errors import FormatError, IntegrityError, NotFoundError
from shardflow.files import shard_files
from shardflow.shard import Row, Rows, packed_rows
from shardflow.shardindex import IMAGE_PARTS

_AT_ONCE = 8


class Peeked(NamedTuple):
    """A sample: its number in the split, its key, its parts; where it is damaged, no parts but what is wrong."""

    number: int
    key: str
    parts: dict[str, bytes]
    problem: str = ""

    @property
    def image(self) -> bytes | None:
        """The encoded image; None when there is none."""
        return next((payload for part, payload in self.parts.items() if part in IMAGE_PARTS), None)

    @property
    def labels(self) -> list[int]:
        """The numbers of its classes: one, several, or none."""
        return labels_of(self.parts)


def labels_of(parts: Mapping[str, bytes | memoryview]) -> list[int]:
    """Return the numbers of a sample's classes; none where there are none, or what is there cannot be read."""
    text = bytes(parts.get("labels.json") or parts.get("cls") or b"[]")
    try:
        found = json.loads(text)
    except ValueError:
        return []
    numbers = found if isinstance(found, list) else [found]
    return [number for number in numbers if isinstance(number, int) and number >= 0]


class Peek:
    """Reads single samples of a split. Any thread may use it."""

    def __init__(self, dataset: Dataset, split: str) -> None:
        self.split = dataset[split]
        self._store = dataset.store
        self._files = shard_files(dataset.store, self.split.cache)
        self._indexes: dict[int, Rows | None] = {}

    def rows(self, shard: int) -> list[Row] | None:
        """Return the index of a shard as rows; None when it is missing or damaged.

        Raises:
            StoreError: It is out of reach.
        """
        if shard not in self._indexes:
            self._indexes[shard] = packed_rows(self._files, self.split.shards[shard])
        index = self._indexes[shard]
        return None if index is None else index.members

    def samples(self, numbers: Iterable[int]) -> Iterator[Peeked]:
        """Yield samples of the split by number, in this order, several being read at a time.

        Raises:
            IndexError: There is no such sample.
            StoreError: It is out of reach.
        """
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            yield from pool.map(self._peeked, numbers)

    def _peeked(self, number: int) -> Peeked:
        try:
            return self._sample(number)
        except (IntegrityError, FormatError, NotFoundError) as error:
            return Peeked(number, "", {}, str(error))

    def _sample(self, number: int) -> Peeked:
        if not 0 <= number < len(self.split):
            raise IndexError(f"sample {number} of {len(self.split)}")
        ends = np.cumsum(self.split.shard_samples)
        shard = int(np.searchsorted(ends, number, side="right"))
        record = number - int(ends[shard] - self.split.shard_samples[shard])
        if self.rows(shard) is None:  # without an index the whole shard has to be read, which a split does
            whole: dict[str, Any] = self.split[number]
            return Peeked(number, whole.pop("__key__"), {part: whole[part] for part in whole if part != "__url__"})
        index = self._indexes[shard]
        assert index is not None
        return self._read(number, shard, index, record)

    def _read(self, number: int, shard: int, index: Rows, record: int) -> Peeked:
        name, url = self.split.shards[shard].name, self.split.url(shard)
        rows, begin = index.of(record), index.begin(record)
        data = self._store.read_range(name, begin, max(offset + size for _, _, offset, size, *_ in rows))
        try:
            key = index.key(record, memoryview(data), begin)
        except IntegrityError as error:
            raise error.at(shard=url) from error.__cause__
        parts = {}
        for _, part, offset, size, crc32, *_ in rows:
            payload = data[offset - begin : offset - begin + size]
            if len(payload) != size or zlib.crc32(payload) != crc32:
                message = f"part {part.decode()!r} is damaged (its CRC-32 differs); run `shardflow verify`"
                raise IntegrityError(message).at(shard=url, key=key)
            parts[part.decode()] = payload
        return Peeked(number, key, parts)
