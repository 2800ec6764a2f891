"""Verify: find everything that is wrong with a dataset, not only the first problem.

Each shard is compared with the manifest (size, SHA-256), with the tar format and with its index, each member with
its CRC-32, and the seek table of a JPEG, where readers use it, with its scan, which takes the native kernel. A finding
names the file and, if it concerns one sample, the sample.
"""

from __future__ import annotations

import hashlib
import logging
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shardflow import native
from shardflow.errors import DecodeError, FormatError, IntegrityError, StoreError, TarError
from shardflow.formats import seek_table, shard_index, ustar
from shardflow.formats.image_limits import MAX_PIXELS
from shardflow.formats.image_types import IMAGE_PARTS, is_jpeg
from shardflow.formats.labels import LABEL_PARTS, parse_labels
from shardflow.formats.manifest import Manifest, PackedTables
from shardflow.formats.shard import MAX_BYTES, Shard
from shardflow.formats.shard_index import Index
from shardflow.formats.tar_bytes import TarInMemory
from shardflow.storage.storage import Storage

from .dataset import Dataset
from .shard_rows import ShardRows, member_key

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of a dataset.

    Attributes:
        file: Name of the file, below the dataset.
        problem: What was expected and what was found.
        key: The key of the sample; None if the problem does not concern one sample.
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


@dataclass(frozen=True, slots=True)
class _Expected:
    """What the manifest says that the check of a shard needs beside its entry."""

    classes: int | None  # their number
    is_virtual: bool
    tables: PackedTables
    max_pixels: int | None  # of the images, None where that is not known

    @classmethod
    def by(cls, manifest: Manifest) -> _Expected:
        recipe = manifest.recipe
        return cls(
            classes=None if manifest.classes is None else len(manifest.classes),
            is_virtual=bool(manifest.roots),
            tables=manifest.packed_tables,
            max_pixels=recipe.get("max_pixels", MAX_PIXELS) if recipe else None,
        )


def verify_dataset(dataset: Dataset, *, progress: Callable[[Shard], None] | None = None) -> list[Finding]:
    """Read a whole dataset and return all damage, by split and shard; `progress` is called after each shard.

    A remote dataset is read at its URL, not in the cache. A single file that cannot be read is a finding; StoreError if
    the dataset is out of reach.
    """
    tars: dict[str, list[Shard]] = {}  # shards of a virtual dataset can share a tar, which is read once
    for shard in dataset.shards:
        tars.setdefault(dataset.storage.url(shard.name), []).append(shard)
    findings: list[Finding] = []
    expected = _Expected.by(dataset.manifest)
    if any(shard.name in expected.tables for shard in dataset.shards) and (reason := native.limitation()):
        logger.warning("seek tables are not compared with their images, because here none can be made: %s", reason)
    for shards in tars.values():
        tar = _read_tar(dataset.storage, shards[0].name)
        for shard in shards:
            findings += _verify(dataset.storage, shard, tar, expected)
            if progress is not None:
                progress(shard)
        del tar  # frees its memory before the next one is read
    return findings


def verify_shard(dataset: Dataset, shard: Shard) -> Iterator[Finding]:
    """Yield everything that is wrong with a shard of a dataset."""
    tar = _read_tar(dataset.storage, shard.name)
    yield from _verify(dataset.storage, shard, tar, _Expected.by(dataset.manifest))


def _read_tar(storage: Storage, name: str) -> tuple[memoryview, str] | StoreError:
    """Return the bytes of a tar and their SHA-256."""
    try:
        data = storage.read(name, most_bytes=MAX_BYTES)
    except StoreError as error:
        return error
    return memoryview(data), hashlib.sha256(data).hexdigest()


def _verify(
    storage: Storage, shard: Shard, read: tuple[memoryview, str] | StoreError, expected: _Expected
) -> Iterator[Finding]:
    index_findings, index = _read_index(storage, shard)
    yield from index_findings
    if isinstance(read, StoreError):
        yield Finding(shard.name, str(read))
        return
    tar, sha256 = read
    if len(tar) != shard.bytes:
        yield Finding(shard.name, f"has {len(tar)} bytes, the manifest says {shard.bytes}")
    if sha256 != shard.sha256:
        yield Finding(shard.name, "its SHA-256 differs from the manifest's")
    if expected.is_virtual:  # its index has only some samples of the tar
        if index is not None:
            yield from _verify_records(index, shard, tar, expected)
        return
    try:
        rebuilt, keys = shard_index.build(TarInMemory(tar))
    except FormatError as error:
        yield Finding(shard.name, str(error))
        if index is not None and not index_findings and len(tar) == shard.bytes:
            yield from _verify_members(index, shard, tar, reported=str(error))
        return
    if len(keys) != shard.samples:
        yield Finding(shard.name, f"holds {len(keys)} samples, the manifest says {shard.samples}")
    if index is not None:
        yield from _compare_indexes(index, shard, rebuilt, keys)
    yield from _verify_seek_tables(shard, tar, rebuilt, keys, expected)
    if expected.classes is not None:
        yield from _verify_labels(shard, tar, rebuilt, keys, expected.classes, strict=True)


