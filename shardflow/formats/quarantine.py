"""The quarantine: `quarantine.jsonl`, the inputs of a dataset that were not packed, one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from shardflow.errors import FormatError

FILE_NAME = "quarantine.jsonl"
SKIPPED = "list"
"""The stage of an image that was skipped: of a kind that is not read, as its name says when the source is listed."""


class Quarantined(NamedTuple):
    """An input that was not packed.

    Attributes:
        path: Path below the source.
        stage: The step that failed: "list", "read", "decode" or "encode".
        reason: Message of the error.
    """

    path: str
    stage: str
    reason: str


def to_bytes(inputs: Iterable[Quarantined]) -> bytes:
    """Return the contents of the file."""
    return "".join(json.dumps(each._asdict(), sort_keys=True) + "\n" for each in inputs).encode()


def from_bytes(data: bytes) -> list[Quarantined]:
    """Read the file.

    Raises:
        FormatError: It is damaged.
    """
    try:
        return [Quarantined(each["path"], each["stage"], each["reason"]) for each in map(json.loads, data.splitlines())]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"damaged ({type(error).__name__}: {error}); restore it from a copy") from error
