"""Verification: everything that is wrong with a dataset, not only the first thing.

Each shard is held against the manifest (size, SHA-256), against the tar format, against its index, and each member
against its CRC-32. A finding names the file and, where one is touched, the sample.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from . import shardindex, ustar
from .dataset import open_dataset
from .errors import FormatError, IntegrityError, StoreError, TarError
from .manifest import Shard
from .shard import member_key, rows_of
from .store import Store


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        file: Name below the dataset.
        problem: What was expected and what was found.
        key: The sample it touches, where it is one sample.
    """

    file: str
    problem: str
    key: str | None = None

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}" if self.key is None else f"{self.file}, sample {self.key}: {self.problem}"


def verify(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[Shard], None] | None = None,
) -> list[Finding]:
    """Read a whole dataset and return everything that is wrong with it; empty when it is sound.

    Args:
        url: Where the dataset lies; a directory or a URL. What a URL names is read there, not in the cache.
        storage_options: What fsspec's file system takes, where it is a URL.
        progress: Called after each shard.

    Raises:
        NotFoundError: There is no dataset.
        ManifestError: The manifest itself is damaged, so nothing can be held against it.
        StoreError: The store is out of reach; a single file that cannot be read is a finding.
    """
    dataset = open_dataset(url, storage_options=storage_options)
    findings: list[Finding] = []
    classes, whole = None if dataset.classes is None else len(dataset.classes), not dataset.manifest.bases
    for split in dataset.values():
        for shard in split.shards:
            findings += verify_shard(dataset.store, shard, classes, whole=whole)
            if progress is not None:
                progress(shard)
    return findings


def verify_shard(store: Store, shard: Shard, classes: int | None, *, whole: bool = True) -> Iterator[Finding]:
    """Yield everything that is wrong with a shard of a dataset with so many classes, or none.

    `whole` says that the index is one of all that the tar holds, as it is but in a view.
    """
    index_data = _read_index(store, shard)
    if isinstance(index_data, Finding):
        yield index_data
    elif hashlib.sha256(index_data).hexdigest() != shard.index_sha256:
        yield Finding(shard.index_name, "its SHA-256 differs from the manifest's; readers rebuild it from the shard")
    try:
        tar = store.read(shard.name)
    except StoreError as error:
        yield Finding(shard.name, str(error))
        return
    if len(tar) != shard.bytes:
        yield Finding(shard.name, f"has {len(tar)} bytes, the manifest says {shard.bytes}")
    if hashlib.sha256(tar).hexdigest() != shard.sha256:
        yield Finding(shard.name, "its SHA-256 differs from the manifest's")
    if not whole:
        if not isinstance(index_data, Finding):
            yield from _records(index_data, shard, memoryview(tar), classes)
        return
    try:
        rebuilt, keys = shardindex.build(memoryview(tar))
    except FormatError as error:
        yield Finding(shard.name, str(error))
        if not isinstance(index_data, Finding) and len(tar) == shard.bytes:
            yield from _members_by_index(index_data, shard, memoryview(tar), str(error))
        return
    if len(keys) != shard.samples:
        yield Finding(shard.name, f"holds {len(keys)} samples, the manifest says {shard.samples}")
    if not isinstance(index_data, Finding):
        yield from _members(index_data, shard, rebuilt, keys)
    if classes is not None:
        yield from _labels(shard, memoryview(tar), rebuilt, keys, classes)


def _read_index(store: Store, shard: Shard) -> bytes | Finding:
    try:
        return store.read(shard.index_name)
    except StoreError as error:
        return Finding(shard.index_name, str(error))


