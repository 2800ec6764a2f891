"""Resolving a source: a path, a URL or an object becomes one of the kinds of sources."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from shardflow.dataset.label_numbering import Classes
from shardflow.errors import ConfigError
from shardflow.storage.urls import remote_options

from .collection import Collection
from .folder import Folder, NoImagesError
from .shards import Shards
from .source import Source, SourceKind
from .table import Table

KINDS: tuple[type[SourceKind], ...] = (Table, Shards, Folder)
"""The kinds that a path or URL can name; the first that recognizes it is chosen. Other objects are a `Collection`."""


def list_source(src: Any, storage_options: Mapping[str, Any] | None = None) -> Source:
    """List the inputs of a source. Close it after use.

    Args:
        src: A path or URL of a folder, a table, or shards; an object of one of `KINDS`; or samples as objects.
        storage_options: Options of fsspec's file system where `src` is a URL.

    Raises:
        ConfigError: There is nothing to pack, or it is not a source.
        StoreError: It cannot be read.
    """
    if isinstance(src, str | os.PathLike):
        src = DetectedSource(src, storage_options=storage_options)
    elif not isinstance(src, (DetectedSource, Collection, *KINDS)):
        src = Collection(src)
    source: Source = src.list()
    return source


def shared_options(src: Any, dst: object, options: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the options of a destination if they hold for the source as well: if both are URLs of one scheme."""
    return options if str(src).partition("://")[0] == str(dst).partition("://")[0] else None


def describe_source(
    url: str, *, columns: Mapping[str, Any], parts: tuple[str, ...], classes: Classes
) -> Table | Folder | DetectedSource:
    """Return the source of a path or URL and the options of a command.

    Args:
        url: As for `list_source`.
        columns: Names of a table's columns, by the arguments of `Table`: "image", "label", "split", "caption", "mask".
        parts: Parts beside the images of a folder.
        classes: As for each kind of source.

    Raises:
        ConfigError: The options belong to different kinds of sources.
    """
    if columns and parts:
        raise ConfigError("columns belong to a table, parts to a folder of images; use only one of them")
    if columns:
        return Table(url, classes=classes, **columns)
    return Folder(url, parts=parts, classes=classes) if parts else DetectedSource(url, classes=classes)


@dataclass(frozen=True, slots=True)
class DetectedSource:
    """A path or URL whose kind of source is detected when it is listed."""

    url: str | os.PathLike[str]
    _: KW_ONLY
    classes: Classes = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    def list(self) -> Source:
        """Detect the kind and list the inputs.

        Raises:
            ConfigError, StoreError: As each of the kinds does.
        """
        url = os.fspath(self.url)
        options = remote_options(url, self.storage_options)
        kind = next(kind for kind in KINDS if kind.recognizes(url, options))
        try:
            return kind(url, classes=self.classes, storage_options=options).list()
        except NoImagesError as error:
            if ".tar" not in error.skipped:
                raise
        return Shards(url, classes=self.classes, storage_options=options).list()
