"""The pixel cache: decoded images on disk, so that later epochs crop without decoding; augmentation stays random.

One file per shard, named by the digests of the tar and its index and by the decoder's version, shared by all processes
that may open it. The index counts because datasets may have different samples of one tar, and the tar because a CRC-32
in an index can be forged:

    sums      uint64 [samples]: the checksum of a record's pixels, 0 until they are written
    pixels    uint8 [height, width, 3] per record, in order, each at a multiple of 8 bytes

The offset of a record follows from the shard's index. Each shard has a share of the limit, for its first records, so
processes need not coordinate. The limit applies to the files of one split and decoder. Files are sparse: records that
were not yet written take no space.

Pixels are written before their checksum, and used only if it matches. If it does not match, for example after an
unfinished write, the image is decoded and written again. Files are read with `pread(2)` and not mapped, so that a disk
error is an exception, not a signal that ends the process. Only images that decode without warnings, from bytes whose
CRC-32 was checked, are written.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow.dataset.open_dataset import Split
from shardflow.errors import ConfigError
from shardflow.storage.cache import Cache
from shardflow.storage.cache_eviction import spare_bytes

from .decoders.decoder import Decoder
from .decoders.pixels import Pixels, decode_whole, pixels_version

logger = logging.getLogger(__name__)

_OPEN_FILES = 128
_WORD_BYTES = 8
_INVERTED = np.uint64(0x9E3779B97F4A7C15)
_BLOCK_BYTES = 4096  # disk space of a file is a multiple of this

Words = npt.NDArray[np.uint64]


class PixelCache:
    """Decoded images of a split, for one decoder. It can be pickled: each process opens its own files.

    If the files cannot be read or written, images are decoded, as without the cache.
    """

    def __init__(self, split: Split, cache: Cache, decoder: Decoder) -> None:
        if (source := decoder.takes_pixels_of) is None:
            raise ConfigError(
                f"Cache(pixels=...): {type(decoder).__name__} accepts encoded images only; use RandomResizedCrop, "
                "CenterCrop or Image of shardflow.decoders themselves, or leave pixels out"
            )
        self._split, self._directory, self._limit_bytes = split, cache.decoded_directory, cache.pixel_limit_bytes or 0
        self._pixel_source, self._max_pixels = source, decoder.max_pixels
        self._version = pixels_version(source, decoder.max_pixels)
        self._files: OrderedDict[int, _ShardPixels | None] = OrderedDict()  # by the number of the shard
        self._memory: dict[int, Words] = {}
        self._full = False

    def read(self, shard: int, record: int, place: int) -> Pixels | None:
        """Return the pixels of a record of a shard; None if they are not in the cache.

        The next call with the same `place`, the position of the sample in its batch, overwrites them.
        """
        file = self._file(shard)
        if file is None or not file.has(record):
            return None
        memory = self._memory.get(place)
        if memory is None or len(memory) < file.words[record]:
            memory = self._memory[place] = np.empty(file.words[record], dtype=np.uint64)
        return file.read(record, memory)

    def add(self, shard: int, record: int, payload: memoryview) -> Pixels | None:
        """Decode an image, write its pixels and return them; None if it exceeds the limit or is damaged."""
        file = None if self._full else self._file(shard)
        if file is None or not file.kept[record]:
            return None
        width, height = file.sizes[record].tolist()
        pixels = decode_whole(self._pixel_source, payload, width, height, self._max_pixels)
        if pixels is not None:
            try:
                if spare_bytes(self._directory) < pixels.nbytes:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                file.write(record, pixels)
            except OSError as error:
                self._give_up(error)
        return pixels

    def _file(self, shard: int) -> _ShardPixels | None:
        """Return the file of a shard; None if it cannot be opened."""
        if shard in self._files:
            self._files.move_to_end(shard)
            return self._files[shard]
        if len(self._files) == _OPEN_FILES:
            self._files.popitem(last=False)
        sizes = self._split.reader.image_sizes(shard)
        entry = self._split.shards[shard]
        name = hashlib.sha256(f"{entry.sha256} {entry.index_sha256} {self._version}".encode()).hexdigest()
        try:
            share_bytes = self._limit_bytes * len(sizes) // len(self._split)
            self._files[shard] = _ShardPixels(self._directory / name, sizes, share_bytes)
        except OSError as error:
            self._files[shard] = None
            self._give_up(error)
        return self._files[shard]

    def _give_up(self, error: OSError) -> None:
        if not self._full:
            self._full = True
            logger.warning(
                "no more decoded images are kept in %s (%s), so others are decoded whenever they are needed; free some "
                "space, lower the limit for pixels, or choose a cache directory on another disk",
                self._directory,
                error.strerror,
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": OrderedDict(), "_memory": {}}


class _ShardPixels:
    """The file of one shard."""

    def __init__(self, path: Path, sizes: npt.NDArray[np.int64], share_bytes: int) -> None:
        self.sizes = sizes  # [samples, 2], width and height of each image
        self.words = -(-3 * sizes.prod(axis=1) // _WORD_BYTES)  # [samples], length of its pixels in words
        ends = (len(sizes) + self.words.cumsum()) * _WORD_BYTES
        self._begins = ends - self.words * _WORD_BYTES
        # [samples], whether the record fits into the shard's share of the limit
        self.kept = (self.words > 0) & (ends <= share_bytes // _BLOCK_BYTES * _BLOCK_BYTES)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        weakref.finalize(self, os.close, self._descriptor)
        os.utime(self._descriptor)  # pruning the cache removes the least recently used files first
        self._sums = np.zeros(len(sizes), dtype=np.uint64)
        os.preadv(self._descriptor, [self._sums.data], 0)

    def has(self, record: int) -> bool:
        """Return whether the pixels of a record were written, according to their checksum."""
        if self.kept[record] and not self._sums[record]:
            with contextlib.suppress(OSError):  # pixels that cannot be read count as missing
                os.preadv(self._descriptor, [self._sums[record : record + 1].data], record * _WORD_BYTES)
        return bool(self.kept[record] and self._sums[record])

    def read(self, record: int, memory: Words) -> Pixels | None:
        """Read the pixels of a record into memory and return them; None if their checksum does not match."""
        words = memory[: self.words[record]]
        try:
            whole = os.preadv(self._descriptor, [words.data], self._begins[record]) == words.nbytes
        except OSError:
            whole = False
        if not whole or _sum(words) != self._sums[record]:
            self._sums[record] = 0
            return None
        width, height = self.sizes[record].tolist()
        return words.view(np.uint8)[: 3 * width * height].reshape(height, width, 3)

    def write(self, record: int, pixels: Pixels) -> None:
        """Write the pixels of a record, and then their checksum."""
        words = np.zeros(self.words[record], dtype=np.uint64)
        words.view(np.uint8)[: pixels.size] = pixels.reshape(-1)
        self._write(words, self._begins[record])
        self._write(np.array([_sum(words)]), record * _WORD_BYTES)

    def _write(self, words: Words, offset: int) -> None:
        if os.pwrite(self._descriptor, words.data, offset) != words.nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _sum(words: Words) -> np.uint64:
    """Return the sum modulo 2^64 with some bits inverted; 1 instead of 0, which marks a missing record.

    Without the inversion, one flipped bit in the sums would turn a missing record, which is a hole in the file, into a
    black image. The sum takes a quarter of the time of a CRC-32.
    """
    total: np.uint64 = words.sum(dtype=np.uint64) ^ _INVERTED
    return total or np.uint64(1)