def _members(data: bytes, shard: Shard, rebuilt: shardindex.Index, keys: list[str]) -> Iterator[Finding]:
    """Hold each member of the tar against its row in the index, as far as the index can be read."""
    try:
        index = shardindex.from_bytes(data, samples=shard.samples, tar_bytes=shard.bytes)
    except FormatError as error:
        yield Finding(shard.index_name, str(error))
        return
    if len(index) != len(rebuilt):
        yield Finding(shard.index_name, f"has {len(index)} members, the shard has {len(rebuilt)}")
    for expected, found in zip(index.tolist(), rebuilt.tolist(), strict=False):
        if expected != found:
            part = found[1].decode()
            differing = [
                name for name, a, b in zip(shardindex.DTYPE.names or (), expected, found, strict=True) if a != b
            ]
            problem = f"part {part!r} differs from the index in {', '.join(differing)}"
            yield Finding(shard.name, problem, key=keys[found[0]])


def _members_by_index(data: bytes, shard: Shard, tar: memoryview, known: str) -> Iterator[Finding]:
    """Look at each member where the packed index has it: a tar cannot be walked beyond its first damaged header."""
    if hashlib.sha256(data).hexdigest() != shard.index_sha256:
        return
    index = shardindex.from_bytes(data, samples=shard.samples, tar_bytes=shard.bytes)
    for record, name, offset, size, crc32, *_ in index.tolist():
        where = f"record {record}, part {name.decode()!r}"
        try:
            ustar.parse(bytes(tar[offset - ustar.BLOCK : offset]), offset)
        except TarError as error:
            if str(error) != known:
                yield Finding(shard.name, f"{where}: {error}")
        if zlib.crc32(tar[offset : offset + size]) != crc32:
            yield Finding(shard.name, f"{where}: its CRC-32 differs")


def _records(data: bytes, shard: Shard, tar: memoryview, classes: int | None) -> Iterator[Finding]:
    """Look at the records that the index has, and at nothing else in the tar."""
    try:
        index = shardindex.from_bytes(data, samples=shard.samples, tar_bytes=shard.bytes)
    except FormatError as error:
        yield Finding(shard.index_name, str(error))
        return
    rows, keys = rows_of(index, shard.samples), [f"record {record}" for record in range(shard.samples)]
    for record in range(shard.samples):
        try:
            keys[record] = rows.key(record, tar)
            for row in () if record in rows.keys else rows.of(record):
                member_key(bytes(tar[row[2] - ustar.BLOCK : row[2]]), row)
        except IntegrityError as error:
            yield Finding(shard.name, str(error))
        for _, name, offset, size, crc32, *_ in rows.of(record):
            if zlib.crc32(tar[offset : offset + size]) != crc32:
                yield Finding(shard.name, f"part {name.decode()!r}: its CRC-32 differs", key=keys[record])
    if classes is not None:
        yield from _labels(shard, tar, index, keys, classes, foreign=True)


def _labels(
    shard: Shard,
    tar: memoryview,
    index: shardindex.Index,
    keys: list[str],
    classes: int,
    *,
    foreign: bool = False,
) -> Iterator[Finding]:
    labelled = set()
    for record, part, offset, size, *_ in index.tolist():
        if part == b"labels.json":
            labelled.add(record)
            numbers = bytes(tar[offset : offset + size])
            if not _are_classes(numbers, classes):
                problem = f"labels {numbers[:20]!r} are not a list of numbers from 0 to {classes - 1}"
                yield Finding(shard.name, problem, key=keys[record])
        if part == b"cls":
            labelled.add(record)
            text = bytes(tar[offset : offset + size])
            if foreign:  # others end it with a line break
                text = text.strip()
            # Python refuses to read numbers of thousands of digits.
            if not (text.isdigit() and len(text) < 20 and int(text) < classes):
                problem = f"label {text[:20]!r} is not a number from 0 to {classes - 1}"
                yield Finding(shard.name, problem, key=keys[record])
    if not labelled:  # a split may have no labels, where others have
        return
    for record in sorted(set(range(len(keys))) - labelled):
        yield Finding(shard.name, "has no label", key=keys[record])


def _are_classes(text: bytes, classes: int) -> bool:
    try:
        numbers = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(numbers, list) and all(isinstance(number, int) and 0 <= number < classes for number in numbers)
