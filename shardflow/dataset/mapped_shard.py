"""A shard mapped into memory: its samples are slices of the map.

Reading a sample parses no tar: the index says where each member lies, and a tar header is parsed only for a sample's
key. A missing or damaged index is rebuilt from the tar, and the manifest's SHA-256 tells whether the result is right.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Container
from pathlib import Path
from typing import IO

from shardflow.errors import FormatError, IntegrityError
from shardflow.formats import shard_index, ustar
from shardflow.formats.manifest import Shard
from shardflow.storage.local_files import map_os_errors

from .sample import Sample
from .shard_rows import ShardRows


class MappedShard:
    """An open shard. Its file may be closed; `rows` None rebuilds the index from the tar; messages name the `url`."""

    def __init__(self, file: IO[bytes], shard: Shard, rows: ShardRows | None, *, number: int, url: str) -> None:
        size = os.fstat(file.fileno()).st_size
        if size != shard.bytes:
            message = f"has {size} bytes, the manifest says {shard.bytes}; run `shardflow verify` and restore the shard"
            raise IntegrityError(message).at(shard=url)
        # A private writable map: torch wraps it without a copy or a warning, and writes never reach the file.
        with map_os_errors(Path(url)):
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._bytes = memoryview(self._map)
        self._number, self._url = number, url
        self.rows = _rebuilt_rows(self._bytes, shard, url) if rows is None else rows
        self.was_refetched = False

    def sample(self, record: int, unchecked: Container[str] = ()) -> Sample:
        """Return a sample, the CRC-32 of each part checked unless the part is named in `unchecked`."""
        return self.rows.sample(
            record, self._bytes, shard=self._number, url=self._url, key=self.key, unchecked=unchecked
        )

    def key(self, record: int) -> str:
        """Return the key of a sample."""
        try:
            return self.rows.key(record, self._bytes)
        except IntegrityError as error:
            raise error.at(shard=self._url) from error.__cause__

    def members(self, record: int) -> list[ustar.Member]:
        """Return the members of a sample: name, with the part as the index has it, offset and size."""
        key = self.key(record)
        rows = self.rows.of_record(record)
        return [ustar.Member(f"{key}.{part.decode()}", offset, size) for _, part, offset, size, *_ in rows]

    def read_ahead(self) -> None:
        """Ask the kernel to read the whole shard soon, in sequence: slow and network disks need that."""
        self._map.madvise(mmap.MADV_WILLNEED)


def _rebuilt_rows(tar: memoryview, shard: Shard, url: str) -> ShardRows:
    try:
        data = shard_index.rebuild(tar, shard.index_sha256)
        index = shard_index.from_bytes(data, samples=shard.samples, tar_bytes=shard.bytes)
    except (FormatError, IntegrityError) as error:
        raise error.at(shard=url) from None
    return ShardRows.from_index(index, shard.samples)
