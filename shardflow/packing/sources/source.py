"""The contract of sources: every kind of source is listed as a `Source`.

    SourceKind   a `Folder`, a `Table`, `Shards`, not yet listed; `Collection` is one for samples as objects
    Source       the listing: all inputs with their splits and labels, in a fixed order
    Item         one input (`items`); it begins as a draft, because labels are numbered together (`labelling`)
    Reader       reads an item in any process (`reader`), be it files, objects behind a URL, or slices of a tar

To add a kind of source, write its class in a file of its own, and register it in `resolve.KINDS`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from shardflow.dataset.label_numbering import Classes

from .items import Items
from .reader import Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A listing. It is a context manager: what reading its inputs needs lasts until it is closed.

    Attributes:
        reader: Reads any input, in any process.
        splits: Split → its inputs, in an order that a second listing repeats.
        classes: Class names, label 0 first, shared by all splits; None without labels.
        skipped: Extension → number of files that are not inputs because of it.
        is_dataset: Whether it is a shardflow dataset, in which a name never gets another content.
        resources: Closed with the source.
    """

    reader: Reader
    splits: Mapping[str, Items]
    classes: tuple[str, ...] | None
    skipped: Mapping[str, int]
    is_dataset: bool = False
    resources: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, repr=False, compare=False)

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.resources.close()

    @property
    def inputs(self) -> int:
        """Number of inputs of all splits."""
        return sum(len(items) for items in self.splits.values())


class SourceKind(Protocol):
    """A kind of source that a path or URL can name. The constructor reads nothing; `list` does."""

    def __init__(
        self, url: str | os.PathLike[str], *, classes: Classes = None, storage_options: Mapping[str, Any] | None = None
    ) -> None: ...

    @staticmethod
    def recognizes(url: str, storage_options: Mapping[str, Any] | None) -> bool:
        """Return whether a path or URL looks like this kind."""
        ...

    def list(self) -> Source:
        """List all inputs.

        An input that is found unusable is listed with the reason, and quarantined later. Two listings of an unchanged
        source are equal: a resume compares items.

        Raises:
            ConfigError: There are no inputs, or their splits or labels are not clear.
            StoreError: The source cannot be read.
        """
        ...
