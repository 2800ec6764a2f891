"""A sample that was read from a shard: its parts and known properties."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shardflow.errors import DecodeError, IntegrityError, ShardflowError
from shardflow.native.binding import ImageInFile

_PARSERS: dict[str, Callable[[bytes], Any]] = {"txt": bytes.decode, "json": json.loads, "cls": int}


@dataclass(slots=True, eq=False)
class Sample:
    """One sample of a split."""

    # Part → payload, "jpg" → the encoded image; writable. Unused parts may be left out.
    parts: Mapping[str, memoryview]
    image_size: tuple[int, int]  # width and height of its image in pixels, from the index; (0, 0) if unknown
    shard: int  # number of its shard in the split
    record: int  # its number in the shard
    url: str  # of the shard, for messages
    key_source: str | Callable[[int], str]  # its key, or a function that reads the key of a record
    has_table: bool = False  # whether its seek table was made by packing, and may be used
    in_file: ImageInFile | None = None  # the place of its image, if the kernel reads it and fills in other parts

    @property
    def key(self) -> str:
        """The key, which is read from the tar on demand; IntegrityError if its header is damaged."""
        if not isinstance(self.key_source, str):
            self.key_source = self.key_source(self.record)
        return self.key_source

    def value(self, part: str) -> Any:
        """Return the text of a txt, the parsed value of a json or cls, or the bytes of another part.

        Raises:
            DecodeError: The part cannot be parsed.
        """
        try:
            return _PARSERS.get(part.rpartition(".")[2], bytes)(bytes(self.parts[part]))
        except (ValueError, RecursionError) as error:
            raise self.with_sample(DecodeError(f"part {part!r} cannot be read: {error}")) from error

    def with_sample(self, error: ShardflowError) -> ShardflowError:
        """Return an error with this sample as its location."""
        try:
            key = self.key
        except IntegrityError:
            key = f"record {self.record}"
        return error.with_location(shard=self.url, key=key)
