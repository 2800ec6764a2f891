"""One shard mapped into memory: its samples are slices of the map.

Nothing of `tarfile` is on this path: the index says where each member lies, and the tar around it is only looked at
for a sample's key. A missing or damaged index is rebuilt from the tar, and the manifest's SHA-256 says whether the
result is the right one.
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardflow.errors import FormatError, IntegrityError, NotFoundError, TarError
from shardflow.formats import shard_index, ustar
from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.formats.manifest import Shard
from shardflow.formats.tar_samples import split_member_name
from shardflow.storage.local_files import map_os_errors

from .shard_files import ShardFiles

Sample = dict[str, memoryview]
"""Part → payload."""

Row = tuple[int, bytes, int, int, int, int, int]
"""A row of the index, as shardindex.Row."""


class Rows(NamedTuple):
    """The index of a shard.

    Attributes:
        members: A row each.
        bounds: Where those of each record begin, and where the last ones end.
        keys: Record → where its key is, of those whose members have extended headers.
    """

    members: list[Row]
    bounds: list[int]
    keys: dict[int, Row]

    def of(self, record: int) -> list[Row]:
        """Return the members of a record."""
        return self.members[self.bounds[record] : self.bounds[record + 1]]

    def span(self, record: int) -> tuple[int, int]:
        """Return where a record begins in the tar, with all that is needed to tell its key, and where it ends."""
        rows = self.of(record)
        begin = rows[0][2] - ustar.BLOCK
        if record in self.keys:
            begin = min(begin, self.keys[record][2])
        return begin, max(offset + size for _, _, offset, size, *_ in rows)

    def cut(self, record: int, span: memoryview, url: str) -> tuple[str, Sample]:
        """Return the key and the parts of a record out of the bytes of its span, each checked, without copying.

        Raises:
            IntegrityError: They are not what the index says. The error names the shard, which messages call `url`.
        """
        begin, _ = self.span(record)
        try:
            key = self.key(record, span, begin)
        except IntegrityError as error:
            raise error.at(shard=url) from error.__cause__
        parts: Sample = {}
        for _, part, offset, size, crc32, *_ in self.of(record):
            parts[part.decode()] = payload = span[offset - begin : offset - begin + size]
            if len(payload) != size or zlib.crc32(payload) != crc32:  # the tar may have been cut short
                raise _damaged(part.decode()).at(shard=url, key=key)
        return key, parts

    def key(self, record: int, tar: memoryview, begin: int = 0) -> str:
        """Return the key of a record: its members' common name without the part.

        Args:
            record: Which.
            tar: The tar, or what it has from byte `begin` on.
            begin: Where that is.

        Raises:
            IntegrityError: The header that holds it is damaged, or not that of the member which the index has here.
        """
        if record not in self.keys:
            row = self.members[self.bounds[record]]
            return member_key(bytes(tar[row[2] - ustar.BLOCK - begin : row[2] - begin]), row)
        _, _, offset, size, crc32, _, _ = self.keys[record]
        key = bytes(tar[offset - begin : offset - begin + size])
        if zlib.crc32(key) != crc32:
            raise IntegrityError(f"record {record}: its name is damaged (its CRC-32 differs); run `shardflow verify`")
        return key.decode(errors="replace")


class MappedShard:
    """An open shard.

    Args:
        files: Where its files are opened.
        shard: The shard's line in the manifest.

    Raises:
        StoreError: The tar is missing or out of reach.
        IntegrityError: The tar's size or the index is not what the manifest says.
    """

    def __init__(self, files: ShardFiles, shard: Shard) -> None:
        self.url, self.sha256 = files.url(shard), shard.sha256
        self._files, self._shard, self._renewed = files, shard, False
        self._map = _map(files, shard)
        self._bytes = memoryview(self._map)
        self._rows = packed_rows(files, shard) or _rebuilt_rows(files, shard, self._bytes)

    def sample(self, record: int, *, check: bool, unchecked: Collection[str] = ()) -> Sample:
        """Return the parts of a sample, without copying; each payload is checked by its CRC-32 if asked.

        Those of the parts that are named in `unchecked` are not looked at.

        Raises:
            IntegrityError: A payload is damaged. The error names the shard and the key.
        """
        parts: Sample = {}
        for row in self._rows.of(record):
            _, name, offset, size, crc32, _, _ = row
            part, payload = name.decode(), self._bytes[offset : offset + size]
            damaged = check and part not in unchecked and zlib.crc32(payload) != crc32
            parts[part] = self._sound(row) if damaged else payload
        return parts

    def part(self, record: int, name: str) -> memoryview | None:
        """Return one part of a sample, checked by its CRC-32; None where the sample has none of that name.

        Raises:
            IntegrityError: It is damaged. The error names the shard and the key.
        """
        found = next((row for row in self._rows.of(record) if row[1].decode() == name), None)
        return None if found is None else self._sound(found)

    def image_sizes(self) -> npt.NDArray[np.int64]:
        """Return width and height of each sample's image: int64 [samples, 2], zeros where there is none or unknown."""
        sizes = np.zeros((self._shard.samples, 2), dtype=np.int64)
        # Of several images, the first is the one.
        for record, name, _, _, _, width, height in reversed(self._rows.members):
            if name.decode() in IMAGE_PARTS:
                sizes[record] = width, height
        return sizes

    def _sound(self, row: Row) -> memoryview:
        """Return the payload of a member, checked; where a copy is damaged, from another."""
        record, part, offset, size, crc32, *_ = row
        payload = self._bytes[offset : offset + size]
        if zlib.crc32(payload) == crc32:
            return payload
        if self._renew():
            return self._sound(row)
        raise _damaged(part.decode()).at(shard=self.url, key=self.key(record))

    def _renew(self) -> bool:
        """Map the shard anew, once, if it was a copy: that may have been damaged since it was fetched."""
        if self._renewed or not self._files.renew(self._shard):
            return False
        self._renewed = True
        self._map = _map(self._files, self._shard)
        self._bytes = memoryview(self._map)
        return True

    def announce(self) -> None:
        """Tell the kernel that the whole shard will be read soon, so that slow and network disks read in sequence."""
        self._map.madvise(mmap.MADV_WILLNEED)

    def key(self, record: int) -> str:
        """Return the key of a sample: its members' common name without the part.

        Raises:
            IntegrityError: The header that holds it is damaged, or not that of the member which the index has here.
        """
        try:
            return self._rows.key(record, self._bytes)
        except IntegrityError as error:
            raise error.at(shard=self.url) from error.__cause__

    def members(self, record: int) -> list[ustar.Member]:
        """Return the members of a sample: where their payloads lie, and their names, with the index's parts.

        Raises:
            IntegrityError: As for `key`.
        """
        key = self.key(record)
        return [
            ustar.Member(f"{key}.{part.decode()}", offset, size) for _, part, offset, size, *_ in self._rows.of(record)
        ]


