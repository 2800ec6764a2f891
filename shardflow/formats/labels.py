"""Labels: the numbers of a sample's classes, as its parts hold them.

`cls` holds one number, as the WebDataset convention has it; others than us write zeros before it, and a line break
behind. `labels.json` is ours, and holds a list of numbers. Whoever reads labels reads them here, by one rule.
"""

from __future__ import annotations

import json
from typing import TypeAlias

CLASS, CLASSES = "cls", "labels.json"
LABELS = (CLASSES, CLASS)
"""The parts that hold labels. The first of these that a sample has counts."""

Label: TypeAlias = "int | tuple[int, ...] | None"
"""Number of a class; the numbers of several, ascending; or None where there are no classes."""

_DIGITS = 18  # as many as fit into int64; Python refuses to read numbers of thousands
_SHOWN = 20


def numbers(part: str, payload: bytes, *, classes: int | None = None, strict: bool = False) -> tuple[int, ...]:
    """Return the numbers of the classes that a part says: one of `cls`, any number of them of `labels.json`.

    Args:
        part: One of LABELS.
        payload: What it holds.
        classes: How many classes there are; None where that is not known.
        strict: Take nothing but the form in which this project writes them: no blanks around a number, and a list even
            where it is of one.

    Raises:
        ValueError: It holds anything else, or a number that no class has.
    """
    if part == CLASS:
        text = payload if strict else payload.strip()
        if not (text.isdigit() and len(text) <= _DIGITS and (classes is None or int(text) < classes)):
            raise ValueError(f"label {text[:_SHOWN]!r} is not a number{_of(classes)}")
        return (int(text),)
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        found = None
    several = [found] if type(found) is int and not strict else found
    most = 10**_DIGITS if classes is None else classes
    # Truth values are numbers to Python.
    if not (isinstance(several, list) and all(type(one) is int and 0 <= one < most for one in several)):
        raise ValueError(f"labels {payload[:_SHOWN]!r} are not a list of numbers{_of(classes)}")
    return tuple(several)


def _of(classes: int | None) -> str:
    return "" if classes is None else f" from 0 to {classes - 1}"
