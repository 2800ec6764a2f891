"""A local or remote tar file that is read by position: at most a few blocks are in memory, however long the tar is.

A remote tar is read in blocks, and so is a tar whose SHA-256 is requested: it is read from start to end, and each block
is hashed as it passes. For a remote tar, the next blocks are requested while the current one is used.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

from shardflow.errors import NotFoundError, StoreError
from shardflow.storage.interface import Storage
from shardflow.storage.local_files import map_os_errors, may_pass, reread
from shardflow.storage.transfers import TransferPool

from .purged_tars import opening_tar

BLOCK_BYTES = 4 << 20
KEPT_BLOCKS = 12
"""Blocks kept in memory: payloads are read after the headers of their sample, and most samples are smaller."""

_AHEAD = 4


class TarFile:
    """A tar that is read by position, see `formats.tar_members.TarBytes`. It is for one thread.

    Args:
        fetch: Returns the bytes of the tar from a start to a stop. With a pool, its threads call it.
        size: Size of the tar in bytes.
        url: Its name in messages.
        pool: Requests blocks ahead; None for a local tar.
        hashed: Whether `sha256` will be called.
    """

    def __init__(
        self,
        fetch: Callable[[int, int], bytes | memoryview],
        size: int,
        url: str,
        *,
        pool: TransferPool | None = None,
        hashed: bool = False,
    ) -> None:
        self.size = size
        self._fetch, self._url, self._pool = fetch, url, pool
        self._digest = hashlib.sha256() if hashed else None
        self._hashed_blocks = 0
        self._blocks: OrderedDict[int, bytes | memoryview] = OrderedDict()  # the one that was used last is at the end
        self._requested: dict[int, Future[bytes | memoryview]] = {}

    def read(self, offset: int, size: int) -> memoryview:
        """Return `size` bytes from an offset on, fewer at the end of the tar.

        Raises:
            StoreError: The tar cannot be read, or has become shorter since it was opened.
        """
        stop = min(offset + size, self.size)
        if not 0 <= offset < stop:
            return memoryview(b"")
        if self._pool is None and self._digest is None:
            return memoryview(self._read(offset, stop))
        first, last = offset // BLOCK_BYTES, (stop - 1) // BLOCK_BYTES
        starts = {number: number * BLOCK_BYTES for number in range(first, last + 1)}
        pieces = [memoryview(self._block(each))[max(0, offset - at) : stop - at] for each, at in starts.items()]
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def sha256(self) -> str:
        """Return the SHA-256 of the whole tar, after reading the rest of its bytes."""
        assert self._digest is not None
        while self._hashed_blocks * BLOCK_BYTES < self.size:
            self._block(self._hashed_blocks)
        return self._digest.hexdigest()

    def _block(self, number: int) -> bytes | memoryview:
        """Return a block, after hashing all blocks before it."""
        if self._digest is not None:
            while self._hashed_blocks <= number:
                block = self._load(self._hashed_blocks)
                self._digest.update(block)
                self._hashed_blocks += 1
        return self._load(number)

    def _load(self, number: int) -> bytes | memoryview:
        if (block := self._blocks.get(number)) is not None:
            self._blocks.move_to_end(number)
            return block
        if self._pool is None:
            block = self._read_block(number)
        else:
            for ahead in range(number, min(number + _AHEAD, -(-self.size // BLOCK_BYTES))):
                if ahead not in self._requested and ahead not in self._blocks:
                    self._requested[ahead] = self._pool.submit(self._read_block, ahead)
            block = self._requested.pop(number).result()
            for other in [each for each in self._requested if not number < each < number + _AHEAD]:
                self._requested.pop(other).cancel()
        self._blocks[number] = block
        if len(self._blocks) > KEPT_BLOCKS:
            self._blocks.popitem(last=False)
        return block

    def _read_block(self, number: int) -> bytes | memoryview:
        return self._read(number * BLOCK_BYTES, min((number + 1) * BLOCK_BYTES, self.size))

    def _read(self, start: int, stop: int) -> bytes | memoryview:
        data = self._fetch(start, stop)
        if len(data) < stop - start:
            raise StoreError(
                f"{self._url} became shorter while it was read; stop the process that writes to it, and try again"
            )
        return data


def read_at(descriptor: int, begin: int, end: int, path: Path | None = None) -> memoryview:
    """Return the bytes of an open file from `begin` to `end`, in writable memory for torch; fewer at its end.

    If the server of the file fails and `path` is given, open the file again and keep its descriptor's number.
    """
    data = memoryview(bytearray(end - begin))

    def read() -> memoryview:
        done, got = 0, -1
        while done < len(data) and got:  # a call may return fewer bytes than there are
            got = os.preadv(descriptor, [data[done:]], begin + done)
            done += got
        return data[:done]

    def reopen_and_read() -> memoryview:
        assert path is not None
        with open(path, "rb") as file:
            os.dup2(file.fileno(), descriptor, inheritable=False)
        return read()

    began = time.monotonic()
    try:
        return read()
    except OSError as error:
        if path is None or not may_pass(error, path):
            raise
    return reread(path, reopen_and_read, time.monotonic() - began)


def of_descriptor(descriptor: int, url: str, *, path: Path | None = None, hashed: bool = False) -> TarFile:
    """Return the tar in an open file, which must stay open; for `path`, see `read_at`."""

    def fetch(start: int, stop: int) -> memoryview:
        with map_os_errors(Path(url)):
            return read_at(descriptor, start, stop, path)

    with map_os_errors(Path(url)):
        return TarFile(fetch, os.fstat(descriptor).st_size, url, hashed=hashed)


@contextlib.contextmanager
def open_tar(storage: Storage, name: str, *, hashed: bool = False) -> Iterator[TarFile]:
    """Open a tar in a storage.

    Args:
        storage: The storage of the tar.
        name: Its name in the storage.
        hashed: Whether `sha256` will be called: then every byte is read, in order.

    Raises:
        NotFoundError: The tar does not exist.
    """
    url, path = storage.url(name), storage.local_path(name)
    if path is not None:
        with opening_tar(storage, name), reread(path, lambda: open(path, "rb")) as file:
            yield of_descriptor(file.fileno(), url, path=path, hashed=hashed)
        return
    with opening_tar(storage, name):
        if (version := storage.version(name)) is None:
            raise NotFoundError(f"{url} does not exist; check the path")
    fetch = functools.partial(storage.read_range, name, version=version)  # a tar that is replaced is not mixed
    with TransferPool(_AHEAD) as pool:
        yield TarFile(fetch, version.size, url, pool=pool, hashed=hashed)
