"""Label numbering: the number of each class, the same in all splits of a source."""

from __future__ import annotations

import json
import logging
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from shardflow._wording import first_few, plural
from shardflow.errors import ConfigError
from shardflow.formats.labels import Label, are_numbers
from shardflow.storage.file_names import given_path, name_bytes
from shardflow.storage.local_files import map_os_errors
from shardflow.storage.urls import strip_file_scheme

logger = logging.getLogger(__name__)

Classes: TypeAlias = "Sequence[str] | str | os.PathLike[str] | None"
"""Class names in the order of their labels, a file with one name per line, or None to find them in the source."""

Named: TypeAlias = "str | int | Sequence[str | int] | None"
"""A label as a source has it: the name or the number of a class, a list of these, or None."""

MAX_CLASSES = 1_000_000


def refuse_lookalikes(names: Iterable[str], where: object) -> None:
    """Raise a ConfigError for class names that differ only in surrounding whitespace or in Unicode normalization.

    Warn of names of several letters that differ only in case: `Cat` in one split may be `cat` in another. Warn of a
    name with whitespace around it, such as from a table with a blank behind each comma.
    """
    names = sorted(names)
    if (blank := next((name for name in names if name != name.strip()), None)) is not None:
        logger.warning(
            "%s has the class %a, which begins or ends with a blank; remove it if it has no meaning", where, blank
        )
    shown: dict[str, str] = {}
    in_lower_case: dict[str, str] = {}
    for name in names:
        same = shown.setdefault(unicodedata.normalize("NFC", name.strip()), name)
        if same != name:
            raise ConfigError(
                f"{where} has the classes {same!a} and {name!a}, which look alike; rename one as the other is written"
            )
        if (other := in_lower_case.setdefault(name.lower(), name)) != name and len(name) > 1:
            message = "%s has the classes %a and %a, which differ only in upper and lower case; are they one class?"
            logger.warning(message, where, other, name)


class LabelNumbering:
    """The class names of a source, label 0 first (`classes`; None without labels and given classes), and their numbers.

    Names found in the source are sorted by their bytes. Numeric labels stay, and become the names if none are given.
    """

    def __init__(self, classes: Classes, found: Iterable[Named], where: object) -> None:
        known = class_names(classes)
        labels = {one for label in found for one in (label if isinstance(label, list | tuple) else (label,))} - {None}
        numbers = {label for label in labels if isinstance(label, int)}
        names = {label for label in labels if isinstance(label, str)}
        for name in (*names, *(known or ())):
            try:
                name.encode()
            except UnicodeEncodeError:  # a name from a file system or a JSON file may have lone surrogates
                raise ConfigError(f"{where} has the class {name!r}, whose name is not UTF-8; rename it") from None
        refuse_lookalikes((*names, *(known or ())), where)
        if numbers and names:
            raise ConfigError(f"{where} has both numbers and names as labels: {min(numbers)} and {min(names)!r}")
        if numbers and max(numbers) >= MAX_CLASSES:
            message = f"{where} has the label {max(numbers)}; expected a number from 0 to {MAX_CLASSES - 1}"
            raise ConfigError(f"{message}, or a file of all ids for --classes, one per line")
        if known is None and numbers:
            known = tuple(map(str, range(max(numbers) + 1)))
        elif known is None:
            known = tuple(sorted(names, key=name_bytes))
        self.classes = known if labels or classes is not None else None
        self._numbers = {name: number for number, name in enumerate(known)}
        unknown = sorted(names - self._numbers.keys())
        if unknown:
            parts = re.split("[ ,;|]+", unknown[0])
            remedy = f"; if it is several, {as_json_list(parts)}" * (len(parts) > 1)
            remedy *= self._numbers.keys() >= {*parts}
            raise ConfigError(f"{where} has the class {unknown[0]!r}, not one of the {len(known)} given{remedy}")
        if numbers and max(numbers) >= len(known):
            given = f"{plural(len(known), 'class')} {'was' if len(known) == 1 else 'were'}"
            raise ConfigError(f"{where} has the label {max(numbers)}, but only {given} given")

    def number(self, label: Named) -> Label:
        """Return the number of a class, or the ascending numbers of several classes."""
        if label is None or isinstance(label, int):
            return label
        if isinstance(label, str):
            return self._numbers[label]
        return tuple(sorted({self._numbers[one] if isinstance(one, str) else one for one in label}))


