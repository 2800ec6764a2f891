"""An open shard: each of its samples is read with one call.

Reading a sample does not parse the tar: the index locates each member, and a tar header is parsed only for a sample's
key. A missing or damaged index is rebuilt from the tar, and checked against the manifest's SHA-256.

A copy in the cache that turns out to be damaged is downloaded again, up to `MOST_COPIES` times in a row. The SHA-256 of
its bytes tells a damaged copy from a shard that is damaged at its source, which is an error.

Files are read and not mapped: a truncated file or a failing disk then raises an error instead of ending the process by
a signal; and a page fault for every four pages costs more than the copy.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import weakref
from collections.abc import Callable, Container
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

from shardflow.errors import DeadlineError, FormatError, IntegrityError, StoreError
from shardflow.formats import shard_index
from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.formats.shard import Shard
from shardflow.formats.tar_members import Member
from shardflow.native.binding import ImageInFile
from shardflow.storage.cache import MOST_COPIES, Cache, Download
from shardflow.storage.local_files import is_shared, map_os_errors
from shardflow.storage.retry import one_wait

from .sample import Sample
from .shard_rows import LOST_INDEX, ShardRows, reader_of
from .tar_file import TarFile, of_descriptor, read_at

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_GAP_BYTES = 1 << 16  # unused bytes that may be read to save a request
_IN_FILE_BYTES = 32 << 20  # the largest sample that the kernel reads: it keeps the memory for the next sample
_JPEG_PARTS = ("jpg", "jpeg")


class OpenShard:
    """An open shard.

    Args:
        file: The tar. The caller may close and delete it: its bytes stay readable.
        shard: Its entry in the manifest.
        rows: Its index; None to rebuild the index from the tar.
        number: Number of the shard in its split.
        url: Path or URL of the shard, for messages.
        index_url: Path or URL of its index, for messages.
        cache: The cache that holds the tar; None if the tar is read in place.
        download: Fetches the tar into the cache.
        stall_timeout_s: How long to wait for a download of another process that does not grow.
    """

    def __init__(
        self,
        file: IO[bytes],
        shard: Shard,
        rows: ShardRows | None,
        *,
        number: int,
        url: str,
        index_url: str,
        cache: Cache | None,
        download: Download,
        stall_timeout_s: float,
    ) -> None:
        self._shard, self._number, self._url, self._cache, self._download = shard, number, url, cache, download
        self._stall_timeout_s, self._index_url = stall_timeout_s, index_url
        self._is_mending = False
        self._open_tar(file)
        if rows is None:
            try:
                rows = self._rebuilt_rows()
            except (FormatError, IntegrityError):
                rows = self.retry_from_new_copy(self._rebuilt_rows)
        self.rows = rows

    def sample(self, record: int, unused: Container[str] = ()) -> Sample:
        """Return a sample without its `unused` parts, with the CRC-32 of all other parts checked."""
        try:
            begin, end, used = self.rows.payload_span(record, unused)
        except IntegrityError as error:
            raise error.with_location(shard=self._url, key=self.key(record)) from None
        read: Callable[[int, int], memoryview] = self._file.read
        if end - begin <= 2 * used + _GAP_BYTES:  # one request instead of one for each part
            read = reader_of(self._file.read(begin, end), begin)
        return self.rows.sample(record, read, shard=self._number, url=self._url, key=self.key, unused=unused)

    def sample_in_file(self, record: int, read: Callable[[dict[str, memoryview], str], memoryview]) -> Sample | None:
        """Return a sample for the kernel to read; None if it is too large or its image is not one JPEG of known size.

        `read` is the fallback without the kernel: it fills in the parts, and returns the one with the given name.
        """
        rows = self.rows.of_record(record)
        begin, end = rows[0][2], rows[-1][2] + rows[-1][3]
        if end - begin > _IN_FILE_BYTES:
            return None
        image, image_size, part_bytes = "", (0, 0), 0
        parts: dict[str, memoryview] = {}
        places = []
        for _, name, offset, size, crc32, width, height in rows:
            part, address = name.decode(), 0
            if part not in IMAGE_PARTS:
                memory = bytearray(size or 1)
                parts[part] = memoryview(memory)[:size]
                address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            elif image or part not in _JPEG_PARTS or not (width and height):
                return None
            else:
                image, image_size = part, (width, height)
            if not begin <= offset <= offset + size <= end:
                return None
            part_bytes += size
            places.append((address, offset, size, crc32))
        if not image:
            return None
        file = self._file
        again = partial(read, parts, image)
        owners = file, *parts.values()
        in_file = ImageInFile(file.descriptor, begin, end - begin, places, part_bytes, again, owners)
        return Sample(parts, image_size, self._number, record, self._url, self.key, in_file=in_file)

    def key(self, record: int) -> str:
        """Return the key of a sample. A damaged copy in the cache is replaced, see `retry_from_new_copy`."""
        try:
            return self._read_key(record)
        except IntegrityError:
            return self.retry_from_new_copy(partial(self._read_key, record))

    def members(self, record: int) -> list[Member]:
        """Return the members of a sample: name (with the part as in the index), offset and size."""
        key = self.key(record)
        rows = self.rows.of_record(record)
        return [Member(f"{key}.{part.decode()}", offset, size) for _, part, offset, size, *_ in rows]

    def retry_from_new_copy(self, read: Callable[[], _Result]) -> _Result:
        """Return the result of `read` from a sound copy; called while its error is handled, which it may raise again.

        Raises:
            IntegrityError: All copies are damaged, or the shard is no longer at its URL.
            StoreError: The shard cannot be downloaded again.
        """
        if self._cache is None or self._is_mending:
            raise
        self._is_mending = True
        try:
            with one_wait():
                return self._read_from_new_copy(self._cache, read)
        finally:
            self._is_mending = False

    def read_ahead(self) -> None:
        """Ask the operating system to read the whole shard ahead: slow and network disks need that."""
        os.posix_fadvise(self._file.descriptor, 0, 0, os.POSIX_FADV_WILLNEED)

    def _read_from_new_copy(self, cache: Cache, read: Callable[[], _Result]) -> _Result:
        for _ in range(MOST_COPIES):
            if self._is_intact():
                return read()
            logger.warning("the copy of %s in the cache %s is damaged: downloading it", self._url, cache.directory)
            cache.discard(self._shard.sha256, self._file.status)
            with cache.open(
                self._shard.sha256, self._shard.bytes, self._download, stall_timeout_s=self._stall_timeout_s
            ) as file:
                try:
                    self._open_tar(file)
                    return read()
                except (FormatError, IntegrityError):
                    pass
        raise cache.damaged_copies(self._url)

    def _is_intact(self) -> bool:
        """Return whether the tar has the bytes that the manifest says."""
        with contextlib.suppress(StoreError):  # the disk fails
            return self._file.tar(hashed=True).sha256() == self._shard.sha256
        return False

    def _open_tar(self, file: IO[bytes]) -> None:
        path = Path(self._url)
        self._file = _File(file, self._url, path if self._cache is None and is_shared(path.parent) else None)
        size, expected = self._file.status.st_size, self._shard.bytes
        if size != expected:
            message = f"has {size} bytes, the manifest says {expected}; run `shardflow verify` and restore the shard"
            raise IntegrityError(message).with_location(shard=self._url)

    def _read_key(self, record: int) -> str:
        try:
            begin, end = self.rows.key_span(record)
            return self.rows.key(record, self._file.read(begin, end), begin)
        except IntegrityError as error:
            raise error.with_location(shard=self._url) from error.__cause__

    def _rebuilt_rows(self) -> ShardRows:
        shard = self._shard
        try:
            data = shard_index.rebuild(self._file.tar(), shard.index_sha256)
            index = shard_index.from_bytes(data, samples=shard.samples, tar_bytes=shard.bytes)
        except (FormatError, IntegrityError) as error:
            if self._is_intact():  # the index has a part of its samples, or another tool wrote it
                message = f"the tar is intact, but its index {self._index_url} is missing or damaged"
                raise IntegrityError(f"{message}; {LOST_INDEX}").with_location(shard=self._url) from None
            raise error.with_location(shard=self._url) from None
        except StoreError as error:  # a copy in the cache is replaced for it, as where a sample cannot be read
            raise IntegrityError(f"its index cannot be made: {error}").with_location(shard=self._url) from error
        return ShardRows.from_index(index, shard.samples)


class _File:
    """A file that is read by position. It is closed when it is no longer referenced.

    Args:
        file: The file; the object duplicates its descriptor.
        url: Its name in messages.
        path: Where to open it again if its server fails; None on a local disk.

    Attributes:
        descriptor: The duplicated descriptor.
        status: Status of the file when it was opened.
    """

    def __init__(self, file: IO[bytes], url: str, path: Path | None) -> None:
        self._url, self._path = url, path
        with map_os_errors(Path(url)):
            self.descriptor = os.dup(file.fileno())
            self.status = os.fstat(self.descriptor)
        weakref.finalize(self, os.close, self.descriptor).atexit = False

    def read(self, begin: int, end: int) -> memoryview:
        """Return the bytes from `begin` to `end`, in writable memory, as torch wants it.

        Raises:
            IntegrityError: The disk fails, or the file ends before `end`.
            DeadlineError: The server of the file system fails.
        """
        try:
            data = read_at(self.descriptor, begin, end, self._path)
        except DeadlineError:
            raise
        except OSError as error:
            message = f"it cannot be read: {error.strerror or error}; check the disk"
            raise IntegrityError(message).with_location(shard=self._url) from error
        if (missing := end - begin - len(data)) > 0:
            message = f"the tar ends {missing} bytes too early; run `shardflow verify`"
            raise IntegrityError(message).with_location(shard=self._url)
        return data

    def tar(self, *, hashed: bool = False) -> TarFile:
        """Return the whole file, to be read by position."""
        return of_descriptor(self.descriptor, self._url, path=self._path, hashed=hashed)