def _read_index(storage: Storage, shard: Shard) -> tuple[list[Finding], Index | None]:
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


def _compare_indexes(index: Index, shard: Shard, rebuilt: Index, keys: list[str]) -> Iterator[Finding]:
    """Compare the index of a shard with the index rebuilt from its tar, member by member."""
    if len(index) != len(rebuilt):
        yield Finding(shard.index_name, f"has {len(index)} members, the shard has {len(rebuilt)}")
    columns = shard_index.DTYPE.names or ()
    for expected, found in zip(index.tolist(), rebuilt.tolist(), strict=False):
        if expected != found:
            differing = [name for name, a, b in zip(columns, expected, found, strict=True) if a != b]
            problem = f"part {found[1].decode()!r} differs from the index in {', '.join(differing)}"
            yield Finding(shard.name, problem, key=keys[found[0]])


def _verify_members(index: Index, shard: Shard, tar: memoryview, *, reported: str) -> Iterator[Finding]:
    """Check each member where the index has it: the walk ended at a damaged header, whose problem is `reported`."""
    for record, name, offset, size, crc32, *_ in index.tolist():
        where = f"record {record}, part {name.decode()!r}"
        try:
            ustar.parse(bytes(tar[offset - ustar.BLOCK : offset]), offset)
        except TarError as error:
            if str(error) != reported:
                yield Finding(shard.name, f"{where}: {error}")
        if zlib.crc32(tar[offset : offset + size]) != crc32:
            yield Finding(shard.name, f"{where}: its CRC-32 differs")


def _verify_records(index: Index, shard: Shard, tar: memoryview, expected: _Expected) -> Iterator[Finding]:
    """Check the records that the index has, and nothing else in the tar."""
    rows, keys = ShardRows.from_index(index, shard.samples), [f"record {record}" for record in range(shard.samples)]
    for record in range(shard.samples):
        try:
            keys[record] = rows.key(record, tar)
            for row in () if record in rows.keys else rows.of_record(record):
                member_key(bytes(tar[row[2] - ustar.BLOCK : row[2]]), row)
        except IntegrityError as error:
            yield Finding(shard.name, str(error))
        for _, name, offset, size, crc32, *_ in rows.of_record(record):
            if zlib.crc32(tar[offset : offset + size]) != crc32:
                yield Finding(shard.name, f"part {name.decode()!r}: its CRC-32 differs", key=keys[record])
    yield from _verify_seek_tables(shard, tar, index, keys, expected)
    if expected.classes is not None:
        yield from _verify_labels(shard, tar, index, keys, expected.classes, strict=False)  # tars of other writers


def _verify_seek_tables(
    shard: Shard, tar: memoryview, index: Index, keys: list[str], expected: _Expected
) -> Iterator[Finding]:
    """Check the tables that readers use: of images, in shards whose pack made them."""
    for record, name, offset, size, _, width, height in index.tolist() if shard.name in expected.tables else ():
        jpeg = tar[offset : offset + size]
        if name.decode() not in IMAGE_PARTS or not is_jpeg(jpeg) or (segment := seek_table.find(jpeg)) is None:
            continue
        # A merge of datasets with different recipes does not say what each allowed.
        most = expected.max_pixels or max(MAX_PIXELS, width * height)
        if not native.limitation():
            if segment != native.seek_table(jpeg, max_pixels=most):
                problem = "its seek table is not that of its scan: crops of it can be wrong"
                yield Finding(shard.name, problem, key=keys[record])
            continue
        try:
            seek_table.read(segment)
        except FormatError as error:
            yield Finding(shard.name, f"its seek table cannot be read: {error}", key=keys[record])


def _verify_labels(
    shard: Shard, tar: memoryview, index: Index, keys: list[str], classes: int, *, strict: bool
) -> Iterator[Finding]:
    labelled = set()
    for record, name, offset, size, *_ in index.tolist():
        if (part := name.decode()) in LABEL_PARTS:
            labelled.add(record)
            try:
                parse_labels(part, tar[offset : offset + size], classes=classes, strict=strict)
            except DecodeError as error:
                yield Finding(shard.name, str(error), key=keys[record])
    if labelled:  # a split may have no labels at all
        for record in sorted(set(range(len(keys))) - labelled):
            yield Finding(shard.name, "has no label", key=keys[record])
