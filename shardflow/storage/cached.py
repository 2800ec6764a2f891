"""Reading through a cache: the processes of a host fetch a large blob of a remote storage once."""

from __future__ import annotations

import logging
from functools import partial

from shardflow.errors import IntegrityError, StoreError, TransientError
from shardflow.formats.shard import SHA256

from .cache import Cache, stall_timeout_s
from .interface import MAX_READ_BYTES, BlobTooLargeError, Storage
from .wrapper import StorageWrapper

_log = logging.getLogger(__name__)

SHARED_BYTES = 1 << 20
"""Blobs of more bytes than this are shared through the cache; it is also what finding that out costs each process."""


class CachedStorage(StorageWrapper):
    """A storage whose large blobs are read through a cache, where it knows their SHA-256 before their bytes.

    The head of a blob's first bytes, which are given up, says which content it is.
    """

    def __init__(self, inner: Storage, cache: Cache) -> None:
        super().__init__(inner)
        self._cache = cache

    def read(self, name: str, *, most_bytes: int = MAX_READ_BYTES) -> bytes:
        try:
            return self._inner.read(name, most_bytes=min(SHARED_BYTES, most_bytes))
        except BlobTooLargeError as error:
            if error.size > most_bytes:
                raise
            size, sha256 = error.size, error.sha256
        if SHA256.fullmatch(sha256):
            download = partial(self._inner.get, name, size=size, sha256=sha256)
            try:
                return self._cache.read(sha256, size, download, self.url(name), stall_timeout_s=stall_timeout_s(self))
            except TransientError:
                raise
            except (IntegrityError, StoreError) as error:
                # The blob was replaced meanwhile, or its head is wrong; or the cache cannot be used.
                _log.info("%s is read without the cache: %s", self.url(name), error)
        return self._inner.read(name, most_bytes=most_bytes)
