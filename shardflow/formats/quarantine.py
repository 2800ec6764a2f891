"""The quarantine: the inputs of a dataset that were not packed, one JSON object a line.

A dataset has it in `quarantine.jsonl`. Each version that extends it has its own list, of all inputs, in a file that is
named by the version: so no file of a version is replaced before the next one is committed, nor afterwards. So has an
index of tars, because `quarantine.jsonl` marks a directory in which a pack may replace tars.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from shardflow.errors import FormatError

FILE_NAME = "quarantine.jsonl"
UNFINISHED_NAME = "quarantine-unfinished.jsonl"
"""The new inputs alone that an extension could not pack, while it is refused for them."""

SKIPPED = "list"
"""The stage of an image that was skipped for its name, when the source is listed: it is of a kind that is not read."""


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


def version_name(fingerprint: str) -> str:
    """Return the name of the file of a version that extends another one, or of an index of tars."""
    return f"quarantine-{fingerprint.removeprefix('sha256:')}.jsonl"


def to_bytes(inputs: Iterable[Quarantined]) -> bytes:
    """Return the contents of the file."""
    return "".join(json.dumps(each._asdict(), sort_keys=True) + "\n" for each in inputs).encode()


def from_bytes(data: bytes) -> list[Quarantined]:
    """Read the file.

    Raises:
        FormatError: It is damaged.
    """
    try:
        lines = map(json.loads, data.splitlines())
        found = [Quarantined(each["path"], each["stage"], each["reason"]) for each in lines]
        if not all(isinstance(text, str) for each in found for text in each):
            raise TypeError("an entry is not a text")
        return found
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"damaged ({type(error).__name__}: {error}); restore it from a copy") from error
