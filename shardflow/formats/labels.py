"""Labels: the classes of a sample, as numbers in one of its parts.

    cls           one number, as the WebDataset convention has it; other writers put zeros before it or a line break
                  after it
    labels.json   a JSON list of numbers, which is shardflow's own

Every label that is read or written goes through this module.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeAlias

from shardflow.errors import DecodeError

CLASS_PART, CLASSES_PART = "cls", "labels.json"
LABEL_PARTS = (CLASSES_PART, CLASS_PART)
"""The parts that can hold labels. Where a sample has both, the first counts."""

Label: TypeAlias = "int | tuple[int, ...] | None"
"""The number of a class; the numbers of several, ascending; or None without classes."""

MAX_LABEL_BYTES = 1 << 20
"""The most bytes of a part with labels: JSON takes twenty times as much memory when it is parsed."""

_DIGITS = 18  # as many as fit into int64; Python refuses to read numbers of thousands of digits
_SHOWN_BYTES = 20


def format_label(label: Label) -> dict[str, bytes]:
    """Return the part that holds a label, by its name; no part for None."""
    if label is None:
        return {}
    return {CLASS_PART: b"%d" % label} if isinstance(label, int) else {CLASSES_PART: json.dumps(label).encode()}


def sample_labels(
    read_part: Callable[[str], bytes | memoryview | None], *, classes: int | None = None
) -> tuple[int, ...] | None:
    """Return the numbers of the classes of a sample, whose parts `read_part` returns; None where it has no labels."""
    for part in LABEL_PARTS:
        if (payload := read_part(part)) is not None:
            return parse_labels(part, payload, classes=classes)
    return None


def parse_labels(
    part: str, payload: bytes | memoryview, *, classes: int | None = None, strict: bool = False
) -> tuple[int, ...]:
    """Return the numbers of the classes in a part: one number in `cls`, any number of them in `labels.json`.

    Raise a DecodeError for any other text, and for a number beyond the known number of classes. `strict` reads
    only what `format_label` writes: no blanks around a number, and a list even of one number.
    """
    if len(payload) > MAX_LABEL_BYTES:
        raise DecodeError(f"labels have {len(payload):,} bytes; {MAX_LABEL_BYTES:,} is the most")
    payload = bytes(payload)
    if part == CLASS_PART:
        text = payload if strict else payload.strip()
        if not (text.isdigit() and len(text) <= _DIGITS and (classes is None or int(text) < classes)):
            raise DecodeError(f"label {text[:_SHOWN_BYTES]!r} is not a number{_range(classes)}")
        return (int(text),)
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        found = None
    numbers = [found] if type(found) is int and not strict else found
    end = 10**_DIGITS if classes is None else classes
    # `type(...) is int`, because a bool is an int to isinstance.
    if not (isinstance(numbers, list) and all(type(number) is int and 0 <= number < end for number in numbers)):
        raise DecodeError(f"labels {payload[:_SHOWN_BYTES]!r} are not a list of numbers{_range(classes)}")
    return tuple(numbers)


def _range(classes: int | None) -> str:
    return "" if classes is None else f" from 0 to {classes - 1}"
