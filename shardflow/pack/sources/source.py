"""A source, listed: every input by name, in a fixed order, with its split and its label.

All kinds of sources end up as the same small tuples: a reader in a worker needs no more than one of them to find an
image and what goes with it, whether they are files, objects behind a URL, or slices of a tar.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from .reader import Reader

if TYPE_CHECKING:
    from .items import Items

SPLITS = ("train", "val", "valid", "validation", "test")

Label: TypeAlias = "int | tuple[int, ...] | None"
"""Number of a class; the numbers of several, ascending; or None where there are no classes."""


class Item(NamedTuple):
    """One input.

    Attributes:
        path: Its name in the ledger: unique enough to find it again, and without anything secret. Below the source, or
            a path or URL of its own.
        label: Its class or classes.
        size: Of the image in bytes when it was listed, -1 when that was not asked.
        changed_ns: When it was changed last (ctime, which a copy with an old mtime and a new mode touch as well); 0
            where `more` tells other contents.
        more: What the reader needs besides, see `Reader`; empty when the image is the file at `path` and nothing else.
            All of it counts as what the input *is*: a resume does an input again whose `more` is another one.
    """

    path: str
    label: Label
    size: int
    changed_ns: int
    more: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """All inputs.

    Attributes:
        reader: Reads any of them, in any process.
        splits: Split → its inputs, in an order that a second listing gives again.
        classes: Class names, label 0 first, shared by all splits; None without labels.
        ignored: Extension → number of files that are no inputs because of it.
        sealed: Whether it is a dataset of ours, where all names are of one form and never get another content.
    """

    reader: Reader
    splits: Mapping[str, Items]
    classes: tuple[str, ...] | None
    ignored: Mapping[str, int]
    sealed: bool = False

    @property
    def inputs(self) -> int:
        """Number of inputs of all splits."""
        return sum(len(items) for items in self.splits.values())


def more(**content: object) -> bytes:
    """Return what an item tells its reader, see `Reader`, as bytes that are the same whenever the content is."""
    kept = {name: value for name, value in content.items() if value}
    return json.dumps(kept, sort_keys=True, separators=(",", ":")).encode() if kept else b""
