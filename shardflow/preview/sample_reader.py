"""The sample reader: reads single samples without downloading whole shards.

The index of a shard has the offset and checksums of each sample, and the manifest has the checksum of the index. So
one ranged request reads a sample, which is then checked.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from shardflow._wording import first_few
from shardflow.dataset.class_labels import read_labels
from shardflow.dataset.open_dataset import Dataset
from shardflow.dataset.sample import Sample
from shardflow.dataset.shard_rows import ShardRows
from shardflow.errors import ConfigError, DecodeError, FormatError, IntegrityError, NotFoundError, StoreError
from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.formats.labels import sample_labels
from shardflow.formats.shard import OnShard

_THREADS = 8
_SHARDS = 4
_AT_A_TIME = 256


class RawSample(NamedTuple):
    """A stored sample, with its number in the split. A damaged sample has a problem and no parts."""

    number: int
    key: str
    parts: dict[str, bytes]
    problem: str = ""
    source: str = ""  # the input from which it was packed, if that is known

    @property
    def image(self) -> bytes | None:
        """The encoded image; None if the sample has none."""
        return next((payload for part, payload in self.parts.items() if part in IMAGE_PARTS), None)

    @property
    def caption(self) -> str:
        """The text of the part txt, or else of `caption` or `captions` in json, one per line; "" without one."""
        if (text := self.parts.get("txt")) is not None:
            return text.decode(errors="replace")
        found: Any = None
        with contextlib.suppress(ValueError, AttributeError, RecursionError):  # damaged, or not an object
            record = json.loads(self.parts.get("json", b"{}"))
            found = record.get("caption") or record.get("captions")
        return "\n".join(each for each in (found if isinstance(found, list) else [found]) if isinstance(each, str))

    @property
    def labels(self) -> list[int]:
        """The numbers of the sample's classes; empty without a label, or if it cannot be parsed."""
        with contextlib.suppress(DecodeError):
            return list(sample_labels(self.parts.get) or ())
        return []


def raw_sample(number: int, sample: Sample) -> RawSample:
    """Return a sample that was read, with its number in the split."""
    return RawSample(number, sample.key, {part: bytes(payload) for part, payload in sample.parts.items()})


class SampleReader:
    """Reads single samples of a split. Its methods may be called from any thread."""

    def __init__(self, dataset: Dataset, split: str) -> None:
        self.split = dataset[split]
        self._dataset = dataset
        self._indexes: dict[int, ShardRows | None] = {}
        self._lock = threading.Lock()

    def _index_rows(self, shard: int) -> ShardRows | None:
        """Return the index of a shard; None if it is missing or damaged."""
        with self._lock:  # one thread reads the index, the others wait for it
            if shard not in self._indexes:
                self._indexes[shard] = self.split.reader.rows(shard)
            return self._indexes[shard]

    def samples(self, numbers: Iterable[int]) -> Iterator[RawSample]:
        """Yield samples of the split by number, in the given order; several are read in parallel."""
        rest = iter(numbers)
        with ThreadPoolExecutor(_THREADS) as pool:
            while some := list(itertools.islice(rest, _AT_A_TIME)):
                yield from map(self._with_source, pool.map(self._sample, some))

    def _spread_shards(self, count: int) -> list[int]:
        """Return the numbers of up to four shards, or more if `count` samples need more, evenly spread over samples.

        They are few, because each needs its index.
        """
        shards, samples = len(self.split.shards), len(self.split)
        few = max(_SHARDS, -(-count * shards // max(1, samples)))
        if shards <= few:
            return list(range(shards))
        chosen = sorted({self.split.locate(number)[0] for number in _spread(samples, few)})
        return chosen if self.split.shard_samples[chosen].sum() >= count else list(range(shards))

    def spread_samples(self, count: int) -> list[int]:
        """Return the numbers of `count` samples, or of all, evenly spread over the samples of few shards."""
        chosen = np.array(self._spread_shards(min(count, len(self.split))), np.int64)
        sizes = self.split.shard_samples[chosen]
        skipped = self.split.first_sample(chosen) - (np.cumsum(sizes) - sizes)
        places = np.array(_spread(int(sizes.sum()), count), np.int64)
        numbers: list[int] = (places + np.repeat(skipped, sizes)[places]).tolist()
        return numbers

    def samples_of_class(self, name: str, count: int, progress: OnShard = None) -> list[int]:
        """Return the numbers of the first `count` samples of a class, or of all if there are fewer.

        `progress` is called after each shard.
        """
        split, classes = self.split, self._dataset.classes
        if classes is None or name not in classes:
            known = "none: the samples have no labels" if classes is None else first_few(classes, 20)
            raise ConfigError(f"no class {name!r}; the classes are {known}")
        wanted = classes.index(name)
        labels = enumerate(read_labels(split, len(classes), progress))
        found = list(itertools.islice((number for number, classes in labels if wanted in classes), count))
        if not found:
            raise ConfigError(f"split {split.name!r} has no sample of class {name!r}; choose another split")
        return found

    def read(self, number: int) -> Sample:
        """Return a sample of the split by number, as `Split` returns it.

        Raises:
            IntegrityError, FormatError: The sample is damaged.
            NotFoundError: The sample's shard is missing.
        """
        shard, record = self.split.locate(number)
        if (rows := self._index_rows(shard)) is None:  # without an index, the whole shard must be read
            return self.split.reader.read(shard, record)
        span = self._dataset.storage.read_range(self.split.shards[shard].name, *rows.span(record))
        data = memoryview(bytearray(span))  # writable, as decoders expect
        return rows.sample_of_span(record, data, shard=shard, url=self.split.reader.url(shard))

    def _with_source(self, sample: RawSample) -> RawSample:
        with contextlib.suppress(IntegrityError, FormatError, KeyError, StoreError):  # a dataset may lack its receipts
            shard, _ = self.split.locate(sample.number)
            return sample._replace(source=self.split.source_in_shard(shard, sample.key))
        return sample

    def _sample(self, number: int) -> RawSample:
        try:
            return raw_sample(number, self.read(number))
        except (IntegrityError, FormatError, NotFoundError) as error:
            return RawSample(number, "", {}, str(error))


def _spread(length: int, count: int) -> list[int]:
    """Return up to `count` of the numbers 0 … length-1, evenly spread, each from the middle of its interval."""
    count = min(length, count)
    return [(2 * place + 1) * length // (2 * count) for place in range(count)]
