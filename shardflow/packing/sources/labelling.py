"""Labelling: inputs with the labels of a source become items with class numbers, which depend on all labels."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardflow.dataset.label_numbering import Classes, LabelNumbering, Named, as_json_list, refuse_lookalikes
from shardflow.errors import ConfigError
from shardflow.formats.annotations import Annotations
from shardflow.formats.labels import Label, are_ids, are_numbers

from .items import Item, Items, encode_more
from .reader import Reader
from .source import Source

NUMBER = re.compile(r"0|[1-9][0-9]*")
"""A text label that is a class number."""

_LIKE_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]*)?")

_WHOLE_NUMBER = re.compile(r"(0|[1-9][0-9]*)\.0*")
"""A class number as pandas writes it in a column that has empty cells."""

_MISSING = {"#n/a", "nan", "na", "n/a", "none", "null"}

_NUMBERS = re.compile(r"[0-9]+([ ,;|]+[0-9]+)+")

_LIKE_LIST = re.compile(r"""[\[(]\s*(['"].*['"]|\d[\d\s,]*),?\s*[\])]|"[^"]*\"""", re.DOTALL)

_FEW_JOINED = 4  # fewer names that look like lists may be names

_MANY = 20  # from this many images on, nearly as many classes as images are probably a mistake

logger = logging.getLogger(__name__)


def unlabelled_input(split: str, label: Named, path: str, size: int, identity: int, more: bytes = b"") -> Item:
    """Return an input with a split and a label; an empty text means no label. ConfigError for an invalid label."""
    label = None if label == "" else label
    several = label if isinstance(label, list | tuple) else (() if label is None else (label,))
    for one in several:
        if isinstance(one, bool) or not isinstance(one, str | int) or one == "":  # True would be the same key as 1
            whole = "; in pandas, `.astype('Int64')` converts floats to integers, also with nulls"
            message = f"{path} has the label {one!r}; expected the number or the name of a class"
            raise ConfigError(message + whole * isinstance(one, float))
        if isinstance(one, int) and one < 0:
            remedy = "leave such rows out, or write null in all rows of a split without classes"
            raise ConfigError(f"{path} has the label {one}, but class numbers begin at 0; {remedy}")
    if len(set(several)) < len(several) or list(several) == [1, 0]:
        looks = ", which looks like a one-hot or multi-hot vector" * all(isinstance(one, int) for one in several)
        raise ConfigError(f"{path} has the label {list(several)!r:.60}{looks}; expected a list of different classes")
    return Item(path, (split, tuple(label) if isinstance(label, list) else label), size, identity, more)


def names_or_numbers(unlabelled: Items, classes: Sequence[str] | None, *, is_text: bool) -> Items:
    """Return the inputs of a table; their labels that are numbers become names, if the given classes have such names.

    They have if one label is among the names, or if all names are ids. Otherwise numbers stay the numbers of classes,
    and if all labels of a text table are such, they become these.
    """
    labels = [label for _, label in unlabelled.labels if label is not None]
    texts = {str(one) for label in labels for one in (label if isinstance(label, tuple) else (label,))}
    if are_ids(classes or ()) or not texts.isdisjoint(classes or ()):
        to: type = str
    elif is_text and all(NUMBER.fullmatch(str(label)) for label in labels):
        to = int
    else:
        return unlabelled

    def convert(label: Any) -> Any:
        return None if label is None else tuple(map(to, label)) if isinstance(label, tuple) else to(label)

    return unlabelled.relabelled(lambda key: (key[0], convert(key[1])))


def number_labels(unlabelled: Items, classes: Classes, where: object, reader: Reader) -> Source:
    """Return the source of these inputs. An unlabelled input in a labelled split is bad: a loader would fail on it."""
    labels = [label for _, label in unlabelled.labels]
    numbering = LabelNumbering(classes, labels, where)
    if classes is None:
        used = [label for label in labels if label is not None]
        if len(unlabelled) >= _MANY and len(used) > 0.9 * len(unlabelled):
            message = "%s has a class for nearly every image, %d for %d; check that these are the labels"
            logger.warning(message, where, len(used), len(unlabelled))
        _refuse_lists_as_text(numbering.classes or (), where)
        _warn_of_joined_names(numbering.classes or (), where)
        _warn_of_missing(numbering.classes or (), where)
        _refuse_moved_numbers(numbering, labels, where)
    labelled = {split for split, label in unlabelled.labels if label is not None}
    if any(split in labelled for split, label in unlabelled.labels if label is None):
        unusable = {(split, None) for split in labelled}
        remedy = "; the list of an image of no class is []" * any(isinstance(label, tuple) for label in labels)
        unlabelled = Items.of(
            _refuse_unlabelled(each, remedy) if each.label in unusable else each for each in unlabelled
        )
    return Source(
        reader=reader,
        splits=unlabelled.divided(lambda key: (key[0], numbering.number(key[1]))),
        classes=numbering.classes,
        has_own_classes=classes is None and numbering.classes is not None,
    )


def _refuse_moved_numbers(numbering: LabelNumbering, labels: Iterable[Named], where: object) -> None:
    """Refuse names that are numbers but would get another number: a single "NA" turns all numbers into names."""
    several = (label if isinstance(label, list | tuple) else (label,) for label in labels)
    names = dict.fromkeys(one for label in several for one in label if isinstance(one, str))
    whole = next(filter(_WHOLE_NUMBER.fullmatch, names), None)
    if whole and all(NUMBER.fullmatch(name) or _WHOLE_NUMBER.fullmatch(name) for name in names):
        remedy = "write class numbers without a point, as pandas does after `.astype('Int64')`, also with empty cells"
        message = (
            f"{where} has the label {whole!r}; {remedy}; or list the classes in a file for --classes; a number to "
        )
        message += "predict is not a label: name the column otherwise, and add it by `shardflow columns add`"
        raise ConfigError(message)
    if (moved := next((name for name in names if is_moved(name, numbering.number(name))), None)) is None:
        return
    message = f"{where} has the label {moved!r} as text, which would become class {numbering.number(moved)}"
    other = next((name for name in names if not NUMBER.fullmatch(name) and not _WHOLE_NUMBER.fullmatch(name)), moved)
    why = f"{other!r} is not a class number; write numbers only, or list the classes in a file for --classes"
    if joined := next(filter(_NUMBERS.fullmatch, names), None):
        why = f"{joined!r} is not a number; {as_json_list([*map(int, re.findall('[0-9]+', joined))])}"
    elif _LIKE_NUMBER.fullmatch(other) and "." in other:
        why = f"{other!r} is not a class number; a measured number belongs in a column that is not the label, so that "
        why += "it goes to .json"
    raise ConfigError(f"{message}, because {why}")


def is_moved(name: str, number: Label) -> bool:
    """Return whether the name of a class is a number, but another one than its own."""
    return bool(_LIKE_NUMBER.fullmatch(name)) and float(name) != number


def _warn_of_missing(classes: Sequence[str], where: object) -> None:
    """Warn of names that programs write for a missing value, such as "nan"."""
    if missing := next((name for name in classes if name.strip("<>").casefold() in _MISSING), None):
        remedy = "if it stands for a missing label, leave the cell empty"
        logger.warning("%s has the class %r; %s", where, missing, remedy)


def _refuse_lists_as_text(classes: Sequence[str], where: object) -> None:
    if (text := next(filter(_LIKE_LIST.fullmatch, classes), None)) is not None:
        message = f"{where} has the class {text!r:.60}, which is quoted, or a list as Python prints it"
        remedy = "as pandas' `frame['label'].map(json.dumps)` makes of lists, `.str.split().map(json.dumps)` of texts"
        raise ConfigError(f"{message}; write plain names, or JSON lists, {remedy}")


def _warn_of_joined_names(classes: Sequence[str], where: object) -> None:
    """Warn if names look like lists, such as "rust scab": divided, they are fewer, and some are classes or recur."""
    for separator in "|;, ":
        joined = [name for name in classes if separator in name.strip()]
        divided = {name: [one.strip() for one in name.split(separator) if one.strip()] for name in joined}
        parts = {one for several in divided.values() for one in several}
        names = parts.union(classes) - {*joined}
        are_classes = len(names) < len(classes) and not parts.isdisjoint(classes)
        recur = len(joined) >= _FEW_JOINED and 2 * len(names) <= len(classes)
        if are_classes or recur:
            remedy = as_json_list(divided[joined[0]])
            message = "%s has the class %r, which may be several; if it is, %s, into each cell"
            logger.warning(message, where, joined[0], remedy)
            return


def _refuse_unlabelled(each: Item, remedy: str) -> Item:
    content = json.loads(each.more) if each.more else {}
    return each._replace(more=encode_more(**{"bad": f"has no label, but others of its split have{remedy}", **content}))


def refuse_renumbering(annotations: Annotations, numbers: Mapping[int, int], other: str) -> None:
    """Refuse to renumber classes if boxes have class numbers too, which would not change."""
    moved = [number for number, to in numbers.items() if number != to]
    if moved and annotations.boxes is not None and "labels" in annotations.boxes.fields:
        message = f"class {moved[0]} of the source would become class {numbers[moved[0]]} in the order of {other}"
        raise ConfigError(f"{message}, but the labels of its boxes are fixed numbers; use the same order")


def _refuse_numbers(classes: Sequence[str], old: Sequence[str]) -> None:
    """Refuse to mix numbers and names: a label 0 would become a new class named "0"."""
    begin_alike = all(name == other for name, other in zip(classes, old, strict=False))
    are_named = are_numbers(old) and set(old).isdisjoint(classes) and not all(map(str.isdecimal, classes))
    if (are_numbers(classes) and not begin_alike) or are_named:
        raise ConfigError(
            f"the source has classes such as {classes[0]!r}, the dataset such as {old[0]!r}; numbers and names would "
            "be different classes: list the source's classes in a file for --classes, by the dataset's names"
        )


def append_classes(source: Source, old: tuple[str, ...] | None, has_labels: Mapping[str, bool]) -> Source:
    """Return a source whose labels continue the numbering of a dataset: old classes first, then new ones.

    `has_labels` says of the dataset's splits whether they have labels. A source without labels may have those that have
    none, and new ones except `train`.
    """
    must_have = any(has_labels.get(split, split == "train") for split in source.splits)
    if source.classes is None and old is not None and not must_have:
        return replace(source, classes=old)
    if (source.classes is None) != (old is None):
        labelled, other = ("the dataset", "the source") if source.classes is None else ("the source", "the dataset")
        message = f"{labelled} has classes and {other} has none; both must have them, or neither"
        hint = ". For a table, name the column of the classes with label= or --label-column"
        if old is None:
            hint = ". To leave out the labels of a folder, use Folder(classes=()) or --classes none"
        raise ConfigError(message + hint)
    if source.classes is None or old is None:
        return source
    _refuse_numbers(source.classes, old)
    known = set(old)
    classes = (*old, *(name for name in source.classes if name not in known))
    refuse_lookalikes(classes, "the dataset with the source")
    places = {name: number for number, name in enumerate(classes)}
    numbers = {number: places[name] for number, name in enumerate(source.classes)}
    refuse_renumbering(source.annotations, numbers, "those of the dataset")

    def renumber(label: Label) -> Label:
        if isinstance(label, tuple):
            return tuple(sorted(numbers[one] for one in label))
        return None if label is None else numbers[label]

    splits = {split: items.relabelled(renumber) for split, items in source.splits.items()}
    return replace(source, splits=splits, classes=classes)
