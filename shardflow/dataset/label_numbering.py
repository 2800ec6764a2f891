"""Class names: which number a class has, the same in every split."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from shardflow.errors import ConfigError
from shardflow.formats.labels import Label
from shardflow.storage.local_files import map_os_errors

Classes: TypeAlias = "Sequence[str] | str | os.PathLike[str] | None"
"""Names in the order of their labels, a file with one a line, or None for those that are found."""

Named: TypeAlias = "str | int | Sequence[str | int] | None"
"""A label as a source has it: a class's name or number, or a list of them."""

MAX_CLASSES = 1_000_000


class LabelNumbering:
    """What the classes of a source are, once all of them have been seen.

    Names are sorted by their bytes. Numbers stay what they are, and are their own names.

    Args:
        classes: Names that are known already.
        found: Every label there is.
        where: How messages name the source.

    Raises:
        ConfigError: A label is not among the classes that are known, or names and numbers are mixed.
    """

    def __init__(self, classes: Classes, found: Iterable[Named], where: object) -> None:
        known = _names(classes)
        seen = {one for label in found for one in _each(label, where)}
        numbers = {one for one in seen if isinstance(one, int)}
        if numbers and len(numbers) < len(seen):
            name = min(one for one in seen if isinstance(one, str))
            raise ConfigError(f"{where} has both numbers and names as labels, such as {min(numbers)} and {name!r}")
        if numbers and (min(numbers) < 0 or max(numbers) >= MAX_CLASSES):
            wrong = min(numbers) if min(numbers) < 0 else max(numbers)
            raise ConfigError(f"{where} has the label {wrong}; numbers of classes go from 0 to {MAX_CLASSES - 1}")
        if known is None and numbers:
            known = tuple(map(str, range(max(numbers) + 1)))
        elif known is None:
            known = tuple(sorted((one for one in seen if isinstance(one, str)), key=os.fsencode))
        self.classes = known if seen or classes is not None else None
        self._numbers = {name: number for number, name in enumerate(known)}
        strange = sorted(one for one in seen if isinstance(one, str) and one not in self._numbers)
        if strange:
            raise ConfigError(f"{where} has the class {strange[0]!r}, not one of the {len(known)} given")
        if numbers and max(numbers) >= len(known):
            raise ConfigError(f"{where} has the label {max(numbers)}, but only {len(known)} classes were given")

    def number(self, label: Named) -> Label:
        """Return a label as the number, or the ascending numbers, of its class or classes."""
        if label is None or isinstance(label, int):
            return label
        if isinstance(label, str):
            return self._numbers[label]
        return tuple(sorted({self._numbers[one] if isinstance(one, str) else one for one in label}))


def _each(label: Named, where: object) -> Sequence[str | int]:
    several = () if label is None else label if isinstance(label, list | tuple) else (label,)
    for one in several:
        if not isinstance(one, str | int):
            raise ConfigError(f"{where} has the label {one!r}; expected the number or the name of a class")
    return several


def _names(classes: Classes) -> tuple[str, ...] | None:
    if classes is None:
        return None
    if isinstance(classes, str | os.PathLike):
        path = Path(classes)
        with map_os_errors(path):
            text = path.read_text(encoding="utf-8")
        names = tuple(line.strip() for line in text.splitlines() if line.strip())
    else:
        path, names = None, tuple(classes)
    if not names or len(set(names)) < len(names):
        problem = "no class" if not names else f"the class {_twice(names)!r} twice"
        raise ConfigError(f"{path or 'classes'} names {problem}; expected each name once")
    return names


def _twice(names: Sequence[str]) -> str:
    return next(name for number, name in enumerate(names) if name in names[:number])
