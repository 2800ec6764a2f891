"""A source, listed: every input by name, in a fixed order, with its split and its label.

All kinds of sources end up as the same small tuples: a reader in a worker needs no more than one of them to find an
image and what goes with it, whether they are files, objects behind a URL, or slices of a tar.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .reader import Reader

if TYPE_CHECKING:
    from .items import Items


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
