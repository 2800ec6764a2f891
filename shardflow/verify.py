"""Verification: everything that is wrong with a dataset, not only the first thing.

Each shard is held against the manifest (size, SHA-256), against the tar format, against its index, and each member
against its CRC-32. A finding names the file and, where one is touched, the sample.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from . import shardindex
from .dataset import open_dataset
from .errors import FormatError, StoreError
from .manifest import Shard
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
    for split in dataset.values():
        for shard in split.shards:
            findings += _shard(dataset.store, shard, len(dataset.classes) if dataset.classes is not None else None)
            if progress is not None:
                progress(shard)
    return findings


def _shard(store: Store, shard: Shard, classes: int | None) -> Iterator[Finding]:
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
    try:
        rebuilt, keys = shardindex.build(memoryview(tar))
    except FormatError as error:
        yield Finding(shard.name, str(error))
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


def _labels(shard: Shard, tar: memoryview, index: shardindex.Index, keys: list[str], classes: int) -> Iterator[Finding]:
    labelled = set()
    for record, part, offset, size, *_ in index.tolist():
        if part == b"cls":
            labelled.add(record)
            text = bytes(tar[offset : offset + size])
            # Python refuses to read numbers of thousands of digits.
            if not (text.isdigit() and len(text) < 20 and int(text) < classes):
                problem = f"label {text[:20]!r} is not a number from 0 to {classes - 1}"
                yield Finding(shard.name, problem, key=keys[record])
    for record in sorted(set(range(len(keys))) - labelled):
        yield Finding(shard.name, "has no label", key=keys[record])
