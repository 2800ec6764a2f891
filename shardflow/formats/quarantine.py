"""The quarantine: the inputs of a dataset that were not packed, one JSON object per line.

A packed dataset has it in `quarantine.jsonl`. Each version that extends it lists all inputs in a file named by the
version, so files of earlier versions are never replaced. An index of tars has such a file too, because
`quarantine.jsonl` marks a directory in which a pack may replace tars.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardflow._wording import plural
from shardflow.errors import FormatError, PackIncompleteError

FILE_NAME = "quarantine.jsonl"
UNFINISHED_NAME = "quarantine-unfinished.jsonl"
"""Only the new inputs that an extension could not pack, if it failed because of them."""

SKIPPED = "list"
"""The stage of an image of an unsupported kind, which was skipped when the source was listed."""

MAX_BYTES = 1 << 27
"""The most bytes of a quarantine: a million inputs, which take half a gigabyte of memory."""

_MAX_CHARACTERS = 1 << 16  # of a text; each takes up to twelve bytes
_MAX_LINE_BYTES = 1 << 22
_SHOWN, _SHOWN_CHARACTERS = 3, 200


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
    """Return the file name for a version that extends another, or for an index of tars."""
    return f"quarantine-{fingerprint.removeprefix('sha256:')}.jsonl"


def describe(inputs: Sequence[Quarantined]) -> str:
    """Return the first inputs with stage and reason, and the number of the others."""
    shown = "; ".join(f"{each.path!r} ({each.stage}: {each.reason})" for each in inputs[:_SHOWN])
    return f"{shown}; {len(inputs) - _SHOWN} more" if len(inputs) > _SHOWN else shown


def to_bytes(inputs: Sequence[Quarantined]) -> bytes:
    """Return the contents of the file. Texts are cut at 65,536 characters.

    Raises:
        PackIncompleteError: The file would have more than `MAX_BYTES`.
    """
    lines, size = [], 0
    for each in inputs:
        texts = {name: text[:_MAX_CHARACTERS] for name, text in each._asdict().items()}
        lines.append(json.dumps(texts, sort_keys=True).encode() + b"\n")
        size += len(lines[-1])
        if size > MAX_BYTES:
            first = f"the first is {inputs[0].path!r} ({inputs[0].stage}: {inputs[0].reason[:_SHOWN_CHARACTERS]})"
            message = f"{len(inputs):,} inputs could not be packed, more than a list of {MAX_BYTES:,} bytes can name"
            raise PackIncompleteError(f"{message}; {first}. Repair or remove them, then run the same command again")
    return b"".join(lines)


def from_bytes(data: bytes, *, inputs: int | None = None) -> list[Quarantined]:
    """Read the file, line by line to save memory.

    Raises:
        FormatError: It is damaged, or the number of its inputs is not `inputs`.
    """
    if len(data) > MAX_BYTES:
        raise FormatError(f"damaged (it has {len(data):,} bytes, {MAX_BYTES:,} is the most); restore it from a copy")
    found: list[Quarantined] = []
    known: dict[str, str] = {}  # shares equal texts
    try:
        for line in _lines(data):
            each = json.loads(line)
            path, stage, reason = each["path"], each["stage"], each["reason"]
            if not (isinstance(path, str) and isinstance(stage, str) and isinstance(reason, str)):
                raise TypeError("an entry is not a text")
            found.append(Quarantined(path, known.setdefault(stage, stage), known.setdefault(reason, reason)))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"damaged ({type(error).__name__}: {error}); restore it from a copy") from error
    if inputs is not None and len(found) != inputs:
        raise FormatError(f"lists {plural(len(found), 'input')}, but this version has {inputs}; restore it from a copy")
    return found


def _lines(data: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        stop = data.find(b"\n", start) + 1 or len(data)
        if stop - start > _MAX_LINE_BYTES:
            raise ValueError(f"a line has {stop - start:,} bytes")
        yield data[start:stop]
        start = stop
