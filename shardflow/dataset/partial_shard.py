"""A shard on its way into the cache: samples whose own bytes are there already, while the rest of it is not.

A large shard takes seconds to arrive, and the first batches of an epoch need the head of each alone. So they read the
file as it grows, whichever process writes it, and not a byte is fetched twice. Nobody has verified that file as a whole
yet, and who writes it may start over: a sample is copied out of it, and checked by what the sealed index says of it.
What is not there, or not right, is no error: it will come with the whole shard.
"""

from __future__ import annotations

import os
from typing import IO

from shardflow.errors import IntegrityError
from shardflow.formats.manifest import Shard

from .mapped_shard import Sample, packed_rows
from .shard_files import ShardFiles


class PartialSample:
    """One sample, read before the rest of its shard was there; it is asked as a mapped shard is, which has many."""

    def __init__(self, url: str, parts: Sample, key: str) -> None:
        self.url, self._parts, self._key = url, parts, key

    def sample(self, record: int, *, check: bool) -> Sample:  # noqa: ARG002 - it is this one, and was checked
        """Return the parts of the sample."""
        return self._parts

    def key(self, record: int) -> str:  # noqa: ARG002 - it is this one
        """Return the key of the sample."""
        return self._key


class PartialShard:
    """What is known of a shard before it is there.

    Args:
        files: Where its files are opened.
        shard: The shard's line in the manifest.

    Raises:
        StoreError: The index is out of reach.
    """

    def __init__(self, files: ShardFiles, shard: Shard) -> None:
        self._url, self._shard = files.url(shard), shard
        self._rows = packed_rows(files, shard)

    def sample(self, file: IO[bytes], record: int) -> PartialSample | None:
        """Return a sample from the file as it is now; None when it is not there yet, or not right."""
        if self._rows is None:
            return None  # the index is damaged or missing: it is rebuilt from the whole tar
        begin, end = self._rows.span(record)
        data = bytearray(end - begin)
        if os.preadv(file.fileno(), [data], begin) != len(data):
            return None
        try:
            key, parts = self._rows.cut(record, memoryview(data), self._url)
        except IntegrityError:
            return None
        return PartialSample(self._url, parts, key)