def member_key(header: bytes, row: Row) -> str:
    """Return the key in the header of a member.

    Raises:
        IntegrityError: The header is damaged, or not that of the member which the index has here.
    """
    record, part, offset, size, *_ = row
    try:
        member = ustar.parse(header, offset)
    except TarError as error:
        raise IntegrityError(f"record {record}: {error}; run `shardflow verify`") from error
    key, found = split_member_name(member.name) or ("", "")
    # An index of a tar of others has its parts in lower case.
    if found.lower() != part.decode().lower() or member.size != size:
        message = f"record {record}: member {member.name!r} is not the one packed here; run `shardflow verify`"
        raise IntegrityError(message)
    return key


def _damaged(part: str) -> IntegrityError:
    return IntegrityError(f"part {part!r} is damaged (its CRC-32 differs); run `shardflow verify`")


def packed_rows(files: ShardFiles, shard: Shard) -> Rows | None:
    """Return the rows of the index; None when it is missing or damaged.

    Raises:
        StoreError: It is out of reach.
        ShardIndexError: It was not made for this tar.
    """
    try:
        return rows_of(files.index(shard), shard.samples)
    except (NotFoundError, IntegrityError):
        return None


def rows_of(index: shard_index.Index, samples: int) -> Rows:
    """Return the rows of an index of so many samples."""
    are_keys = index["part"] == shard_index.KEY_PART
    members = index[~are_keys]
    bounds = np.searchsorted(members["record"], np.arange(samples + 1)).tolist()
    return Rows(members.tolist(), bounds, {row[0]: row for row in index[are_keys].tolist()})


def _map(files: ShardFiles, shard: Shard) -> mmap.mmap:
    with files.open(shard) as file:
        size = os.fstat(file.fileno()).st_size
        if size != shard.bytes:
            message = f"has {size} bytes, the manifest says {shard.bytes}; run `shardflow verify` and restore the shard"
            raise IntegrityError(message).at(shard=files.url(shard))
        # A private writable map: torch wraps it without a copy or a warning, and the file stays out of reach.
        with map_os_errors(Path(files.url(shard))):
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def _rebuilt_rows(files: ShardFiles, shard: Shard, tar: memoryview) -> Rows:
    try:
        data = shard_index.rebuild(tar, shard.index_sha256)
        index = shard_index.from_bytes(data, samples=shard.samples, tar_bytes=shard.bytes)
    except (FormatError, IntegrityError) as error:
        raise error.at(shard=files.url(shard)) from None
    return rows_of(index, shard.samples)
