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
from pathlib import Path

import numpy as np

from . import shardindex, ustar
from .errors import FormatError, IndexError_, IntegrityError, TarError
from .files import ShardFiles
from .manifest import Shard
from .store import translated

Sample = dict[str, memoryview]
"""Part → payload."""


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
        self.url = files.url(shard)
        self._files, self._shard, self._renewed = files, shard, False
        self._map = _map(files, shard)
        self._bytes = memoryview(self._map)
        self._index = _load_index(files, shard, self._bytes)
        self._rows: list[tuple[int, bytes, int, int, int, int, int]] = self._index.tolist()
        bounds = np.searchsorted(self._index["record"], np.arange(shard.samples + 1))
        self._bounds: list[int] = bounds.tolist()

    def sample(self, record: int, *, check: bool) -> Sample:
        """Return the parts of a sample, without copying; each payload is checked by its CRC-32 if asked.

        Raises:
            IntegrityError: A payload is damaged. The error names the shard and the key.
        """
        parts: Sample = {}
        for _, name, offset, size, crc32, _, _ in self._rows[self._bounds[record] : self._bounds[record + 1]]:
            part, payload = name.decode(), self._bytes[offset : offset + size]
            if check and zlib.crc32(payload) != crc32:
                if self._renew():
                    return self.sample(record, check=check)
                error = IntegrityError(f"part {part!r} is damaged (its CRC-32 differs); run `shardflow verify`")
                raise error.at(shard=self.url, key=self.key(record))
            parts[part] = payload
        return parts

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
        _, part, offset, size, *_ = self._rows[self._bounds[record]]
        try:
            member = ustar.parse(bytes(self._bytes[offset - ustar.BLOCK : offset]), offset)
        except TarError as error:
            raise IntegrityError(f"record {record}: {error}; run `shardflow verify`").at(shard=self.url) from error
        key = member.name.removesuffix(f".{part.decode()}")
        if key == member.name or member.size != size:
            message = f"record {record}: member {member.name!r} is not the one packed here; run `shardflow verify`"
            raise IntegrityError(message).at(shard=self.url)
        return key


def _map(files: ShardFiles, shard: Shard) -> mmap.mmap:
    with files.open(shard) as file:
        size = os.fstat(file.fileno()).st_size
        if size != shard.bytes:
            message = f"has {size} bytes, the manifest says {shard.bytes}; run `shardflow verify` and restore the shard"
            raise IntegrityError(message).at(shard=files.url(shard))
        # A private writable map: torch wraps it without a copy or a warning, and the file stays out of reach.
        with translated(Path(files.url(shard))):
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def _load_index(files: ShardFiles, shard: Shard, tar: memoryview) -> shardindex.Index:
    data = files.index(shard)
    if hashlib.sha256(data).hexdigest() != shard.index_sha256:
        try:
            index, _ = shardindex.build(tar)
        except FormatError as error:
            raise error.at(shard=files.url(shard)) from None
        data = shardindex.to_bytes(index)
        if hashlib.sha256(data).hexdigest() != shard.index_sha256:
            message = "neither the index nor one rebuilt from the tar is the one packed; run `shardflow verify`"
            raise IntegrityError(message).at(shard=files.url(shard))
    try:
        return shardindex.from_bytes(data, samples=shard.samples, tar_bytes=shard.bytes)
    except IndexError_ as error:
        raise error.at(shard=files.url(shard)) from None
