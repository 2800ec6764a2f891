"""Resolving a source: a path, a URL or an object becomes a source of one of the kinds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardflow.dataset.label_numbering import Classes
from shardflow.errors import ConfigError
from shardflow.storage.urls import remote_options, url_text

from .coco import Coco
from .collection import Collection
from .folder import Folder, NoImagesError
from .parquet import EXTENSION, Parquet
from .reader import process_storage
from .shards import Shards
from .source import Source, SourceKind
from .table import Table
from .voc import Voc
from .yolo import Yolo

KINDS: tuple[type[SourceKind], ...] = (Parquet, Table, Coco, Yolo, Voc, Shards, Folder)
"""The kinds that a path or URL can name; the first that recognizes it is used. Other objects become a `Collection`."""

_BY_FILES: Mapping[str, type[SourceKind]] = {".tar": Shards, EXTENSION: Parquet}
"""Extension of the files in a folder without images → kind of the source."""


def list_source(
    src: Any,
    storage_options: Mapping[str, Any] | None = None,
    *,
    parts: tuple[str, ...] | None = None,
    labels: bool = True,
    ids: Classes = None,
) -> Source:
    """List the inputs of a path, a URL, an object of one of `KINDS`, or samples as objects. Close the source after use.

    `parts` are read next to each image of a folder, in addition to the parts of a `Folder`. Without `labels`, a folder
    is listed as with `classes=()`, if it names no classes. A table that names none has the classes `ids`.
    """
    process_storage.cache_clear()  # the environment may name other endpoints and keys by now
    if isinstance(src, str | os.PathLike):
        return DetectedSource(src, parts=parts, labels=labels, ids=ids, storage_options=storage_options).list()
    named: Any = src if isinstance(src, (Collection, *KINDS)) else Collection(src)
    if parts and isinstance(named, Folder):
        named = replace(named, parts=tuple(dict.fromkeys([*(named.parts or ()), *parts])))
    if not labels and isinstance(named, Folder) and named.classes is None:
        named = replace(named, labels=False) if isinstance(named, DetectedSource) else replace(named, classes=())
    if isinstance(named, DetectedSource):
        named = replace(named, ids=ids)
    elif ids and isinstance(named, (Table, Parquet)) and named.classes is None:
        named = replace(named, classes=ids)
    source: Source = named.list()
    return source


def shared_options(src: Any, dst: object, options: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the options of a destination if they apply to the source too: if both are URLs of one scheme."""
    if not isinstance(src, str | os.PathLike) or not isinstance(dst, str | os.PathLike):
        return None
    return options if url_text(src).partition("://")[0] == url_text(dst).partition("://")[0] else None


def describe_source(
    url: str,
    *,
    columns: Mapping[str, Any],
    images: str | None,
    parts: tuple[str, ...] | None = None,
    classes: Classes = None,
) -> Parquet | Table | Coco | Folder | DetectedSource:
    """Return the source of a command, given the options for tables (`columns`), folders (`parts`) and `images`."""
    is_table = bool(columns) or Table.recognizes(url, None)
    if (columns or images) and parts:
        raise ConfigError("--parts is for a folder, columns are for a table, --image-folder for a table or a COCO set")
    if columns and (url.endswith(".tar") or any(Path(url).glob("*.tar"))):
        remedy = "a label in a .json becomes a class by shardflow.pack(samples, dst), with samples of a pipeline"
        raise ConfigError(f"{url} holds tars, and columns are for a table; {remedy}, or a column by columns.compute")
    if columns and not images and (Parquet.recognizes(url, None) or os.path.isdir(url)):
        return Parquet(url, classes=classes, **columns)
    if columns or (images and is_table):
        return Table(url, images=images, classes=classes, **columns)
    if images:
        return Coco(url, images=images, classes=classes)
    return DetectedSource(url, classes=classes) if parts is None else Folder(url, parts=parts, classes=classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedSource(Folder):
    """A path or URL whose kind of source is detected when it is listed; see `list_source` for the arguments."""

    labels: bool = True
    ids: Classes = None

    def list(self) -> Source:
        """Detect the kind and list the inputs."""
        url = url_text(self.url)
        options = remote_options(url, self.storage_options)
        kind = next(kind for kind in KINDS if kind.recognizes(url, options))
        try:
            if kind is Folder:
                classes = self.classes if self.labels else ()
                return Folder(url, parts=self.parts, classes=classes, storage_options=options).list()
            classes = self.ids if kind in (Table, Parquet) and self.classes is None else self.classes
            return kind(url, classes=classes, storage_options=options).list()
        except NoImagesError as error:
            files = next((each for extension, each in _BY_FILES.items() if extension in error.ignored), None)
            if files is None:
                raise
        return files(url, classes=self.classes, storage_options=options).list()
