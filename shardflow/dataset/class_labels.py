"""Class labels: the classes of each sample of a split, from the indexes wherever they tell them.

An index has the size and the CRC-32 of each `.cls`, and the manifest has the SHA-256 of the index. A class number is a
short text, so both together say which number it is, and no tar has to be read for it. Samples with several classes, or
whose numbers other writers wrote in other forms ("007"), are read.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from shardflow.errors import DecodeError, IntegrityError, NotFoundError
from shardflow.formats.labels import CLASS_PART, CLASSES_PART, sample_labels
from shardflow.formats.shard import OnShard
from shardflow.order.keyed_rng import U64

from .open_dataset import Split

_NONE, _UNKNOWN = -1, -2


def read_labels(split: Split, classes: int, progress: OnShard = None) -> Iterator[tuple[int, ...]]:
    """Yield the classes of each sample of a split, in order: none, one or several.

    Args:
        split: The split.
        classes: Number of classes of the dataset.
        progress: Called after each shard.

    Raises:
        IntegrityError: A label that had to be read is damaged, or is not a label.
        StoreError: A shard cannot be read.
    """
    for counts, labels in shard_labels(split, classes, progress):
        remaining = iter(labels.tolist())
        for count in counts.tolist():
            yield tuple(itertools.islice(remaining, count))


def single_classes(split: Split, classes: int) -> npt.NDArray[np.int32]:
    """Return the class of each sample, int32 [N]; -1 for none or several. Arguments and errors: see `read_labels`."""
    found = [np.empty(0, dtype=np.int32)]
    for counts, labels in shard_labels(split, classes):
        numbers = np.full(len(counts), _NONE, dtype=np.int32)
        numbers[counts == 1] = labels[np.cumsum(counts)[counts == 1] - 1]
        found.append(numbers)
    return np.concatenate(found)


def shard_labels(
    split: Split, classes: int, progress: OnShard = None
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Yield for each shard the number of classes of each sample, and their classes in one array: see `read_labels`."""
    texts = [b"%d" % number for number in range(classes)]
    checksums = np.array([len(text) << 32 | zlib.crc32(text) for text in texts], dtype=np.uint64)
    checksums, first, counts = np.unique(checksums, return_index=True, return_counts=True)
    known, named = checksums[counts == 1], first[counts == 1].astype(np.int32)
    for number, shard in enumerate(split.shards):
        numbers = _from_index(split, number, known, named)
        counts, labels = (numbers >= 0).astype(np.int64), numbers[numbers >= 0].astype(np.int64)
        if len(unknown := np.flatnonzero(numbers == _UNKNOWN)):
            read = [record_labels(split, number, record) for record in unknown.tolist()]
            places, counts[unknown] = np.cumsum(counts)[unknown], [len(each) for each in read]
            labels = np.insert(labels, np.repeat(places, counts[unknown]), [label for each in read for label in each])
        yield counts, labels
        split.reader.close(number)
        if progress is not None:
            progress(shard)


def record_labels(split: Split, shard: int, record: int) -> tuple[int, ...]:
    """Return the classes of a record, from its shard: none, one or several."""
    reader = split.reader
    try:
        return sample_labels(lambda part: reader.part(shard, record, part)) or ()
    except DecodeError as error:
        message = f"{error}; run `shardflow verify`"
        raise IntegrityError(message).with_location(shard=reader.url(shard), key=reader.key(shard, record)) from error


def _from_index(split: Split, shard: int, known: U64, named: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return the class of each record; below 0 where it has none, or the index does not tell.

    `known` has size and CRC-32 of the texts of numbers, sorted, `named` these numbers.
    """
    numbers = np.full(split.shards[shard].samples, _NONE, dtype=np.int32)
    try:
        index = split.reader.index(shard)
    except (NotFoundError, IntegrityError):  # readers rebuild it from the tar
        return np.full_like(numbers, _UNKNOWN)
    rows = index[index["part"] == CLASS_PART.encode()]
    checksums = rows["size"].astype(np.uint64) << np.uint64(32) | rows["crc32"]
    numbers[rows["record"]] = _UNKNOWN
    if len(known):
        places = np.minimum(np.searchsorted(known, checksums), len(known) - 1)
        numbers[rows["record"]] = np.where(known[places] == checksums, named[places], _UNKNOWN)
    numbers[index["record"][index["part"] == CLASSES_PART.encode()]] = _UNKNOWN
    return numbers
