"""Verification: everything that is wrong with a dataset, not only the first thing.

Each shard is held against the manifest (size, SHA-256), against the tar format, against its index, and each member
against its CRC-32. A finding names the file and, where one is touched, the sample.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardflow.errors import DecodeError, FormatError, IntegrityError, StoreError, TarError
from shardflow.formats import shard_index, ustar
from shardflow.formats.labels import LABEL_PARTS, parse_labels
from shardflow.formats.manifest import Shard
from shardflow.storage.storage import Storage

from .dataset import Dataset, open_dataset
from .mapped_shard import member_key, rows_of


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

    @property
    def where(self) -> str:
        """The file, and the sample if it is one."""
        return self.file if self.key is None else f"{self.file}, sample {self.key}"

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


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
    return findings_of(open_dataset(url, storage_options=storage_options), progress=progress)


def findings_of(dataset: Dataset, *, progress: Callable[[Shard], None] | None = None) -> list[Finding]:
    """Return everything that is wrong with a dataset that is open already; see `verify`."""
    tars: dict[str, list[Shard]] = {}  # of a view, several shards may be of one tar, which is read once
    for shard in dataset.shards:
        tars.setdefault(dataset.storage.url(shard.name), []).append(shard)
    findings: list[Finding] = []
    classes, whole = None if dataset.classes is None else len(dataset.classes), not dataset.manifest.roots
    for shards in tars.values():
        tar = _read(dataset.storage, shards[0].name)
        for shard in shards:
            findings += _findings(dataset.storage, shard, tar, classes, whole=whole)
            if progress is not None:
                progress(shard)
        del tar  # before the next one takes as much memory
    return findings


def verify_shard(storage: Storage, shard: Shard, classes: int | None) -> Iterator[Finding]:
    """Yield everything that is wrong with a shard of a dataset with so many classes, or none, that is no view."""
    yield from _findings(storage, shard, _read(storage, shard.name), classes, whole=True)


class _Tar(NamedTuple):
    """The bytes of a tar, and their SHA-256."""

    bytes: memoryview
    sha256: str


def _read(storage: Storage, name: str) -> _Tar | StoreError:
    try:
        data = storage.read(name)
    except StoreError as error:
        return error
    return _Tar(memoryview(data), hashlib.sha256(data).hexdigest())


def _findings(
    storage: Storage, shard: Shard, tar: _Tar | StoreError, classes: int | None, *, whole: bool
) -> Iterator[Finding]:
    """Yield what is wrong with a shard; `whole` says that its index is of all that the tar holds."""
    problems, index = _index(storage, shard)
    yield from problems
    if isinstance(tar, StoreError):
        yield Finding(shard.name, str(tar))
        return
    if len(tar.bytes) != shard.bytes:
        yield Finding(shard.name, f"has {len(tar.bytes)} bytes, the manifest says {shard.bytes}")
    if tar.sha256 != shard.sha256:
        yield Finding(shard.name, "its SHA-256 differs from the manifest's")
    if not whole:
        if index is not None:
            yield from _records(index, shard, tar.bytes, classes)
        return
    try:
        rebuilt, keys = shard_index.build(tar.bytes)
    except FormatError as error:
        yield Finding(shard.name, str(error))
        if index is not None and not problems and len(tar.bytes) == shard.bytes:
            yield from _members_by_index(index, shard, tar.bytes, str(error))
        return
    if len(keys) != shard.samples:
        yield Finding(shard.name, f"holds {len(keys)} samples, the manifest says {shard.samples}")
    if index is not None:
        yield from _members(index, shard, rebuilt, keys)
    if classes is not None:
        yield from _labels(shard, tar.bytes, rebuilt, keys, classes)


def _index(storage: Storage, shard: Shard) -> tuple[list[Finding], shard_index.Index | None]:
    """Return what is wrong with an index, and the index as far as it can be read."""
    try:
        data = storage.read(shard.index_name)
    except StoreError as error:
        return [Finding(shard.index_name, str(error))], None
    findings = []
    if hashlib.sha256(data).hexdigest() != shard.index_sha256:
        problem = "its SHA-256 differs from the manifest's; readers rebuild it from the shard"
        findings.append(Finding(shard.index_name, problem))
    try:
        return findings, shard_index.from_bytes(data, samples=shard.samples, tar_bytes=shard.bytes)
    except FormatError as error:
        return [*findings, Finding(shard.index_name, str(error))], None


def _members(index: shard_index.Index, shard: Shard, rebuilt: shard_index.Index, keys: list[str]) -> Iterator[Finding]:
    """Hold each member of the tar against its row in the index."""
    if len(index) != len(rebuilt):
        yield Finding(shard.index_name, f"has {len(index)} members, the shard has {len(rebuilt)}")
    for expected, found in zip(index.tolist(), rebuilt.tolist(), strict=False):
        if expected != found:
            part = found[1].decode()
            differing = [
                name for name, a, b in zip(shard_index.DTYPE.names or (), expected, found, strict=True) if a != b
            ]
            problem = f"part {part!r} differs from the index in {', '.join(differing)}"
            yield Finding(shard.name, problem, key=keys[found[0]])


def _members_by_index(index: shard_index.Index, shard: Shard, tar: memoryview, known: str) -> Iterator[Finding]:
    """Look at each member where the packed index has it: a tar cannot be walked beyond its first damaged header."""
    for record, name, offset, size, crc32, *_ in index.tolist():
        where = f"record {record}, part {name.decode()!r}"
        try:
            ustar.parse(bytes(tar[offset - ustar.BLOCK : offset]), offset)
        except TarError as error:
            if str(error) != known:
                yield Finding(shard.name, f"{where}: {error}")
        if zlib.crc32(tar[offset : offset + size]) != crc32:
            yield Finding(shard.name, f"{where}: its CRC-32 differs")


def _records(index: shard_index.Index, shard: Shard, tar: memoryview, classes: int | None) -> Iterator[Finding]:
    """Look at the records that the index has, and at nothing else in the tar."""
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
        yield from _labels(shard, tar, index, keys, classes, strict=False)  # others write them otherwise


def _labels(
    shard: Shard,
    tar: memoryview,
    index: shard_index.Index,
    keys: list[str],
    classes: int,
    *,
    strict: bool = True,
) -> Iterator[Finding]:
    labelled = set()
    for record, name, offset, size, *_ in index.tolist():
        if (part := name.decode()) in LABEL_PARTS:
            labelled.add(record)
            try:
                parse_labels(part, tar[offset : offset + size], classes=classes, strict=strict)
            except DecodeError as error:
                yield Finding(shard.name, str(error), key=keys[record])
    if not labelled:  # a split may have no labels, where others have
        return
    for record in sorted(set(range(len(keys))) - labelled):
        yield Finding(shard.name, "has no label", key=keys[record])
