"""A shard mapped into memory: its samples are slices of the map.

Reading a sample parses no tar: the index says where each member lies, and a tar header is parsed only for a sample's
key. A missing or damaged index is rebuilt from the tar, and the manifest's SHA-256 tells whether the result is right.

A copy in the cache that turns out to be damaged is downloaded again, as often as it happens. The SHA-256 of the mapped
bytes tells a damaged copy from a shard that is damaged at its source, which is an error.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
from collections.abc import Callable, Container
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

from shardflow.errors import FormatError, IntegrityError
from shardflow.formats import shard_index, ustar
from shardflow.formats.shard import Shard
from shardflow.storage.cache import MOST_COPIES, Cache, Download
from shardflow.storage.local_files import map_os_errors

from .sample import Sample
from .shard_rows import ShardRows

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class MappedShard:
    """An open shard.

    Args:
        file: The tar. It may be closed and deleted afterwards.
        shard: Its entry in the manifest.
        rows: Its index; None to rebuild it from the tar.
        number: Of the shard in its split.
        url: The shard, as messages name it.
        cache: The cache that the tar is from; None if it is read in place.
        download: Fetches the tar into the cache.
    """

    def __init__(
        self,
        file: IO[bytes],
        shard: Shard,
        rows: ShardRows | None,
        *,
        number: int,
        url: str,
        cache: Cache | None,
        download: Download,
    ) -> None:
        self._shard, self._number, self._url, self._cache, self._download = shard, number, url, cache, download
        self._is_mending = False
        self._map_tar(file)
        if rows is None:
            try:
                rows = self._rebuilt_rows()
            except (FormatError, IntegrityError):
                rows = self.mended(self._rebuilt_rows)
        self.rows = rows

    def sample(self, record: int, unchecked: Container[str] = ()) -> Sample:
        """Return a sample, the CRC-32 of each part checked unless the part is named in `unchecked`."""
        return self.rows.sample(
            record, self._bytes, shard=self._number, url=self._url, key=self.key, unchecked=unchecked
        )

    def key(self, record: int) -> str:
        """Return the key of a sample. A damaged copy is replaced for it, see `mended`."""
        try:
            return self._read_key(record)
        except IntegrityError:
            return self.mended(partial(self._read_key, record))

    def members(self, record: int) -> list[ustar.Member]:
        """Return the members of a sample: name, with the part as the index has it, offset and size."""
        key = self.key(record)
        rows = self.rows.of_record(record)
        return [ustar.Member(f"{key}.{part.decode()}", offset, size) for _, part, offset, size, *_ in rows]

    def mended(self, read: Callable[[], _Result]) -> _Result:
        """Return what a `read` whose error is being handled returns from a sound copy, or raise what it raises then.

        Raises:
            IntegrityError: One copy after the other is damaged, or the shard is not behind its URL any more.
            StoreError: The shard cannot be downloaded again.
        """
        if self._cache is None or self._is_mending:
            raise
        self._is_mending = True
        try:
            return self._read_from_new_copy(self._cache, read)
        finally:
            self._is_mending = False

    def read_ahead(self) -> None:
        """Ask the kernel to read the whole shard soon, in sequence: slow and network disks need that."""
        self._map.madvise(mmap.MADV_WILLNEED)

    def release_pages(self) -> None:
        """Give the pages that were read back to the page cache; samples stay valid, and are mapped again when read."""
        self._map.madvise(mmap.MADV_DONTNEED)

    def _read_from_new_copy(self, cache: Cache, read: Callable[[], _Result]) -> _Result:
        for _ in range(MOST_COPIES):
            if hashlib.sha256(self._bytes).hexdigest() == self._shard.sha256:
                return read()
            logger.warning("the copy of %s in the cache %s is damaged: downloading it", self._url, cache.directory)
            cache.discard(self._shard.sha256, self._status)
            with cache.open(self._shard.sha256, self._shard.bytes, self._download) as file:
                try:
                    self._map_tar(file)
                    return read()
                except (FormatError, IntegrityError):
                    pass
        raise cache.damaged_copies(self._url)

    def _map_tar(self, file: IO[bytes]) -> None:
        self._status = os.fstat(file.fileno())
        size, expected = self._status.st_size, self._shard.bytes
        if size != expected:
            message = f"has {size} bytes, the manifest says {expected}; run `shardflow verify` and restore the shard"
            raise IntegrityError(message).at(shard=self._url)
        # A private writable map: torch wraps it without a copy or a warning, and writes never reach the file.
        with map_os_errors(Path(self._url)):
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._bytes = memoryview(self._map)

    def _read_key(self, record: int) -> str:
        try:
            return self.rows.key(record, self._bytes)
        except IntegrityError as error:
            raise error.at(shard=self._url) from error.__cause__

    def _rebuilt_rows(self) -> ShardRows:
        shard = self._shard
        try:
            data = shard_index.rebuild(self._bytes, shard.index_sha256)
            index = shard_index.from_bytes(data, samples=shard.samples, tar_bytes=shard.bytes)
        except (FormatError, IntegrityError) as error:
            raise error.at(shard=self._url) from None
        return ShardRows.from_index(index, shard.samples)
