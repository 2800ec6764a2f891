"""Detection inputs: images with boxes, listed by the sources of several formats. The boxes become a part `json`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from shardflow.dataset.label_numbering import Named

from .items import Item, encode_more
from .labelling import unlabelled_input
from .reader import place_state, public_name

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def number(text: str) -> float:
    """Return the number in a text; ValueError for other texts, and for Python's extensions such as 1_000 and nan."""
    if not _NUMBER.fullmatch(text) or not math.isfinite(found := float(text)):
        raise ValueError(text)
    return found


def detection_input(base: str, split: str, place: str, sample: Mapping[str, Any]) -> Item:
    """Return the input of an image at a place below a base, with the JSON of its sample.

    Its classes are the "labels" of its boxes, for sampling and subsets. If the JSON has "width" and "height", the image
    must have this size.
    """
    path, (size, identity) = public_name(place), place_state(base, place)
    declared = sample.get("width"), sample.get("height")
    more = encode_more(
        image=[place] if path != place else [],
        parts={"json": json.dumps(sample)},
        size=[] if None in declared else [*declared],
    )
    label: Named = tuple(sorted({*sample["labels"]}))
    return unlabelled_input(split, label, path, size, identity, more)


def bad_input(split: str, path: str, reason: str) -> Item:
    """Return an input that cannot be used."""
    return unlabelled_input(split, (), path, -1, 0, encode_more(bad=reason))
