"""A shard that is still being downloaded: its samples can be read as soon as their own bytes are there.

A large shard takes seconds to arrive, and the first batches of an epoch need only the head of each. So they read the
file as it grows, whichever process writes it, and no byte is fetched twice. The file has not been verified as a whole,
and its writer may start over, so a sample is copied out of it and checked against the index, which the manifest
verifies. A sample that is not there yet, or is damaged, is no error: it will come with the whole shard.
"""

from __future__ import annotations

import os
from typing import IO

from shardflow.errors import IntegrityError

from .sample import Sample
from .shard_rows import ShardRows


class PartialShard:
    """A shard of which only the index is complete.

    Args:
        rows: The rows of its index; None if it is missing or damaged, so that only the whole tar can be read.
        number: Its number in the split.
        url: How messages name it.
    """

    def __init__(self, rows: ShardRows | None, *, number: int, url: str) -> None:
        self.rows, self._number, self._url = rows, number, url

    def sample(self, file: IO[bytes], record: int) -> Sample | None:
        """Return a sample from the file as it is now; None if it is not there yet, or damaged."""
        if self.rows is None:
            return None
        begin, end = self.rows.span(record)
        data = bytearray(end - begin)
        if os.preadv(file.fileno(), [data], begin) != len(data):
            return None
        try:
            return self.rows.sample_of_span(record, memoryview(data), shard=self._number, url=self._url)
        except IntegrityError:
            return None
