"""The index of a shard, read from a storage, and its rows grouped by record."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Container
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardflow.errors import IntegrityError, ShardIndexError, TarError
from shardflow.formats import shard_index, ustar
from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.formats.shard import MAX_SAMPLE_BYTES, Shard
from shardflow.formats.shard_index import Index
from shardflow.formats.tar_members import parse_header
from shardflow.formats.tar_samples import split_member_name
from shardflow.storage.interface import MAX_READ_BYTES, Storage

from .sample import Sample

Row = tuple[int, bytes, int, int, int, int, int]
"""A row of the index as a plain tuple: record, part, offset, size, CRC-32, width, height."""

LOST_INDEX = (
    "restore it from a copy, or make the dataset again in a new place (`shardflow index`, `subset`, `split`, …)"
)
"""The remedy for an index that cannot be rebuilt, as that of a virtual dataset with a part of a tar's samples."""

_MAX_KEY_BYTES = 1 << 20


class ShardRows(NamedTuple):
    """The rows of a shard's index, by record."""

    members: list[Row]
    bounds: list[int]  # record → where its rows begin in `members`; one more entry for the end
    keys: dict[int, Row]  # record → the row of its key, for records whose members have extended headers

    @classmethod
    def from_index(cls, index: Index, samples: int) -> ShardRows:
        """Group the rows of an index of `samples` samples."""
        are_keys = index["part"] == shard_index.KEY_PART
        members = index[~are_keys]
        bounds = np.searchsorted(members["record"], np.arange(samples + 1)).tolist()
        return cls(members.tolist(), bounds, {row[0]: row for row in index[are_keys].tolist()})

    def of_record(self, record: int) -> list[Row]:
        """Return the rows of a record's members."""
        return self.members[self.bounds[record] : self.bounds[record + 1]]

    def parts(self) -> set[str]:
        """Return the names of all parts that any sample has."""
        return {row[1].decode() for row in self.members}

    def image_sizes(self) -> npt.NDArray[np.int64]:
        """Return width and height of each sample's image: int64 [samples, 2], zeros if they are not known."""
        sizes = np.zeros((len(self.bounds) - 1, 2), dtype=np.int64)
        for record, name, _, _, _, width, height in reversed(self.members):  # of several images, the first counts
            if name.decode() in IMAGE_PARTS:
                sizes[record] = width, height
        return sizes

    def payload_span(self, record: int, unused: Container[str] = ()) -> tuple[int, int, int]:
        """Return the bytes of the tar that hold the payloads of a record, without `unused` parts: begin, end, and sum.

        Raises:
            IntegrityError: The payloads have more bytes than a sample may have.
        """
        spans = [
            (row[2], row[2] + row[3]) for row in self.of_record(record) if not unused or row[1].decode() not in unused
        ]
        total = sum(end - begin for begin, end in spans)
        if total > MAX_SAMPLE_BYTES:
            raise IntegrityError(f"its parts have {total:,} bytes; {MAX_SAMPLE_BYTES:,} is the most; leave it out")
        return min(spans, default=(0, 0))[0], max((end for _, end in spans), default=0), total

    def span(self, record: int) -> tuple[int, int]:
        """Return the bytes of the tar that hold the key and the payloads of a record: begin, end.

        Raises:
            IntegrityError: The span has more bytes than a sample may have.
        """
        begin, end, _ = self.payload_span(record)
        begin = min(self.key_span(record)[0], begin)
        if end - begin > MAX_SAMPLE_BYTES:
            raise IntegrityError(f"its parts lie within {end - begin:,} bytes of the tar; pack it again")
        return begin, end

    def key_span(self, record: int) -> tuple[int, int]:
        """Return the bytes of the tar that hold the key of a record: begin, end."""
        if record in self.keys:
            _, _, offset, size, *_ = self.keys[record]
            if size > _MAX_KEY_BYTES:
                raise IntegrityError(f"record {record}: its name has {size:,} bytes; index the tar again")
            return offset, offset + size
        payload = self.members[self.bounds[record]][2]
        return payload - ustar.BLOCK, payload

    def sample(
        self,
        record: int,
        read: Callable[[int, int], memoryview],
        *,
        shard: int,
        url: str,
        key: str | Callable[[int], str],
        unused: Container[str] = (),
    ) -> Sample:
        """Return a sample without `unused` parts; `read(begin, end)` returns bytes of the tar.

        The CRC-32 of each part is checked.
        """
        parts: dict[str, memoryview] = {}
        image_size = None
        for _, name, offset, size, crc32, width, height in self.of_record(record):
            part = name.decode()
            if image_size is None and part in IMAGE_PARTS:
                image_size = width, height
            if part in unused:
                continue
            payload = read(offset, offset + size)
            if zlib.crc32(payload) != crc32:
                message = f"part {part!r} is damaged (its CRC-32 differs); run `shardflow verify`"
                # No variable for the error: its traceback would keep the tar in memory.
                raise Sample(parts, (0, 0), shard, record, url, key).with_sample(IntegrityError(message))
            parts[part] = payload
        return Sample(parts, image_size or (0, 0), shard, record, url, key)

    def sample_of_span(self, record: int, data: memoryview, *, shard: int, url: str) -> Sample:
        """Return a sample from the bytes of its span; the key and the parts are checked."""
        begin, end = self.span(record)
        try:
            key = self.key(record, data, begin)
        except IntegrityError as error:
            raise error.with_location(shard=url) from error.__cause__
        if len(data) != end - begin:
            message = f"the tar ends {end - begin - len(data)} bytes too early; run `shardflow verify`"
            raise IntegrityError(message).with_location(shard=url, key=key)
        return self.sample(record, reader_of(data, begin), shard=shard, url=url, key=key)

    def key(self, record: int, tar: memoryview, begin: int = 0) -> str:
        """Return the key of a record from `tar`, the bytes of its tar from `begin` on."""
        if record not in self.keys:
            row = self.members[self.bounds[record]]
            return member_key(bytes(tar[row[2] - ustar.BLOCK - begin : row[2] - begin]), row)
        _, _, offset, size, crc32, _, _ = self.keys[record]
        key = bytes(tar[offset - begin : offset - begin + size])
        if zlib.crc32(key) != crc32:
            raise IntegrityError(f"record {record}: its name is damaged (its CRC-32 differs); run `shardflow verify`")
        return key.decode(errors="replace")


