"""One shard mapped into memory: its samples are slices of the map.

Nothing of `tarfile` is on this path: the index says where each member lies, and the tar around it is only looked at
for a sample's key. A missing or damaged index is rebuilt from the tar, and the manifest's SHA-256 says whether the
result is the right one.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import zlib
from collections.abc import Collection
from pathlib import Path

import numpy as np
import numpy.typing as npt

from . import shardindex, ustar
from .errors import FormatError, IndexError_, IntegrityError, TarError
from .files import ShardFiles
from .manifest import Shard
from .store import translated

Sample = dict[str, memoryview]
"""Part → payload."""

Row = tuple[int, bytes, int, int, int, int, int]
"""A row of the index, as shardindex.Row."""


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
        self._rows, self._bounds = packed_rows(files, shard) or _rebuilt_rows(files, shard, self._bytes)

    def sample(self, record: int, *, check: bool, unchecked: Collection[str] = ()) -> Sample:
        """Return the parts of a sample, without copying; each payload is checked by its CRC-32 if asked.

        Those of the parts that are named in `unchecked` are not looked at.

        Raises:
            IntegrityError: A payload is damaged. The error names the shard and the key.
        """
        parts: Sample = {}
        for _, name, offset, size, crc32, _, _ in self._rows[self._bounds[record] : self._bounds[record + 1]]:
            part, payload = name.decode(), self._bytes[offset : offset + size]
            if check and part not in unchecked and zlib.crc32(payload) != crc32:
                if self._renew():
                    return self.sample(record, check=check, unchecked=unchecked)
                error = IntegrityError(f"part {part!r} is damaged (its CRC-32 differs); run `shardflow verify`")
                raise error.at(shard=self.url, key=self.key(record))
            parts[part] = payload
        return parts

    def image_sizes(self) -> npt.NDArray[np.int64]:
        """Return width and height of each sample's image: int64 [samples, 2], zeros where there is none or unknown."""
        sizes = np.zeros((self._shard.samples, 2), dtype=np.int64)
        for record, name, _, _, _, width, height in reversed(self._rows):  # of several images, the first is the one
            if name.decode() in shardindex.IMAGE_PARTS:
                sizes[record] = width, height
        return sizes

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
        row = self._rows[self._bounds[record]]
        try:
            return member_key(bytes(self._bytes[row[2] - ustar.BLOCK : row[2]]), row)
        except IntegrityError as error:
            raise error.at(shard=self.url) from error.__cause__

    def members(self, record: int) -> list[ustar.Member]:
        """Return the members of a sample: their names in the tar, and where their payloads lie.

        Raises:
            IntegrityError: As for `key`.
        """
        key, rows = self.key(record), self._rows[self._bounds[record] : self._bounds[record + 1]]
        return [ustar.Member(f"{key}.{part.decode()}", offset, size) for _, part, offset, size, *_ in rows]


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
    suffix = f".{part.decode()}"
    key = member.name[: -len(suffix)]
    # Parts are in lower case where tars of others are read, whatever the tar has.
    if member.name[len(key) :].lower() != suffix.lower() or member.size != size:
        message = f"record {record}: member {member.name!r} is not the one packed here; run `shardflow verify`"
        raise IntegrityError(message)
    return key


def packed_rows(files: ShardFiles, shard: Shard) -> tuple[list[Row], list[int]] | None:
    """Return the rows of the index, and where those of each record begin; None when it is missing or damaged.

    Raises:
        StoreError: It is out of reach.
    """
    data = files.index(shard)
    return _parsed(files, shard, data) if hashlib.sha256(data).hexdigest() == shard.index_sha256 else None


def _map(files: ShardFiles, shard: Shard) -> mmap.mmap:
    with files.open(shard) as file:
        size = os.fstat(file.fileno()).st_size
        if size != shard.bytes:
            message = f"has {size} bytes, the manifest says {shard.bytes}; run `shardflow verify` and restore the shard"
            raise IntegrityError(message).at(shard=files.url(shard))
        # A private writable map: torch wraps it without a copy or a warning, and the file stays out of reach.
        with translated(Path(files.url(shard))):
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def _rebuilt_rows(files: ShardFiles, shard: Shard, tar: memoryview) -> tuple[list[Row], list[int]]:
    try:
        index, _ = shardindex.build(tar)
    except FormatError as error:
        raise error.at(shard=files.url(shard)) from None
    data = shardindex.to_bytes(index)
    if hashlib.sha256(data).hexdigest() != shard.index_sha256:
        message = "neither the index nor one rebuilt from the tar is the one packed; run `shardflow verify`"
        raise IntegrityError(message).at(shard=files.url(shard))
    return _parsed(files, shard, data)


def _parsed(files: ShardFiles, shard: Shard, data: bytes) -> tuple[list[Row], list[int]]:
    try:
        index = shardindex.from_bytes(data, samples=shard.samples, tar_bytes=shard.bytes)
    except IndexError_ as error:
        raise error.at(shard=files.url(shard)) from None
    return index.tolist(), np.searchsorted(index["record"], np.arange(shard.samples + 1)).tolist()
