"""Tar scan: read a tar of another writer, hash it, and index its usable samples.

An unusable sample is left out of the index and reported with the reason. The scan does not guess: a sample whose
members are not adjacent, or that lacks an image, may be anything.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from shardflow._rgb import is_plain_jpeg, upright_size
from shardflow.errors import DecodeError, IntegrityError, SampleError, ShardIndexError, TarError, TooLargeError
from shardflow.formats import shard_index, ustar
from shardflow.formats.annotations import NOTHING, Annotations, image_stem
from shardflow.formats.coordinates import parse_json, read_coordinates
from shardflow.formats.image_types import IMAGE_PARTS, image_type, is_jpeg
from shardflow.formats.labels import CLASS_PART, parse_labels
from shardflow.formats.shard import MAX_SAMPLE_BYTES
from shardflow.formats.shard_index import KEY_PART, Index, Row
from shardflow.formats.tar_samples import TarSample, read_samples
from shardflow.storage.interface import Storage

from .selection import select_rows
from .shard_rows import member_key
from .tar_file import TarFile, open_tar

_HEAD_BYTES = 64


class EndSample(NamedTuple):
    """The first or the last sample of a tar: its key, its parts, and whether it is in the index."""

    key: str
    parts: frozenset[str]
    indexed: bool


class OtherSize(NamedTuple):
    """A sample whose JSON with coordinates states another width and height than its image has.

    This alone is not an error: the size may be that of the image before it was resized, and the coordinates may fit.
    The coordinates belong to another image if some of them lie beyond this one (`is_beyond`).
    """

    key: str
    reason: str
    is_beyond: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedTar:
    """The size and SHA-256 of a tar, and the index and the labels of its usable samples."""

    bytes: int
    sha256: str
    index: Index
    labels: frozenset[int]
    undecodable: list[str]  # keys of indexed samples whose image has no known signature
    bad: dict[str, str]  # key → why the sample cannot be used; key "" for everything after the damage in a tar
    other_sizes: dict[int, OtherSize]  # record → the sample, if its JSON states another size than its image has
    lacking: dict[int, tuple[str, str]]  # record → key and reason, if the sample lacks declared parts
    first: EndSample
    last: EndSample


def scan_tar(storage: Storage, name: str, annotations: Annotations = NOTHING) -> ScannedTar:
    """Scan a tar, reading it once from start to end; `annotations` are those declared for its samples."""
    with open_tar(storage, name, hashed=True) as tar:
        scan = _Scan(tar, annotations)
        try:
            for sample in read_samples(tar, storage.url(name)):
                scan.add(sample)
        except TarError as error:
            raise error.with_location(shard=storage.url(name)) from None
        return scan.result()


class _Usable(NamedTuple):
    key: str
    labels: tuple[int, ...]
    other_size: OtherSize | None
    is_image: bool


class _Scan:
    """The samples of a tar that have been read so far."""

    def __init__(self, tar: TarFile, annotations: Annotations) -> None:
        self._tar, self._annotations = tar, annotations
        self._rows = shard_index.IndexRows()
        self._members = 0
        self._usable: list[_Usable] = []  # by record
        self._keys: dict[str, frozenset[str]] = {}  # key → parts of its first sample
        self._bad: dict[str, str] = {}
        self._ends: tuple[TarSample, TarSample] | None = None

    def add(self, sample: TarSample) -> None:
        """Read and add the next sample."""
        if sample.key:
            self._ends = (self._ends[0] if self._ends else sample, sample)
        self._members += len(sample.parts) + 1
        shard_index.check_rows(self._members)
        try:
            if (before := self._keys.setdefault(sample.key, parts := frozenset(sample.parts))) is not parts:
                is_twice = not before.isdisjoint(parts)
                raise SampleError("its key comes twice in the tar" if is_twice else "its members do not stand together")
            rows, labels = _rows(sample, self._tar, self._annotations), _labels(sample, self._tar)
            other_size = _other_size(sample, self._tar, self._annotations)
        except (SampleError, ShardIndexError, IntegrityError) as error:
            self._bad[sample.key] = str(error)
            return
        for row in rows:
            self._rows.append(row._replace(record=len(self._usable)))
        self._usable.append(_Usable(sample.key, labels, other_size, _is_image(rows, self._tar)))

    def result(self) -> ScannedTar:
        """Return the scan of the whole tar."""
        labels = frozenset(number for each in self._usable for number in each.labels)
        if labels:
            unlabelled = [each.key for each in self._usable if not each.labels]
            self._bad.update(dict.fromkeys(unlabelled, "has no label, and others in its tar have"))
        is_kept = np.array([each.key not in self._bad for each in self._usable], dtype=np.bool_)
        kept = [each for each in self._usable if each.key not in self._bad]
        lacking = [(each.key, self._annotations.missing(self._keys[each.key])) for each in kept]
        first, last = (
            EndSample(end.key, frozenset(end.parts), end.key not in self._bad)
            for end in self._ends or (TarSample(""), TarSample(""))
        )
        return ScannedTar(
            bytes=self._tar.size,
            sha256=self._tar.sha256(),
            index=select_rows(self._rows.index(), is_kept),
            labels=labels,
            undecodable=[each.key for each in kept if not each.is_image],
            bad=self._bad,
            other_sizes={record: each.other_size for record, each in enumerate(kept) if each.other_size is not None},
            lacking={record: each for record, each in enumerate(lacking) if each[1]},
            first=first,
            last=last,
        )


def _rows(sample: TarSample, tar: TarFile, annotations: Annotations) -> list[Row]:
    """Return the rows of a sample, with record 0: the record's number is not known yet."""
    if sample.problem:
        raise SampleError(sample.problem)
    images = [part for part in sample.parts if part in IMAGE_PARTS]
    if not images and not annotations.images:
        named = "; declare an image of another name by --image" * any(map(image_stem, sample.parts))
        raise SampleError(f"has no image among its parts: {', '.join(sample.parts)}{named}")
    if len(images) > 1:
        raise SampleError(f"has the images {' and '.join(images)}; write one as another part, such as mask.{images[1]}")
    for part, (offset, size) in sample.parts.items():
        if offset + size > tar.size:
            raise SampleError(f"its part {part!r} is cut short")
    begin, end = min(offset for offset, _ in sample.parts.values()), max(map(sum, sample.parts.values()))
    if (total := end - begin + ustar.BLOCK) > MAX_SAMPLE_BYTES:
        raise SampleError(f"has {total:,} bytes; {MAX_SAMPLE_BYTES:,} is the most: leave it out")
    rows, are_plain = [], True
    for part, (offset, size) in sample.parts.items():
        header = bytes(tar.read(offset - ustar.BLOCK, ustar.BLOCK))
        row = shard_index.read_row(tar, 0, part, offset, size)
        rows.append(_with_shown_size(row, tar) if row.width else row)
        are_plain = are_plain and _has_key(header, row, sample.key)
    return rows if are_plain else sorted([*rows, _key_row(sample, tar)], key=lambda row: row.offset)


