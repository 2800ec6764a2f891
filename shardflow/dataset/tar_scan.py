"""Scan: a tar that somebody else wrote, read through: its checksum, and an index of the samples that are whole.

What cannot be used is named with its reason and left out of the index. Nothing is guessed: a sample whose members do
not stand together, or which has no image, may be anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import mmap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np

from shardflow.errors import DecodeError, IntegrityError, SampleError, ShardIndexError
from shardflow.formats import shard_index, ustar
from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.formats.labels import CLASS_PART, parse_labels
from shardflow.formats.shard_index import KEY_PART, Index, Row
from shardflow.formats.tar_samples import TarSample, read_samples
from shardflow.storage.local_files import map_os_errors
from shardflow.storage.storage import Storage

from .mapped_shard import member_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """What is in a tar.

    Attributes:
        bytes, sha256: Of the tar.
        index: Of the samples that can be used.
        labels: The numbers in their `.cls`.
        bad: Key → what is wrong, of the others; "" for what lies beyond the point where the tar is damaged.
        ends: Keys of the first and the last sample, each with its parts.
        used: Whether these two are in the index.
    """

    bytes: int
    sha256: str
    index: Index
    labels: frozenset[int]
    bad: dict[str, str]
    ends: tuple[tuple[str, frozenset[str]], tuple[str, frozenset[str]]]
    used: tuple[bool, bool]


def scan(storage: Storage, name: str) -> Scanned:
    """Read a tar.

    Raises:
        StoreError: It is missing or out of reach.
    """
    with _opened(storage, name) as (file, tar):
        samples = list(read_samples(file))
        keys = Counter(sample.key for sample in samples)
        bad: dict[str, str] = {}
        labels: set[int] = set()
        labelled: list[tuple[TarSample, bool]] = []
        rows: list[list[Row]] = []
        for sample in samples:
            try:
                if keys[sample.key] > 1:
                    raise SampleError("its members do not stand together")
                its_rows = _rows(sample, tar)
                label = _label(sample, tar)
            except (SampleError, ShardIndexError, IntegrityError) as error:
                bad[sample.key] = str(error)
                continue
            labels |= label
            labelled.append((sample, bool(label)))
            rows.append(its_rows)
        if labels:
            for sample, has_one in labelled:
                if not has_one:
                    bad[sample.key] = "has no label, and others in its tar have"
        good = [its_rows for its_rows, (sample, _) in zip(rows, labelled, strict=True) if sample.key not in bad]
        flat = [row._replace(record=record) for record, its_rows in enumerate(good) for row in its_rows]
        named = [sample for sample in samples if sample.key] or [TarSample("")]
        first, last = named[0], named[-1]
        return Scanned(
            bytes=len(tar),
            sha256=hashlib.sha256(tar).hexdigest(),
            index=shard_index.from_rows(flat),
            labels=frozenset(labels),
            bad=bad,
            ends=((first.key, frozenset(first.parts)), (last.key, frozenset(last.parts))),
            used=(first.key not in bad, last.key not in bad),
        )


def without_end(index: Index, end: int) -> Index:
    """Return an index without its first record (end 0) or its last one (end -1)."""
    cut: Index = index[index["record"] != (0 if end == 0 else index["record"][-1])].copy()
    cut["record"] -= np.uint32(1 if end == 0 else 0)
    return cut


@contextlib.contextmanager
def _opened(storage: Storage, name: str) -> Iterator[tuple[IO[bytes], memoryview]]:
    """Lend a tar as a file and as bytes; one that is far away is read whole, into memory."""
    path = storage.local_path(name)
    if path is None:
        data = storage.read(name)
        yield io.BytesIO(data), memoryview(data)
        return
    with map_os_errors(path), open(path, "rb") as file:
        if not path.stat().st_size:  # which cannot be mapped
            yield file, memoryview(b"")
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as tar:
            yield file, tar


def _rows(sample: TarSample, tar: memoryview) -> list[Row]:
    """Return the rows of a sample; their record is not known yet."""
    if sample.problem:
        raise SampleError(sample.problem)
    if not IMAGE_PARTS & sample.parts.keys():
        raise SampleError(f"has no image among its parts: {', '.join(sample.parts)}")
    rows, plain = [], True
    for part, (offset, size) in sample.parts.items():
        if offset + size > len(tar):
            raise SampleError(f"its part {part!r} is cut short")
        row = shard_index.make_row(0, part, offset, tar[offset : offset + size])
        # Readers look for the key where the plainest tars have it: in the block before the payload.
        plain = plain and _is_plain(bytes(tar[offset - ustar.BLOCK : offset]), row, sample.key)
        rows.append(row)
    return rows if plain else sorted([*rows, _key_row(sample, tar)], key=lambda row: row.offset)


def _is_plain(header: bytes, row: Row, key: str) -> bool:
    try:
        return member_key(header, row) == key
    except IntegrityError:
        return False


def _key_row(sample: TarSample, tar: memoryview) -> Row:
    """Return the row that says where the key of a sample is, whose members have other headers than the plainest."""
    try:
        size = len(sample.key.encode())
    except UnicodeEncodeError:
        raise SampleError("its name is not UTF-8; rename it, or write it anew with `shardflow pack`") from None
    if sample.key_offset is None:
        raise SampleError("its name is nowhere in one piece; write it anew with `shardflow pack`")
    offset = sample.key_offset
    return shard_index.make_row(0, KEY_PART.decode(), offset, tar[offset : offset + size])


def _label(sample: TarSample, tar: memoryview) -> set[int]:
    """Return the number in `.cls`, if there is one."""
    if CLASS_PART not in sample.parts:
        return set()
    offset, size = sample.parts[CLASS_PART]
    try:
        return set(parse_labels(CLASS_PART, tar[offset : offset + size]))
    except DecodeError as error:
        raise SampleError(f"its {error}; only `shardflow pack` can number the names of classes") from None
