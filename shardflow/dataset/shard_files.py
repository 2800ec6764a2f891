"""Files: where those of a shard are opened, in place on a local disk and through the cache otherwise.

Readers map what is opened here and never see the difference.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Protocol

from shardflow.errors import ConfigError, IntegrityError, NotFoundError, ShardflowError, ShardIndexError
from shardflow.formats import shard_index
from shardflow.formats.manifest import Shard
from shardflow.formats.shard_index import Index
from shardflow.storage.cache import Cache, FetchResult
from shardflow.storage.local import LocalStorage
from shardflow.storage.local_files import map_os_errors
from shardflow.storage.storage import Storage

logger = logging.getLogger(__name__)


class ShardFiles(Protocol):
    """The tars and indexes of a dataset. Any thread may use it; it can be sent to other processes."""

    @property
    def cache(self) -> Cache | None:
        """What they are fetched into; None when they are read where they lie."""
        ...

    def url(self, shard: Shard) -> str:
        """Return how messages name the tar."""
        ...

    def open(self, shard: Shard) -> IO[bytes]:
        """Return the tar, open for reading; what it holds stays, whatever happens to its name.

        Raises:
            StoreError: It is missing or out of reach.
            IntegrityError: It came over a network and is not the one packed.
        """
        ...

    def index(self, shard: Shard) -> Index:
        """Return the index.

        Raises:
            NotFoundError: It is missing.
            IntegrityError: It is not the one packed.
            ShardIndexError: It was not made for this tar.
            StoreError: It is out of reach.
        """
        ...

    def renew(self, shard: Shard) -> bool:
        """Throw away a damaged copy of the tar; return False where there are no copies, so nothing would change."""
        ...

    def fetch(self, shard: Shard, *, stall_timeout_s: float = 0) -> FetchResult:
        """Have both files at hand; the answer is about the tar.

        Others who are at it are waited for until their file has not grown for `stall_timeout_s`.

        Raises:
            StoreError: The tar is missing or out of reach.
            IntegrityError: It is not the one packed.
        """
        ...

    def has(self, shard: Shard) -> bool:
        """Return whether the tar can be opened now without reaching for another machine."""
        ...

    def arriving(self, shard: Shard) -> IO[bytes] | None:
        """Return what has been fetched of the tar so far, not verified; None when nobody is at it."""
        ...


class LocalFiles:
    """Files that are read where they lie."""

    cache = None

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def url(self, shard: Shard) -> str:
        """Return the path of the tar."""
        return self._storage.url(shard.name)

    def open(self, shard: Shard) -> IO[bytes]:
        """Return the tar, open for reading."""
        path = self._storage.local_path(shard.name)
        assert path is not None
        with map_os_errors(path):
            return open(path, "rb")

    def index(self, shard: Shard) -> Index:
        """Return the index."""
        return index_of(self._storage, shard)

    def renew(self, shard: Shard) -> bool:  # noqa: ARG002 - the interface's
        """Return False: these are no copies."""
        return False

    def fetch(self, shard: Shard, *, stall_timeout_s: float = 0) -> FetchResult:  # noqa: ARG002 - the interface's
        """Do nothing: they are here."""
        return FetchResult.CACHED

    def has(self, shard: Shard) -> bool:  # noqa: ARG002 - the interface's
        """Return True: they are here."""
        return True

    def arriving(self, shard: Shard) -> IO[bytes] | None:  # noqa: ARG002 - the interface's
        """Return None: they are here."""
        return None


class CachedFiles:
    """Files of any store, fetched whole into a cache and verified before anybody sees them."""

    def __init__(self, storage: Storage, cache: Cache) -> None:
        self._storage = storage
        self.cache = cache

    def url(self, shard: Shard) -> str:
        """Return the URL of the tar."""
        return self._storage.url(shard.name)

    def open(self, shard: Shard) -> IO[bytes]:
        """Return the tar, open for reading."""
        return self.cache.open(shard.sha256, shard.bytes, lambda target: self._get(shard, target))

    def index(self, shard: Shard) -> Index:
        """Return the index; a damaged copy is fetched once more."""
        try:
            return self._index(shard)
        except IntegrityError:
            if not self.cache.discard_damaged(shard.index_sha256):
                raise
            return self._index(shard)

    def fetch(self, shard: Shard, *, stall_timeout_s: float = 0) -> FetchResult:
        """Have both files in the cache. They come together: samples are read with the index while the tar arrives."""
        fetched = self.cache.fetch(
            shard.sha256, shard.bytes, lambda target: self._get_both(shard, target), stall_timeout_s=stall_timeout_s
        )
        if fetched is FetchResult.CACHED:
            with contextlib.suppress(NotFoundError, IntegrityError):  # readers then rebuild it from the tar
                self._fetch_index(shard)
        return fetched

    def renew(self, shard: Shard) -> bool:
        """Throw away the copy of the tar if it is damaged."""
        if self.cache.discard_damaged(shard.sha256):
            logger.warning("the copy of %s in the cache was damaged; check the disk", self.url(shard))
        return True

    def has(self, shard: Shard) -> bool:
        """Return whether the tar is in the cache now."""
        return self.cache.has(shard.sha256)

    def arriving(self, shard: Shard) -> IO[bytes] | None:
        """Return what has been fetched of the tar so far, not verified; None when nobody is at it."""
        return self.cache.open_partial(shard.sha256)

    def _index(self, shard: Shard) -> Index:
        with self.cache.open(shard.index_sha256, None, lambda target: self._get_index(shard, target)) as file:
            return _parsed(self._storage, shard, file.read())

    def _get(self, shard: Shard, target: Path) -> None:
        self._storage.get(shard.name, target, size=shard.bytes, sha256=shard.sha256)

    def _get_both(self, shard: Shard, target: Path) -> None:
        def fetch_index() -> None:
            with contextlib.suppress(ShardflowError):  # it is tried again when the tar is here
                self._fetch_index(shard)

        index = threading.Thread(target=fetch_index, name="shardflow-index", daemon=True)
        index.start()
        try:
            self._get(shard, target)
        finally:
            index.join()

    def _fetch_index(self, shard: Shard) -> None:
        self.cache.fetch(shard.index_sha256, None, lambda target: self._get_index(shard, target))

    def _get_index(self, shard: Shard, target: Path) -> None:
        data = packed_index(self._storage, shard)
        with map_os_errors(target):
            target.write_bytes(data)


def packed_index(storage: Storage, shard: Shard) -> bytes:
    """Return the index of a shard from its store.

    Raises:
        NotFoundError: It is missing.
        IntegrityError: It is not the one packed.
    """
    return _checked(storage, shard, storage.read(shard.index_name))


def index_of(storage: Storage, shard: Shard) -> Index:
    """Return the index of a shard from its store, parsed.

    Raises:
        NotFoundError: It is missing.
        IntegrityError: It is not the one packed.
        ShardIndexError: It was not made for this tar.
    """
    return _parsed(storage, shard, storage.read(shard.index_name))


def _parsed(storage: Storage, shard: Shard, data: bytes) -> Index:
    try:
        return shard_index.from_bytes(_checked(storage, shard, data), samples=shard.samples, tar_bytes=shard.bytes)
    except ShardIndexError as error:
        raise error.at(shard=storage.url(shard.name)) from None


def _checked(storage: Storage, shard: Shard, data: bytes) -> bytes:
    if hashlib.sha256(data).hexdigest() != shard.index_sha256:
        raise IntegrityError(f"{storage.url(shard.index_name)} is not the index packed; run `shardflow verify`")
    return data


def beside_shards(storage: Storage, directory: str | os.PathLike[str] | None) -> LocalStorage:
    """Return where files for other readers go: a directory, or else beside the shards.

    Raises:
        ConfigError: There is no directory, and the shards are not on a local disk.
    """
    if directory is not None:
        return LocalStorage(directory)
    root = storage.local_path("")
    if root is None:
        raise ConfigError(f"{storage} is not a local directory; name one for these files")
    return LocalStorage(root)


def are_local(storage: Storage, shards: Iterable[Shard]) -> bool:
    """Return whether all of these shards are files of this machine."""
    by_folder = {shard.name.rpartition("/")[0]: shard.name for shard in shards}  # the shards of a folder share a root
    return all(storage.local_path(name) is not None for name in by_folder.values())


def shard_files(storage: Storage, cache: Cache | None) -> ShardFiles:
    """Return how shards are opened; only those of a local storage can do without a cache."""
    if cache is None and storage.local_path("") is not None:
        return LocalFiles(storage)
    return CachedFiles(storage, cache or Cache())
