"""What a caller gave, understood as one of the kinds of sources."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from shardflow.dataset.label_numbering import Classes
from shardflow.errors import ConfigError
from shardflow.formats import manifest
from shardflow.storage.resolve import open_storage
from shardflow.storage.staging import temporary_staging
from shardflow.storage.url_patterns import split_pattern
from shardflow.storage.urls import remote_options, strip_file_scheme

from .collection import Collection, Scratch
from .folder import Folder, NoImagesError
from .rows import TABLES
from .shards import Shards
from .source import Source
from .table import Table


@contextlib.contextmanager
def listed(src: Any, storage_options: Mapping[str, Any] | None = None) -> Iterator[Source]:
    """List what is to be packed, for as long as the body runs; see `list_source`."""
    with contextlib.ExitStack() as stack:
        yield list_source(src, storage_options, lambda: stack.enter_context(temporary_staging())[0])


def shared_options(src: Any, dst: object, options: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the options of a destination if they are the source's as well: if both are URLs of one scheme."""
    return options if str(src).partition("://")[0] == str(dst).partition("://")[0] else None


def list_source(src: Any, storage_options: Mapping[str, Any] | None = None, scratch: Scratch | None = None) -> Source:
    """List what is to be packed.

    Args:
        src: A path or URL of a folder, a table, or shards; one of the classes of this room; or samples as objects.
        storage_options: What fsspec's file system takes where `src` is a URL.
        scratch: Where samples as objects are copied to; None where they cannot be taken.

    Raises:
        ConfigError: There is nothing to be packed, or it is not what it should be.
        StoreError: It cannot be read.
    """
    if isinstance(src, str | os.PathLike):
        return Given(src, storage_options=storage_options).list()
    if isinstance(src, Folder | Table | Shards | Given):
        return src.list()
    if scratch is None:
        raise ConfigError(f"expected the path or URL of a source here, found {type(src).__name__}")
    collection = src if isinstance(src, Collection) else Collection(src)
    return collection.list(scratch)


def described(url: str, *, columns: Mapping[str, Any], parts: tuple[str, ...], classes: Classes) -> Table | Given:
    """Return the source behind a path or URL, with what else was said about it.

    Args:
        url: As for `list_source`.
        columns: Which column of a table is what: "image", "label", "split", "caption", "mask".
        parts: What lies beside the images of a folder.
        classes: As for each of the sources.

    Raises:
        ConfigError: What was said is about different kinds of sources.
    """
    if columns and parts:
        raise ConfigError("columns are those of a table, and parts lie beside the images of a folder; give either")
    return Table(url, classes=classes, **columns) if columns else Given(url, parts=parts, classes=classes)


@dataclass(frozen=True, slots=True)
class Given:
    """A path or URL, to be taken as what lies there looks like; `parts` are those of a folder."""

    url: str | os.PathLike[str]
    _: KW_ONLY
    parts: tuple[str, ...] = ()
    classes: Classes = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    def list(self) -> Source:
        """List what is there.

        Raises:
            ConfigError, StoreError: As each of the kinds does.
        """
        url = os.fspath(self.url)
        about: dict[str, Any] = {
            "classes": self.classes,
            "storage_options": remote_options(url, self.storage_options),
        }
        if self.parts:
            return Folder(url, parts=self.parts, **about).list()
        if _is_table(url):
            return Table(url, **about).list()
        if split_pattern(url).pattern is not None or _is_ours(url, about["storage_options"]):
            return Shards(url, **about).list()
        try:
            return Folder(url, **about).list()
        except NoImagesError as error:
            if ".tar" not in error.ignored:
                raise
        return Shards(url, **about).list()


def _is_ours(url: str, storage_options: Mapping[str, Any] | None) -> bool:
    return open_storage(url, storage_options).size(manifest.FILE_NAME) is not None


def _is_table(url: str) -> bool:
    return os.path.splitext(url)[1].lower() in TABLES and not os.path.isdir(strip_file_scheme(url))