def _is_image(rows: list[Row], tar: TarFile) -> bool:
    """Return whether the image of a sample, if it has one, has the signature of any image format."""
    row = next((row for row in rows if row.part.decode() in IMAGE_PARTS), None)
    return row is None or bool(row.width) or image_type(tar.read(row.offset, min(row.size, _HEAD_BYTES))) is not None


def _has_key(header: bytes, row: Row, key: str) -> bool:
    """Return whether the block before a payload holds the key. With extended headers the key is elsewhere."""
    try:
        return member_key(header, row) == key
    except IntegrityError:
        return False


def _with_shown_size(row: Row, tar: TarFile) -> Row:
    """Return the row of an image with its upright size.

    The row of a JPEG that must be turned or converted to sRGB gets the size 0: readers then look at its header, and
    do not pass it to a decoder that ignores orientation and profile.
    """
    payload = tar.read(row.offset, row.size)
    width, height = (0, 0) if is_jpeg(payload) and not is_plain_jpeg(payload) else upright_size(payload)
    return row._replace(width=width, height=height)


def _other_size(sample: TarSample, tar: TarFile, annotations: Annotations) -> OtherSize | None:
    """Return how the size in a sample's JSON with pixel coordinates differs from its image's; None if it does not."""

    def part(name: str) -> memoryview | None:
        return tar.read(*sample.parts[name]) if name in sample.parts else None

    declared = [each for each in (annotations.boxes, annotations.keypoints) if each is not None and not each.normalized]
    try:
        documents = {each.part: parse_json(each.part, part(each.part) or b"null") for each in declared}
    except DecodeError:
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
        with contextlib.suppress(DecodeError, TooLargeError):
            coordinates = read_coordinates(replace(annotations, masks=()), part, size)
            numbers = [np.zeros((1, 2)) if coordinates.boxes is None else coordinates.boxes[:, 2:]]
            if coordinates.keypoints is not None:
                numbers.append(coordinates.keypoints[..., :2].reshape(-1, 2))
            is_beyond = bool((np.concatenate(numbers) > np.add(size, 1)).any())
        return OtherSize(sample.key, reason, is_beyond)
    return None


def _key_row(sample: TarSample, tar: TarFile) -> Row:
    """Return the row that locates the key of a sample with extended headers."""
    try:
        size = len(sample.key.encode())
    except UnicodeEncodeError:
        raise SampleError("its name is not UTF-8; rename it, or pack it with `shardflow pack`") from None
    if sample.key_offset is None:
        raise SampleError("its name is nowhere in one piece; pack it with `shardflow pack`")
    return shard_index.read_row(tar, 0, KEY_PART.decode(), sample.key_offset, size)


def _labels(sample: TarSample, tar: TarFile) -> tuple[int, ...]:
    if CLASS_PART not in sample.parts:
        return ()
    try:
        return parse_labels(CLASS_PART, tar.read(*sample.parts[CLASS_PART]))
    except DecodeError as error:
        raise SampleError(f"its {error}; only `shardflow pack` can number the names of classes") from None
