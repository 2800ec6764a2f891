"""Labelling: inputs with the labels of the source become items with the numbers of classes, which all labels decide."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from shardflow.dataset.label_numbering import Classes, LabelNumbering, Named
from shardflow.errors import ConfigError
from shardflow.formats.annotations import Annotations
from shardflow.formats.labels import Label

from .items import UnlabelledInput, UnlabelledInputs, encode_more
from .reader import Reader
from .source import Source

NUMBER = re.compile(r"0|[1-9][0-9]*")
"""A label in a text that is the number of a class."""

SplitLabel: TypeAlias = "tuple[str, Named]"
"""The key of an unlabelled input: its split, and its label as the source has it."""


def unlabelled_input(
    split: str, label: Named, path: str, size: int, identity: int, more: bytes = b""
) -> UnlabelledInput[SplitLabel]:
    """Return an input with a split and a label; raise a ConfigError for a label of another type."""
    for one in label if isinstance(label, list | tuple) else (() if label is None else (label,)):
        if isinstance(one, bool) or not isinstance(one, str | int):  # True would be the same key as 1
            raise ConfigError(f"{path} has the label {one!r}; expected the number or the name of a class")
    return UnlabelledInput(path, (split, tuple(label) if isinstance(label, list) else label), size, identity, more)


def number_labels(unlabelled: UnlabelledInputs[SplitLabel], classes: Classes, where: object, reader: Reader) -> Source:
    """Return the source of these inputs. One without a label beside labelled ones is bad: a loader would stop at it."""
    numbering = LabelNumbering(classes, (label for _, label in unlabelled.keys), where)
    labelled = {split for split, label in unlabelled.keys if label is not None}
    if any(split in labelled for split, label in unlabelled.keys if label is None):
        unusable = {(split, None) for split in labelled}
        unlabelled = UnlabelledInputs.of(
            _refuse_unlabelled(each) if each.key in unusable else each for each in unlabelled
        )
    return Source(
        reader=reader,
        splits=unlabelled.number(lambda key: (key[0], numbering.number(key[1]))),
        classes=numbering.classes,
    )


def _refuse_unlabelled(each: UnlabelledInput[SplitLabel]) -> UnlabelledInput[SplitLabel]:
    content = json.loads(each.more) if each.more else {}
    return replace(each, more=encode_more(**{"bad": "has no label, as others of its split have", **content}))


def refuse_renumbering(annotations: Annotations, numbers: Mapping[int, int], other: str) -> None:
    """Refuse other numbers of classes where the boxes hold numbers as well: these are kept as they are."""
    moved = [number for number, to in numbers.items() if number != to]
    if moved and annotations.boxes is not None and "labels" in annotations.boxes.fields:
        message = f"class {moved[0]} of the source would be number {numbers[moved[0]]} with the classes in the order of"
        raise ConfigError(f"{message} {other}, but the labels of the boxes are numbers already; use the same order")


def append_classes(source: Source, old: tuple[str, ...] | None) -> Source:
    """Return a source whose labels continue the numbering of a dataset: its classes first, new ones after them."""
    if (source.classes is None) != (old is None):
        labelled, other = ("the dataset", "the source") if source.classes is None else ("the source", "the dataset")
        message = f"{labelled} has classes and {other} has none; both must have them, or neither"
        hint = "" if old is None else ". The column with the classes of a table is named with label= or --label-column"
        raise ConfigError(message + hint)
    if source.classes is None or old is None:
        return source
    known = set(old)
    classes = (*old, *(name for name in source.classes if name not in known))
    places = {name: number for number, name in enumerate(classes)}
    numbers = {number: places[name] for number, name in enumerate(source.classes)}
    refuse_renumbering(source.annotations, numbers, "those of the dataset")

    def renumber(label: Label) -> Label:
        if isinstance(label, tuple):
            return tuple(sorted(numbers[one] for one in label))
        return None if label is None else numbers[label]

    splits = {split: items.relabelled(renumber) for split, items in source.splits.items()}
    return replace(source, splits=splits, classes=classes)
