"""The contract of sources: every kind of source is listed as a `Source`.

    SourceKind   a `Folder`, a `Table`, `Parquet`, …, not yet listed; `Collection` is the kind for samples as objects
    Source       the listing: all inputs with their splits and labels, in a fixed order
    Item         one input (`items`); its label is numbered once all labels are known (`labelling`)
    Reader       reads an item in any process (`reader`): files, remote objects, or slices of a tar

To add a kind of source, write its class in a file, and register it in `resolve.KINDS`.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from shardflow._wording import plural
from shardflow.dataset.label_numbering import Classes
from shardflow.errors import ConfigError, PackIncompleteError
from shardflow.formats.annotations import NOTHING, Annotations
from shardflow.formats.quarantine import Quarantined
from shardflow.storage.urls import shown_url

from .items import Items
from .reader import Reader

logger = logging.getLogger(__name__)

_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A listing, as a context manager: the resources for reading its inputs last until it is closed.

    Attributes:
        reader: Reads any input, in any process.
        splits: Split → its inputs, in a reproducible order.
        classes: Class names, label 0 first, shared by all splits; None without labels.
        skipped: Images of unsupported kinds, which are not in `splits`; see `refuse_skipped`.
        ignored: Extension → number of files that are not images.
        annotations: The annotations that the source declares.
        has_own_classes: Whether the classes are those of its labels alone, in an order of their own.
        is_dataset: Whether it is a shardflow dataset.
        resources: Closed with the source.
    """

    reader: Reader
    splits: Mapping[str, Items]
    classes: tuple[str, ...] | None
    skipped: Sequence[Quarantined] = ()
    ignored: Mapping[str, int] = field(default_factory=dict)
    annotations: Annotations = NOTHING
    has_own_classes: bool = False
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

    def refuse_skipped(self, max_errors: int) -> None:
        """Raise PackIncompleteError for more than `max_errors` skipped images, before hours of work; warn of fewer."""
        if not self.skipped:
            return
        found = f"{plural(len(self.skipped), 'image')} of unsupported kinds: {describe_skipped(self.skipped)}"
        if len(self.skipped) > max_errors:
            raise PackIncompleteError(
                f"{found}. To leave them out, use max_errors= or --max-errors {len(self.skipped)}, or more if other "
                "inputs may turn out to be damaged"
            )
        logger.warning("left out: %s", found)


def describe_skipped(skipped: Iterable[Quarantined]) -> str:
    """Return the kinds of skipped images, each with their number, first names and reason."""
    kinds: dict[tuple[str, str], list[Quarantined]] = {}
    for each in skipped:
        kinds.setdefault((os.path.splitext(each.path)[1].lower(), each.reason), []).append(each)
    return "; ".join(
        f"{len(images):,} {kind or 'without extension'}, such as "
        f"{', '.join(repr(each.path) for each in images[:_NAMED])} ({reason})"
        for (kind, reason), images in kinds.items()
    )


@dataclass(frozen=True, slots=True)
class SourceKind(abc.ABC):
    """Base of the sources that a path or URL can name. Nothing is read before `list`.

    >>> with shardflow.sources.Folder("photos/").list() as source:
    ...     inputs = {split: len(items) for split, items in source.splits.items()}
    """

    url: str | os.PathLike[str]
    _: KW_ONLY
    classes: Classes = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.url, str | os.PathLike):
            found = f"{type(self).__name__} takes a path or URL, found {type(self.url).__name__}"
            remedy = "save a DataFrame as a .csv file; samples as objects are a shardflow.sources.Collection"
            raise ConfigError(f"{found}; {remedy}")

    @staticmethod
    @abc.abstractmethod
    def recognizes(url: str, storage_options: Mapping[str, Any] | None) -> bool:
        """Return whether a path or URL looks like this kind."""

    @abc.abstractmethod
    def list(self) -> Source:
        """List all inputs.

        An unusable input is listed with the reason, and quarantined later. Two listings of an unchanged source must be
        equal, because a resume compares items.

        Raises:
            ConfigError: It has no inputs, or their splits or labels are ambiguous.
            StoreError: The source cannot be read.
        """

    def __str__(self) -> str:
        return shown_url(self.url)
