"""Samples read one by one where they lie, so that a look at a few of them fetches no whole shard.

The index is sealed by the manifest and says where a sample is and what it must be, so its own bytes are read by a
ranged request, and checked.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from shardflow.dataset.dataset import Dataset
from shardflow.dataset.shard_rows import ShardRows
from shardflow.errors import FormatError, IntegrityError, NotFoundError
from shardflow.formats.labels import LABELS, numbers
from shardflow.formats.shard_index import IMAGE_PARTS

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
    part = next((part for part in LABELS if part in parts), None)
    try:
        return [] if part is None else list(numbers(part, bytes(parts[part])))
    except ValueError:
        return []


class SampleReader:
    """Reads single samples of a split. Any thread may use it."""

    def __init__(self, dataset: Dataset, split: str) -> None:
        self.split = dataset[split]
        self._storage = dataset.storage
        self._indexes: dict[int, ShardRows | None] = {}
        self._lock = threading.Lock()

    def rows(self, shard: int) -> ShardRows | None:
        """Return the index of a shard; None when it is missing or damaged.

        Raises:
            StoreError: It is out of reach.
        """
        with self._lock:  # who comes meanwhile waits, and need not read it again
            if shard not in self._indexes:
                self._indexes[shard] = self.split.reader.rows(shard)
            return self._indexes[shard]

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
        shard, record = self.split.locate(number)
        rows = self.rows(shard)
        if rows is None:  # without an index the whole shard has to be read, which a split does
            whole: dict[str, Any] = self.split[number]
            return Peeked(number, whole.pop("__key__"), {part: whole[part] for part in whole if part != "__url__"})
        span = memoryview(self._storage.read_range(self.split.shards[shard].name, *rows.span(record)))
        sample = rows.sample_of_span(record, span, shard=shard, url=self.split.reader.url(shard))
        return Peeked(number, sample.key, {part: bytes(payload) for part, payload in sample.parts.items()})
