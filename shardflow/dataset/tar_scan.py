"""Tar scan: read a tar of another writer, checksum it, and index the samples that can be used.

A sample that cannot be used is left out of the index and reported with the reason. Nothing is guessed: a sample whose
members do not stand together, or that has no image, may be anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import mmap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, NamedTuple

from shardflow.errors import DecodeError, IntegrityError, SampleError, ShardIndexError
from shardflow.formats import shard_index, ustar
from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.formats.labels import CLASS_PART, parse_labels
from shardflow.formats.shard_index import KEY_PART, Index, Row
from shardflow.formats.tar_samples import TarSample, read_samples
from shardflow.storage.local_files import map_os_errors
from shardflow.storage.storage import Storage

from .shard_rows import member_key


class EndSample(NamedTuple):
    """The first or the last sample of a tar: its key, its parts, and whether it is in the index."""

    key: str
    parts: frozenset[str]
    indexed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedTar:
    """The size and SHA-256 of a tar, and its samples: the index and the labels of those that can be used."""

    bytes: int
    sha256: str
    index: Index
    labels: frozenset[int]
    bad: dict[str, str]  # key → why the sample cannot be used; key "" for everything behind the damage of a tar
    first: EndSample
    last: EndSample


def scan_tar(storage: Storage, name: str) -> ScannedTar:
    """Read a tar."""
    with _opened(storage, name) as (file, tar):
        samples = list(read_samples(file))
        keys = Counter(sample.key for sample in samples)
        bad: dict[str, str] = {}
        usable: list[tuple[str, list[Row], set[int]]] = []
        for sample in samples:
            try:
                if keys[sample.key] > 1:
                    raise SampleError("its members do not stand together")
                usable.append((sample.key, _rows(sample, tar), _label(sample, tar)))
            except (SampleError, ShardIndexError, IntegrityError) as error:
                bad[sample.key] = str(error)
        labels = frozenset(number for _, _, label in usable for number in label)
        if labels:
            bad.update({key: "has no label, and others in its tar have" for key, _, label in usable if not label})
        indexed = [rows for key, rows, _ in usable if key not in bad]
        named = [sample for sample in samples if sample.key] or [TarSample("")]
        first, last = (EndSample(end.key, frozenset(end.parts), end.key not in bad) for end in (named[0], named[-1]))
        return ScannedTar(
            bytes=len(tar),
            sha256=hashlib.sha256(tar).hexdigest(),
            index=shard_index.from_rows([row._replace(record=n) for n, rows in enumerate(indexed) for row in rows]),
            labels=labels,
            bad=bad,
            first=first,
            last=last,
        )


@contextlib.contextmanager
def _opened(storage: Storage, name: str) -> Iterator[tuple[IO[bytes], memoryview]]:
    """Open a tar as a file and as bytes; a remote tar is read into memory whole."""
    path = storage.local_path(name)
    if path is None:
        data = storage.read(name)
        yield io.BytesIO(data), memoryview(data)
        return
    with map_os_errors(path), open(path, "rb") as file:
        if not path.stat().st_size:  # an empty file cannot be mapped
            yield file, memoryview(b"")
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as tar:
            yield file, tar


def _rows(sample: TarSample, tar: memoryview) -> list[Row]:
    """Return the rows of a sample, with record 0: the number of the record is not known yet."""
    if sample.problem:
        raise SampleError(sample.problem)
    if not IMAGE_PARTS & sample.parts.keys():
        raise SampleError(f"has no image among its parts: {', '.join(sample.parts)}")
    rows = []
    for part, (offset, size) in sample.parts.items():
        if offset + size > len(tar):
            raise SampleError(f"its part {part!r} is cut short")
        rows.append(shard_index.make_row(0, part, offset, tar[offset : offset + size]))
    # Readers look for the key in the block before the payload. With extended headers it is elsewhere.
    with contextlib.suppress(IntegrityError):
        if all(member_key(bytes(tar[row.offset - ustar.BLOCK : row.offset]), row) == sample.key for row in rows):
            return rows
    return sorted([*rows, _key_row(sample, tar)], key=lambda row: row.offset)


def _key_row(sample: TarSample, tar: memoryview) -> Row:
    """Return the row that says where the key of a sample with extended headers is."""
    try:
        size = len(sample.key.encode())
    except UnicodeEncodeError:
        raise SampleError("its name is not UTF-8; rename it, or write it anew with `shardflow pack`") from None
    if sample.key_offset is None:
        raise SampleError("its name is nowhere in one piece; write it anew with `shardflow pack`")
    offset = sample.key_offset
    return shard_index.make_row(0, KEY_PART.decode(), offset, tar[offset : offset + size])


def _label(sample: TarSample, tar: memoryview) -> set[int]:
    if CLASS_PART not in sample.parts:
        return set()
    offset, size = sample.parts[CLASS_PART]
    try:
        return set(parse_labels(CLASS_PART, tar[offset : offset + size]))
    except DecodeError as error:
        raise SampleError(f"its {error}; only `shardflow pack` can number the names of classes") from None