def as_json_list(classes: Sequence[Any]) -> str:
    """Return the remedy for several classes in one text."""
    return f"write a JSON list, such as {json.dumps(classes)}"


def common_classes(datasets: Sequence[tuple[str, Sequence[str] | None]]) -> tuple[str, ...] | None:
    """Return the class names of datasets whose samples are mixed, given the URL and the class names of each.

    Labels in tars are numbers, so each number must mean the same class in all datasets. The result is the longest list
    of names; each other list must be a prefix of it.

    Raises:
        ConfigError: A number means different classes, or only some datasets have class names.
    """
    where, longest = max(datasets, key=lambda dataset: len(dataset[1] or ()))
    for url, classes in datasets:
        if (classes is None) != (longest is None):
            without, named = (url, where) if classes is None else (where, url)
            raise ConfigError(
                f"{without} has no class names, and {named} has, so their numbers cannot be compared; pack it with "
                "`--classes FILE`, or keep datasets with and without class names apart"
            )
        if classes is not None and longest is not None and tuple(classes) != tuple(longest[: len(classes)]):
            number = next(number for number, name in enumerate(classes) if name != longest[number])
            remedy = f"run `shardflow pack {url} NEW --preset original --classes FILE` for each"
            remedy += ", with all class names in FILE (with boxes, pack their source)"
            if unnamed := [each for each, names in datasets if names and are_numbers(names)]:
                remedy = f"if numbers mean the same, make {unnamed[0]} again with `--classes FILE`, a name per line"
            raise ConfigError(
                f"class {number} is {classes[number]!r} in {url} and {longest[number]!r} in {where}, and the tars "
                f"have numbers; {remedy}"
            )
    if longest and are_numbers(longest) and len({url for url, _ in datasets}) > 1:
        logger.warning(
            "the classes of %s are numbers without names, so whether a number means the same class in all is not "
            "checked; `shardflow index` and `shardflow pack` name the classes with `--classes FILE`",
            " and ".join(dict.fromkeys(url for url, _ in datasets)),
        )
    return None if longest is None else tuple(longest)


def _in_order(classes: Mapping[Any, str]) -> list[str]:
    """Return the names in a map from class numbers, which may be texts as in JSON."""
    numbers = {str(number): name for number, name in classes.items()}
    if not are_numbers(sorted(numbers, key=lambda text: (len(text), text))):
        raise ConfigError(f"classes has the keys {first_few([*numbers], 5)}; expected each number from 0 to its name")
    return [numbers[str(number)] for number in range(len(numbers))]


def class_names(classes: Classes) -> tuple[str, ...] | None:
    """Return the given class names, or the lines of their file; raise ConfigError if there are none or one repeats."""
    if classes is None:
        return None
    if isinstance(classes, str | os.PathLike):
        path = Path(given_path(strip_file_scheme(classes)))
        try:
            with map_os_errors(path):
                text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{path} is not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
            ) from error
        names = tuple(line.strip() for line in text.rstrip().split("\n"))
        if names[0].startswith(("{", "[")):
            raise ConfigError(f"{path} is JSON; write one name per line, or pass classes=json.load(file) in Python")
        if "" in names[:-1]:
            raise ConfigError(f"{path}, line {names.index('') + 1} is blank, and lines number the classes; remove it")
        names = tuple(filter(None, names))
    else:
        path, names = None, tuple(_in_order(classes) if isinstance(classes, Mapping) else classes)
        if (other := next((name for name in names if not isinstance(name, str)), None)) is not None:
            raise ConfigError(f"a class is named by a text, found {other!r:.80}; pass the names in order")
    if not names:
        raise ConfigError(
            f"{path or 'classes'} has no class; expected one name or more (only a folder of images is packed without "
            "labels by --classes none)"
        )
    if len(set(names)) < len(names):
        repeated = next(name for number, name in enumerate(names) if name in names[:number])
        raise ConfigError(f"{path or 'classes'} has the class {repeated!r} twice; expected each name once")
    return names