def reader_of(data: memoryview, begin: int) -> Callable[[int, int], memoryview]:
    """Return a reader of the bytes of a tar from `begin` on."""
    return lambda start, stop: data[start - begin : stop - begin]


def member_key(header: bytes, row: Row) -> str:
    """Return the key in the header of a member; IntegrityError if the header does not match its row of the index."""
    record, part, offset, size, *_ = row
    try:
        member = parse_header(header, offset - ustar.BLOCK)
    except TarError as error:
        raise IntegrityError(f"record {record}: {error}; run `shardflow verify`") from error
    name = member.name.decode(errors="replace")
    key, found = split_member_name(name) or ("", "")
    # The index of another writer's tar has parts in lower case; the tar may have upper case.
    if found.lower() != part.decode().lower() or member.size != size:
        raise IntegrityError(f"record {record}: member {name!r} is not the one packed here; run `shardflow verify`")
    return key


def read_index(storage: Storage, shard: Shard) -> Index:
    """Return the index of a shard from its storage, verified."""
    return parse_index(storage, shard, read_index_bytes(storage, shard))


def parse_index(storage: Storage, shard: Shard, data: bytes) -> Index:
    """Return an index from its bytes, whose SHA-256 has been checked."""
    try:
        return shard_index.from_bytes(data, samples=shard.samples, tar_bytes=shard.bytes)
    except ShardIndexError as error:
        raise error.with_location(shard=storage.url(shard.name)) from None


def read_index_bytes(storage: Storage, shard: Shard) -> bytes:
    """Return the bytes of a shard's index from its storage, checked against its SHA-256 in the manifest."""
    data = storage.read(
        shard.index_name, most_bytes=min(MAX_READ_BYTES, shard_index.most_bytes(shard.samples, shard.bytes))
    )
    if hashlib.sha256(data).hexdigest() != shard.index_sha256:
        raise IntegrityError(f"{storage.url(shard.index_name)} is not the index packed; run `shardflow verify`")
    return data
