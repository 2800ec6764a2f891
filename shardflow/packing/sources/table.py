"""A table: one row per image, with its path or URL in a column, and whatever else is known of it in others.

Rows keep their order. Files on this machine are looked at when the table is read, so that a resume notices those that
were changed since; what is behind a URL counts as the same as long as its row is the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, NamedTuple

from shardflow.dataset.label_numbering import Classes, Named
from shardflow.errors import ConfigError
from shardflow.formats.manifest import SPLITS
from shardflow.storage.resolve import open_storage
from shardflow.storage.urls import is_remote, remote_options, strip_file_scheme

from .items import Item, Items, more
from .labelling import draft, numbered
from .reader import Reader, local_path, shown
from .rows import TEXT_TABLES, Row, rest_of, rows
from .source import Source

IMAGE_COLUMNS = ("image", "path", "file_name", "filename", "filepath", "image_path", "file", "url", "image_url")
"""Where the images are when nobody says it: the first of these that the table has."""

_NUMBER = re.compile(r"0|[1-9][0-9]*")


@dataclass(frozen=True, slots=True)
class Table:
    """The images that a table names.

    Columns that are given here are not in the samples' `.json`; all others are.

    Args:
        url: Path or URL of a `.csv`, `.tsv`, `.jsonl` or `.parquet` file.
        image: Column with the image's path, relative to the table or absolute, or its URL of any scheme that fsspec
            serves; None for the first of `IMAGE_COLUMNS` that the table has.
        label: Column with a class's name or number, or a list of those; None for "label", if the table has it.
        split: Column with "train", "val", "valid", "validation" or "test"; None for "split", if the table has it.
            Without one, all rows are for training.
        caption: Column with a text for `.txt`.
        mask: Column with the path or URL of a mask for `.mask.png`.
        classes: Class names in the order of their labels, or a file with one a line; None for those in the table,
            sorted.
        storage_options: What fsspec's file system takes, where the table is behind a URL; otherwise for every URL.

    Example:
        >>> shardflow.pack(shardflow.Table("photos.csv", label="species"), "photos256/")  # doctest: +SKIP
    """

    url: str | os.PathLike[str]
    _: KW_ONLY
    image: str | None = None
    label: str | None = None
    split: str | None = None
    caption: str | None = None
    mask: str | None = None
    classes: Classes = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    def list(self) -> Source:
        """List the rows.

        Raises:
            ConfigError: It is no table, has no rows, lacks a column, or holds a label or split that cannot be.
            StoreError: It cannot be read.
        """
        folder, slash, name = strip_file_scheme(self.url).rpartition("/")
        base = folder or slash or "."
        storage = open_storage(base, remote_options(base, self.storage_options))
        drafts = Items.of(self._drafts(rows(storage.read(name), name), base))
        if not drafts:
            raise ConfigError(f"{self.url} has no rows")
        if name.lower().endswith(TEXT_TABLES) and all(_is_number(label) for _, label in drafts.labels()):
            drafts = drafts.relabelled(lambda pair: (pair[0], None if pair[1] is None else int(pair[1])))  # type: ignore[arg-type,return-value]
        reader = Reader.at(storage, base, self.storage_options)
        if any(is_remote(item.path) for item in drafts):
            reader = replace(reader, remote=True)
        return numbered(drafts, self.classes, self.url, reader)

    def _drafts(self, table: Iterator[Row], base: str) -> Iterator[Item]:
        columns: _Columns | None = None
        for number, row in enumerate(table, 1):
            columns = columns or self._columns(row)
            yield _drafted(row, columns, self._split(row, columns.split, number), number, base)

    def _columns(self, row: Row) -> _Columns:
        """Return which columns are what, after a look at whether all that were asked for are there."""
        asked = _Columns(self.image, self.label, self.split, self.caption, self.mask)
        for column in asked:
            if column is not None and column not in row:
                raise ConfigError(f"{self.url} has no column {column!r}; it has {', '.join(row)}")
        image = self.image or next((column for column in IMAGE_COLUMNS if column in row), None)
        if image is None:
            message = f"{self.url} has none of the columns {', '.join(IMAGE_COLUMNS)}, but {', '.join(row)}"
            raise ConfigError(f"{message}; say which one has the images' paths or URLs, with image= or --image-column")
        if not isinstance(row[image], str | None):
            kind = "their bytes" if isinstance(row[image], bytes | dict) else type(row[image]).__name__
            message = f"{self.url}: expected paths or URLs of images in column {image!r}, found {kind}"
            raise ConfigError(f"{message}; choose another column, or pack it as a Hugging Face dataset")
        label, split = ("label" if "label" in row else None), ("split" if "split" in row else None)
        return asked._replace(image=image, label=self.label or label, split=self.split or split)

    def _split(self, row: Row, column: str | None, number: int) -> str:
        split = "train" if column is None else str(row.get(column, "")).lower()
        if split not in SPLITS:
            raise ConfigError(f"{self.url}, row {number}: split {split!r}; splits are named {', '.join(SPLITS)}")
        return split


class _Columns(NamedTuple):
    """Which columns of a table are what."""

    image: str | None
    label: str | None
    split: str | None
    caption: str | None
    mask: str | None


def _drafted(row: Row, columns: _Columns, split: str, number: int, base: str) -> Item:
    """Return a row as a draft."""
    asked = filter(None, (columns.image, columns.label, columns.caption, columns.mask))
    missing = [column for column in asked if row.get(column) in (None, "")]
    place = str(row.get(columns.image or "") or "")
    bad = f"row {number} has no {', '.join(missing)}" if missing else ""
    if not _is_name(place):
        bad, place = f"row {number}: {place!a} is no name of a file", ""
    path = shown(place) or f"row {number}"
    if bad:
        return draft(split, None, path, -1, 0, more(bad=bad))
    label = row[columns.label] if columns.label else None
    size, changed_ns = _look(base, place)
    parts: dict[str, object] = {}
    listed: list[int] = []
    if columns.caption is not None:
        parts["txt"] = str(row[columns.caption])
    if columns.mask is not None:
        parts["mask.png"] = [str(row[columns.mask])]
        mask_size, mask_changed_ns = _look(base, str(row[columns.mask]))
        listed, changed_ns = [mask_size], max(changed_ns, mask_changed_ns)
    if rest := rest_of(row, frozenset(filter(None, columns))):
        parts["json"] = rest
    about = more(image=[place] if path != place else [], parts=parts, listed=listed)
    return draft(split, label, path, size, changed_ns, about)


def _is_number(label: Named) -> bool:
    return label is None or _NUMBER.fullmatch(str(label)) is not None


def _is_name(place: str) -> bool:
    try:
        return b"\0" not in os.fsencode(place)
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can hold
        return False


def _look(base: str, place: str) -> tuple[int, int]:
    """Return the size and the time of a file; -1 and 0 of what is behind a URL."""
    path = local_path(base, place)
    if path is None:
        return -1, 0
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # an input all the same, and reading it says what is wrong
        return 0, 0
    return status.st_size, status.st_ctime_ns
