"""Tar scan: read a tar of another writer, checksum it, and index the samples that can be used.

A sample that cannot be used is left out of the index and reported with the reason. Nothing is guessed: a sample whose
members do not stand together, or that has no image, may be anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import mmap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import IO, NamedTuple

import numpy as np

from shardflow._rgb import is_plain_jpeg, upright_size
from shardflow.errors import DecodeError, IntegrityError, SampleError, ShardIndexError
from shardflow.formats import shard_index, ustar
from shardflow.formats.annotations import NOTHING, Annotations
from shardflow.formats.coordinates import read_coordinates
from shardflow.formats.image_types import IMAGE_PARTS, is_jpeg
from shardflow.formats.labels import CLASS_PART, parse_labels
from shardflow.formats.shard import MAX_BYTES
from shardflow.formats.shard_index import KEY_PART, Index, Row
from shardflow.formats.tar_samples import TarSample, read_samples
from shardflow.storage.interface import Storage
from shardflow.storage.local_files import map_os_errors

from .shard_rows import member_key


class EndSample(NamedTuple):
    """The first or the last sample of a tar: its key, its parts, and whether it is in the index."""

    key: str
    parts: frozenset[str]
    indexed: bool


class OtherSize(NamedTuple):
    """A sample whose JSON with coordinates has another width and height than its image.

    That alone is not a mistake: the size may be that of the image before it was resized, and the coordinates may fit.
    They belong to another image if some of them lie beyond this one.
    """

    key: str
    reason: str
    is_beyond: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedTar:
    """The size and SHA-256 of a tar, and its samples: the index and the labels of those that can be used."""

    bytes: int
    sha256: str
    index: Index
    labels: frozenset[int]
    bad: dict[str, str]  # key → why the sample cannot be used; key "" for everything behind the damage of a tar
    other_sizes: dict[int, OtherSize]  # record → a sample whose JSON has another width and height than its image
    first: EndSample
    last: EndSample


def scan_tar(storage: Storage, name: str, annotations: Annotations = NOTHING) -> ScannedTar:
    """Read a tar, in which these annotations are declared."""
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
        kept = [sample for sample in samples if sample.key not in bad]
        named = [sample for sample in samples if sample.key] or [TarSample("")]
        first, last = (EndSample(end.key, frozenset(end.parts), end.key not in bad) for end in (named[0], named[-1]))
        return ScannedTar(
            bytes=len(tar),
            sha256=hashlib.sha256(tar).hexdigest(),
            index=shard_index.from_rows([row._replace(record=n) for n, rows in enumerate(indexed) for row in rows]),
            labels=labels,
            bad=bad,
            other_sizes={
                record: found
                for record, sample in enumerate(kept)
                if (found := _other_size(sample, tar, annotations)) is not None
            },
            first=first,
            last=last,
        )


@contextlib.contextmanager
def _opened(storage: Storage, name: str) -> Iterator[tuple[IO[bytes], memoryview]]:
    """Open a tar as a file and as bytes; a remote tar is read into memory whole."""
    path = storage.local_path(name)
    if path is None:
        data = storage.read(name, most_bytes=MAX_BYTES)
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
        payload = tar[offset : offset + size]
        rows.append(_with_shown_size(shard_index.make_row(0, part, offset, payload), payload))
    # Readers look for the key in the block before the payload. With extended headers it is elsewhere.
    with contextlib.suppress(IntegrityError):
        if all(member_key(bytes(tar[row.offset - ustar.BLOCK : row.offset]), row) == sample.key for row in rows):
            return rows
    return sorted([*rows, _key_row(sample, tar)], key=lambda row: row.offset)


def _with_shown_size(row: Row, payload: memoryview) -> Row:
    """Return the row of an image with the size that it has when it is shown.

    Of a JPEG that its metadata turn, or that has other colours than sRGB, the size is left open: readers then look at
    its header, and do not give it to a decoder that ignores them.
    """
    if not row.width:
        return row
    width, height = (0, 0) if is_jpeg(payload) and not is_plain_jpeg(payload) else upright_size(payload)
    return row._replace(width=width, height=height)


def _other_size(sample: TarSample, tar: memoryview, annotations: Annotations) -> OtherSize | None:
    """Return the mistake in the size that a sample's JSON gives with coordinates in pixels; None if there is none."""

    def part(name: str) -> memoryview | None:
        offset, size = sample.parts.get(name, (0, 0))
        return tar[offset : offset + size] if name in sample.parts else None

    declared = [each for each in (annotations.boxes, annotations.keypoints) if each is not None and not each.normalized]
    try:
        documents = {each.part: json.loads(bytes(part(each.part) or b"null")) for each in declared}
    except (ValueError, RecursionError):
        return None  # which is said when it is loaded
    for name, document in documents.items():
        given = (document.get("width"), document.get("height")) if isinstance(document, dict) else ()
        image = next((part(each) for each in sample.parts if each in IMAGE_PARTS), None)
        if not given or image is None or not all(type(side) is int and side > 0 for side in given):
            continue
        size = upright_size(image)
        if not size[0] or size == given:
            continue
        wanted, found = ("{}x{}".format(*each) for each in (given, size))
        reason = f"its {name} is of an image with {wanted} pixels, and this one has {found}"
        is_beyond = False
        with contextlib.suppress(DecodeError):
            coordinates = read_coordinates(replace(annotations, masks=()), part, size)
            numbers = [np.zeros((1, 2)) if coordinates.boxes is None else coordinates.boxes[:, 2:]]
            if coordinates.keypoints is not None:
                numbers.append(coordinates.keypoints[..., :2].reshape(-1, 2))
            is_beyond = bool((np.concatenate(numbers) > np.add(size, 1)).any())
        return OtherSize(sample.key, reason, is_beyond)
    return None


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
