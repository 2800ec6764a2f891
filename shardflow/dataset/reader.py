"""The reader of a split's shards: in place, or through the cache; while they arrive, or again after damage.

A large shard takes seconds to arrive, and the first batches of an epoch need only the head of each shard. So the reader
reads the file while a process downloads it, and no byte is fetched twice. The partial file is not verified as a whole,
and its writer may start over: samples are copied out of it and checked against the index, which the manifest verifies.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Container
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from shardflow.errors import IntegrityError, NotFoundError, ShardflowError
from shardflow.formats.manifest import PackedTables
from shardflow.formats.shard import Shard
from shardflow.formats.shard_index import Index
from shardflow.formats.shard_table import ShardTable
from shardflow.formats.tar_members import Member
from shardflow.storage.cache import Cache, Download, FetchResult, as_cache, stall_timeout_s
from shardflow.storage.interface import Storage
from shardflow.storage.local_files import map_os_errors, pause, reread
from shardflow.storage.retry import current_wait, one_wait

from .open_shard import OpenShard
from .purged_tars import opening_tar
from .sample import Sample
from .shard_rows import ShardRows, parse_index, read_index, read_index_bytes
from .tar_file import read_at

logger = logging.getLogger(__name__)

OPEN_SHARDS = 256
"""Shards that a process keeps open: more than the plan needs at a time, and well below the limit on open files."""

_POLL_S = 0.01
_POLLS_WITHOUT_DOWNLOAD = 3  # a prefetcher may be about to begin one


class ShardReader:
    """Reads the samples of local and remote shards.

    A shard on a local disk is read in place. Any other shard is downloaded whole into the cache, verified and read
    there; while another thread or process downloads it, samples whose bytes have arrived can already be read. A copy in
    the cache that turns out to be damaged is downloaded again.

    Arguments `shard` are numbers. `read`, `part`, `key`, `members`, `image_sizes` and `close` are for one thread; any
    thread may call the other methods. A reader can be sent to another process and used after a fork: each process opens
    the shards that it reads.

    Args:
        storage: Where the shards are.
        shards: Their entries in the manifest.
        cache: Where to keep downloaded shards, a cache or its directory; by default in the user's cache directory.
        tables: The shards whose seek tables may be used.

    Attributes:
        cache: None if all shards are on a local disk.

    Raises:
        StoreError: By every method that reads: a shard is missing or unreachable.
        IntegrityError: By every method that reads: a shard is not the packed one, or a part that is read is damaged.
            The error names the shard, and the key of a damaged sample.
    """

    def __init__(
        self,
        storage: Storage,
        shards: ShardTable,
        cache: Cache | str | os.PathLike[str] | None = None,
        tables: PackedTables = PackedTables(),  # noqa: B008 - immutable
    ) -> None:
        self.shards = shards
        self._storage, self._tables = storage, tables
        self._has_tables: dict[int, bool] = {}  # of the shards that were read
        name_in_folder = {name.rpartition("/")[0]: name for name in shards.names}  # the shards of a folder share a root
        is_local = all(map(self._is_file, name_in_folder.values()))
        self.cache = None if is_local else as_cache(cache)
        self._opened: OrderedDict[int, OpenShard] = OrderedDict()
        self._downloads: deque[int] = deque()  # bytes of each; any thread may append to it
        self._partial: dict[int, ShardRows | None] = {}  # the rows of shards that are being downloaded

    @functools.cached_property
    def stall_timeout_s(self) -> float:
        """How long to wait for a download of another process that does not grow."""
        return stall_timeout_s(self._storage)

    def read(
        self,
        shard: int,
        record: int,
        *,
        unused: Container[str] = (),
        sequential: bool = False,
        in_file: bool = False,
    ) -> Sample:
        """Return a sample; at most `OPEN_SHARDS` shards stay open, those that were read last.

        Parts that the caller does not use (`unused`) may be left out. If the caller will read the whole shard
        (`sequential`), the system reads ahead in it. A caller that decodes with the native kernel may get the image
        `in_file`; then the kernel reads and checks all parts.
        """
        sample = self._read(shard, record, unused, sequential, in_file)
        if (has_tables := self._has_tables.get(shard)) is None:
            has_tables = self._has_tables[shard] = self.shards[shard].name in self._tables
        sample.has_table = has_tables
        return sample

    def _read(self, shard: int, record: int, unused: Container[str], sequential: bool, in_file: bool = False) -> Sample:
        opened = self._opened.get(shard)
        if opened is None:
            with one_wait():
                if sequential and (sample := self._read_partial(shard, record)) is not None:
                    return sample
                opened = self._open(shard)
            if sequential:
                opened.read_ahead()
        else:
            self._opened.move_to_end(shard)
        try:
            if in_file:
                found = opened.sample_in_file(record, partial(self._read_parts, shard, record))
                if found is not None:
                    return found
            return opened.sample(record, unused)
        except IntegrityError:
            return opened.retry_from_new_copy(partial(opened.sample, record, unused))

    def _read_parts(self, shard: int, record: int, parts: dict[str, memoryview], image: str) -> memoryview:
        parts.update(self._read(shard, record, (), True).parts)
        return parts[image]

    def part(self, shard: int, record: int, name: str) -> memoryview | None:
        """Return one part of a sample, with its CRC-32 checked; None if the sample lacks the part."""
        others = {row[1].decode() for row in self._shard(shard).rows.of_record(record)} - {name}
        return self.read(shard, record, unused=others).parts.get(name)

    def key(self, shard: int, record: int) -> str:
        """Return the key of a sample."""
        return self._shard(shard).key(record)

    def members(self, shard: int, record: int) -> list[Member]:
        """Return the members of a sample: name, offset of the payload, and size."""
        return self._shard(shard).members(record)

    def close(self, shard: int) -> None:
        """Close a shard that is not needed soon. Its samples stay valid."""
        self._opened.pop(shard, None)
        self._partial.pop(shard, None)

    def finish(self, shard: int) -> None:
        """Mark a shard as not needed before the next epoch, so that the cache may evict it first."""
        if self.cache is not None:
            self.cache.finish(self.shards[shard].sha256)

    def take_downloaded_bytes(self) -> int:
        """Return how many bytes of shards this process has downloaded since the last call."""
        return sum(self._downloads.popleft() for _ in range(len(self._downloads)))

    def renew(self) -> None:
        """Mark the shards as still needed, in this epoch or the next, so that the cache keeps them."""
        if self.cache is not None:
            self.cache.renew(self.shards.contents)

    def is_local(self, shard: int) -> bool:
        """Return whether a shard can be read now, without a download."""
        entry = self.shards[shard]
        return self.cache is None or self._is_file(entry.name) or self.cache.has(entry.sha256)

    def url(self, shard: int) -> str:
        """Return the path or the URL of a shard, for messages."""
        return self._storage.url(self.shards[shard].name)

    def fetch(self, shard: int, *, stall_timeout_s: float = 0) -> FetchResult:
        """Download a shard and its index into the cache unless they are there; return the result for the tar.

        If another thread or process downloads it, wait until that download has not grown for `stall_timeout_s`.
        """
        entry = self.shards[shard]
        if self.cache is None or self._is_file(entry.name):
            return FetchResult.CACHED
        download = partial(self._download_with_index, entry)
        with one_wait():
            result = self.cache.fetch(entry.sha256, entry.bytes, download, stall_timeout_s=stall_timeout_s)
            if result is FetchResult.CACHED:
                with contextlib.suppress(NotFoundError, IntegrityError):  # readers then rebuild it from the tar
                    self._fetch_index(entry)
        return result

    def index(self, shard: int) -> Index:
        """Return the index of a shard; a damaged copy in the cache is downloaded again."""
        entry = self.shards[shard]
        if self.cache is None or self._is_file(entry.index_name):
            return read_index(self._storage, entry)
        download, url = partial(self._download_index, entry), self._storage.url(entry.index_name)
        data = self.cache.read(entry.index_sha256, None, download, url, stall_timeout_s=self.stall_timeout_s)
        return parse_index(self._storage, entry, data)

    def rows(self, shard: int) -> ShardRows | None:
        """Return the rows of a shard's index; None if it is missing or damaged."""
        try:
            return ShardRows.from_index(self.index(shard), int(self.shards.samples[shard]))
        except (NotFoundError, IntegrityError):
            return None

    def image_sizes(self, shard: int) -> npt.NDArray[np.int64]:
        """Return width and height of each sample's image: int64 [samples, 2], zeros if they are not known."""
        opened = self._opened.get(shard)
        with one_wait():
            rows = opened.rows if opened is not None else self._partial_rows(shard)
            return (rows or self._shard(shard).rows).image_sizes()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": OrderedDict(), "_partial": {}}

    def _shard(self, shard: int) -> OpenShard:
        if (opened := self._opened.get(shard)) is None:
            return self._open(shard)
        self._opened.move_to_end(shard)
        return opened

    def _open(self, shard: int) -> OpenShard:
        entry = self.shards[shard]
        with self._open_tar(entry) as file:
            opened = OpenShard(
                file,
                entry,
                self._partial.pop(shard, None) or self.rows(shard),
                number=shard,
                url=self.url(shard),
                index_url=self._storage.url(entry.index_name),
                cache=None if self._is_file(entry.name) else self.cache,
                download=self._download(entry),
                stall_timeout_s=self.stall_timeout_s,
            )
        self._opened[shard] = opened
        if len(self._opened) > OPEN_SHARDS:
            self._opened.popitem(last=False)
        return opened

    def _read_partial(self, shard: int, record: int) -> Sample | None:
        """Return a sample of a shard that is being downloaded, as soon as its bytes have arrived.

        Return None if the shard has become local, nothing downloads it, or the download stalls.
        """
        wait, most, polls_without_download = current_wait(), 0, 0
        while self.cache is not None and not self.is_local(shard) and wait.idle_s() < self.stall_timeout_s:
            file = self.cache.open_partial(self.shards[shard].sha256)
            if file is None:
                polls_without_download += 1
                if polls_without_download == _POLLS_WITHOUT_DOWNLOAD:
                    return None
            else:
                with file:
                    if (arrived := os.fstat(file.fileno()).st_size) > most:
                        most = arrived
                        wait.progress()
                    if (sample := self._read_arrived(file, shard, record)) is not None:
                        return sample
            pause(_POLL_S)
        return None

    def _read_arrived(self, file: IO[bytes], shard: int, record: int) -> Sample | None:
        """Return a sample from the partial file; None if it has not arrived or is damaged, or the index is missing."""
        if (rows := self._partial_rows(shard)) is None:
            return None
        with contextlib.suppress(IntegrityError):  # the sample will come with the whole shard
            begin, end = rows.span(record)
            data = read_at(file.fileno(), begin, end)
            return rows.sample_of_span(record, data, shard=shard, url=self.url(shard))
        return None

    def _partial_rows(self, shard: int) -> ShardRows | None:
        if shard not in self._partial:
            self._partial[shard] = self.rows(shard)
        return self._partial[shard]

    def _open_tar(self, entry: Shard) -> IO[bytes]:
        """Open the tar; its bytes stay readable after the file is deleted or evicted."""
        path = self._storage.local_path(entry.name)
        if path is None:
            assert self.cache is not None
            download = self._download(entry)
            return self.cache.open(entry.sha256, entry.bytes, download, stall_timeout_s=self.stall_timeout_s)
        with opening_tar(self._storage, entry.name):
            return reread(path, lambda: open(path, "rb"))

    def _is_file(self, name: str) -> bool:
        return self._storage.local_path(name) is not None

    def _download(self, entry: Shard) -> Download:
        storage, downloads = self._storage, self._downloads  # not the reader, which would be in a cycle with its shards

        def download(target: Path) -> None:
            with opening_tar(storage, entry.name):
                storage.get(entry.name, target, size=entry.bytes, sha256=entry.sha256)
            downloads.append(entry.bytes)

        return download

    def _download_with_index(self, entry: Shard, target: Path) -> None:
        """Download a tar, and at the same time the index that reading samples of a partial tar needs."""

        def fetch_index() -> None:
            with contextlib.suppress(ShardflowError):  # it is tried again when the tar is here
                self._fetch_index(entry)

        index = threading.Thread(target=fetch_index, name="shardflow-index", daemon=True)
        index.start()
        try:
            self._download(entry)(target)
        finally:
            index.join()

    def _fetch_index(self, entry: Shard) -> None:
        if self.cache is not None and not self._is_file(entry.index_name):
            self.cache.fetch(entry.index_sha256, None, partial(self._download_index, entry))

    def _download_index(self, entry: Shard, target: Path) -> None:
        data = read_index_bytes(self._storage, entry)
        with map_os_errors(target):
            target.write_bytes(data)
