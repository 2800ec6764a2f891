"""Labels: the classes of a sample, as numbers in one of its parts.

cls           one number, the WebDataset convention; other tools add leading zeros or a line break
labels.json   a JSON list of numbers, shardflow's convention
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TypeAlias

from shardflow.errors import DecodeError

CLASS_PART, CLASSES_PART = "cls", "labels.json"
LABEL_PARTS = (CLASSES_PART, CLASS_PART)
"""The parts that can hold labels. If a sample has both, the first counts."""

Label: TypeAlias = "int | tuple[int, ...] | None"
"""The number of a class; the numbers of several classes, ascending; or None."""

MAX_LABEL_BYTES = 1 << 20
"""Limit of a part with labels: parsed JSON takes twenty times as much memory."""

_DIGITS = 18  # fit into int64; Python refuses to parse thousands of digits
_SHOWN_BYTES = 20


def format_label(label: Label) -> dict[str, bytes]:
    """Return the part that holds a label, name → bytes; empty for None."""
    if label is None:
        return {}
    return {CLASS_PART: b"%d" % label} if isinstance(label, int) else {CLASSES_PART: json.dumps(label).encode()}


def sample_labels(
    read_part: Callable[[str], bytes | memoryview | None], *, classes: int | None = None
) -> tuple[int, ...] | None:
    """Return the class numbers of a sample, whose parts `read_part` returns; None if it has no labels."""
    for part in LABEL_PARTS:
        if (payload := read_part(part)) is not None:
            return parse_labels(part, payload, classes=classes)
    return None


def parse_labels(
    part: str, payload: bytes | memoryview, *, classes: int | None = None, strict: bool = False
) -> tuple[int, ...]:
    """Return the class numbers in a part: one in `cls`, any number of them in `labels.json`.

    `strict` accepts only the output of `format_label`: no blanks around a number, and a list even for one number.

    Raises:
        DecodeError: The text has another form, or a number is not below `classes`.
    """
    if len(payload) > MAX_LABEL_BYTES:
        raise DecodeError(f"labels have {len(payload):,} bytes; the limit is {MAX_LABEL_BYTES:,}")
    payload = bytes(payload)
    if part == CLASS_PART:
        text = payload if strict else payload.strip()
        if not (text.isdigit() and len(text) <= _DIGITS and (classes is None or int(text) < classes)):
            raise DecodeError(f"label {text[:_SHOWN_BYTES]!r} is not a whole number{_range(classes)}")
        return (int(text),)
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        found = None
    numbers = [found] if type(found) is int and not strict else found
    end = 10**_DIGITS if classes is None else classes
    # `type(...) is int`, because a bool is an instance of int.
    if not (isinstance(numbers, list) and all(type(number) is int and 0 <= number < end for number in numbers)):
        raise DecodeError(f"labels {payload[:_SHOWN_BYTES]!r} are not a list of whole numbers{_range(classes)}")
    return tuple(numbers)


def are_numbers(names: Sequence[str]) -> bool:
    """Return whether the names of classes are only their numbers, from 0."""
    return [*names] == [str(number) for number in range(len(names))]


def are_ids(names: Sequence[str]) -> bool:
    """Return whether the names of classes are numbers other than their own: a number is then a name, never a place."""
    return bool(names) and all(name.isascii() and name.isdecimal() for name in names) and not are_numbers(names)


def _range(classes: int | None) -> str:
    return ", 0 or more" if classes is None else f" from 0 to {classes - 1}"
