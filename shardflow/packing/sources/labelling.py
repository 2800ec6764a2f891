"""Drafts: items whose label is no number yet, because all labels of a source together decide which number each has.

In the place of the label stands a pair: the split, and the label as the source has it.
"""

from __future__ import annotations

import json

from shardflow.dataset.label_numbering import Classes, LabelNumbering, Named
from shardflow.errors import ConfigError

from .items import Item, Items, more
from .reader import Reader
from .source import Source


def draft(split: str, label: Named, path: str, size: int, changed_ns: int, about: bytes) -> Item:
    """Return an item without its number.

    Raises:
        ConfigError: The label is nothing that could be one.
    """
    pair = (split, tuple(label) if isinstance(label, list) else label)
    try:
        hash(pair)
    except TypeError:
        raise ConfigError(f"{path} has the label {label!r}; expected the number or the name of a class") from None
    return Item(path, pair, size, changed_ns, about)  # type: ignore[arg-type] # see above


def numbered(drafts: Items, classes: Classes, where: object, reader: Reader) -> Source:
    """Return the source that drafts make.

    In a split where others have labels, an input without one cannot be used: a loader would stop at it.

    Args:
        drafts: All of them, in their order.
        classes: Class names that are known already.
        where: How messages name the source.
        reader: Its reader.

    Raises:
        ConfigError: A label is not among the classes that are known, or names and numbers are mixed.
    """
    labels = LabelNumbering(classes, (label for _, label in drafts.labels()), where)
    labelled = {split for split, label in drafts.labels() if label is not None}
    if any(split in labelled for split, label in drafts.labels() if label is None):
        unusable = {(split, None) for split in labelled}
        drafts = Items.of(_refused(item) if item.label in unusable else item for item in drafts)  # type: ignore[comparison-overlap]
    splits = drafts.grouped(lambda pair: pair[0])
    return Source(
        reader=reader,
        splits={split: items.relabelled(lambda pair: labels.number(pair[1])) for split, items in splits.items()},
        classes=labels.classes,
        ignored={},
    )


def _refused(item: Item) -> Item:
    about = json.loads(item.more) if item.more else {}
    return item._replace(more=more(**{"bad": "has no label, as others of its split have", **about}))
