"""A sample as it is read from a shard: its parts, and its known properties."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shardflow import native
from shardflow.errors import DecodeError, IntegrityError, ShardflowError

_PARSERS: dict[str, Callable[[bytes], Any]] = {"txt": bytes.decode, "json": json.loads, "cls": int}


@dataclass(slots=True, eq=False)
class Sample:
    """One sample of a split."""

    # Part → payload, "jpg" → the encoded image; writable. Parts that are not used can be left out.
    parts: Mapping[str, memoryview]
    image_size: tuple[int, int]  # width and height of its image in pixels, from the index; (0, 0) if not known
    shard: int  # number of its shard in the split
    record: int  # its number in the shard
    url: str  # the shard, as messages name it
    key_source: str | Callable[[int], str]  # its key, or a function that reads the key of a record
    has_table: bool = False  # whether a seek table in its image was made when it was packed, so that it may be used
    in_file: native.ImageInFile | None = None  # its image, if the kernel is to read it, and to fill in the other parts

    @property
    def key(self) -> str:
        """The key. It is in the tar and not in the index, and few batches need it, so it is read on demand.

        Raises:
            IntegrityError: The header that holds it is damaged.
        """
        if not isinstance(self.key_source, str):
            self.key_source = self.key_source(self.record)
        return self.key_source

    def value(self, part: str) -> Any:
        """Return the value of a part: the text of a txt, the parsed value of a json or cls, the bytes of any other.

        Raises:
            DecodeError: It cannot be read as such.
        """
        try:
            return _PARSERS.get(part.rpartition(".")[2], bytes)(bytes(self.parts[part]))
        except ValueError as error:
            raise self.with_sample(DecodeError(f"part {part!r} cannot be read: {error}")) from error

    def with_sample(self, error: ShardflowError) -> ShardflowError:
        """Return an error with this sample as the place where it happened."""
        try:
            key = self.key
        except IntegrityError:
            key = f"record {self.record}"
        return error.with_location(shard=self.url, key=key)
