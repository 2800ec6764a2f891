"""Tables: one row per image, with columns for its path or URL, label, split and annotations.

Formats: CSV and TSV with a header, JSON lines, Parquet (RFC 4180; jsonlines.org; parquet.apache.org). A cell of CSV or
TSV with a JSON list or object, such as boxes or several labels, is parsed; an empty one is missing, quoted or not, as
in pandas; every other cell stays text.

Rows keep their order. A resume notices changed files on this machine; a remote input counts as unchanged as long as its
row is.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import logging
import os
import re
import threading
from collections.abc import Collection, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from shardflow._wording import plural
from shardflow.dataset.column_files import import_pyarrow
from shardflow.dataset.finding_tars import split_words
from shardflow.dataset.label_numbering import class_names
from shardflow.errors import ConfigError, NotFoundError, SampleError
from shardflow.formats.annotations import Annotations
from shardflow.formats.image_types import SOURCE_PARTS
from shardflow.formats.json_object import unique_names
from shardflow.formats.manifest import SPLITS
from shardflow.packing.progress import counted
from shardflow.storage.interface import Storage
from shardflow.storage.resolve import open_folder_of, open_storage
from shardflow.storage.urls import divide_query, is_remote, strip_file_scheme, url_text

from .items import Item, Items, encode_more, identity_of
from .labelling import names_or_numbers, number_labels, unlabelled_input
from .reader import Reader, is_place, map_in_threads, place_state, public_name, refusal
from .sample_adapter import LIKE_CAPTION, LIKE_LABEL, MASK_PART, caption_text, to_json, unfit_caption
from .source import Source, SourceKind

logger = logging.getLogger(__name__)

Row: TypeAlias = "dict[str, Any]"

IMAGE_COLUMNS = ("image", "path", "file_name", "filename", "filepath", "image_path", "file", "url", "image_url")
"""Default columns of the images; the first that the table has is used."""

_DECIMAL = re.compile(r"-?\d*\.\d+")  # a measured number
_NO_CLASS = re.compile(r"(.*_)?(id|k?fold)", re.IGNORECASE)
_HEAD = 100  # rows from which the label column is guessed for a warning
_FEW = 20  # with fewer rows, repeated values mean nothing

MAX_TABLE_BYTES = 1 << 30
"""Limit of the size of a table."""

_LIKE_SPLIT = ("split", "set", "subset")
_LIKE_MASK = {"mask", "masks", "mask_path", "mask_file", "segmentation", "seg"}

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
_TEXT_TABLES = (".csv", ".tsv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(SourceKind):
    """The images that a table names.

    Columns that have a use below are not in the samples' `.json`; all others are.

    Args:
        url: Path or URL of a `.csv`, `.tsv`, `.jsonl` or `.parquet` file.
        image: Column with the image's path, relative to the table (see `images`) or absolute, or its URL of any scheme
            that fsspec supports; None for the first of "image", "path", "file_name", "filename", "filepath",
            "image_path", "file", "url" and "image_url". A remote table may name only paths below its folder, and URLs
            of stores.
        label: Column with the name or number of a class, or a list of those; None for "label", if the table has it.
            Text that looks like a number, as in CSV, is a number unless `classes` contains it as a name.
        split: Column with "train", "val", "valid", "validation" or "test"; None for "split", if the table has it.
            Without one, the name of the file says the split, as `test.csv` does, or all rows are for training.
        caption: Column with a text for `.txt`; None for "caption", if it has texts. Other values stay in `.json`.
        mask: Column with the path or URL of a mask for `.mask.png`; it is declared as a mask.
        images: Directory or URL of the relative paths; None for the folder of the table. If given, a path without an
            extension, such as the id `abc`, means the image `abc.jpg`.
        classes: Class names in the order of their labels, or a file with one per line; None for those in the table,
            sorted.
        storage_options: Options of fsspec's file system for the table if it is remote, otherwise for every URL.

    Example:
        >>> shardflow.pack(shardflow.sources.Table("photos.csv", label="species"), "out/")
    """

    image: str | None = None
    label: str | None = None
    split: str | None = None
    caption: str | None = None
    mask: str | None = None
    images: str | os.PathLike[str] | None = None

    @staticmethod
    def recognizes(url: str, storage_options: Mapping[str, Any] | None) -> bool:  # noqa: ARG004 - the interface's
        """Return whether a path or URL has the extension of a table, and is not a directory."""
        extension = os.path.splitext(divide_query(url).place)[1].lower()
        return extension in TABLES and not os.path.isdir(strip_file_scheme(url))

    def list(self) -> Source:
        """List the rows."""
        if os.path.isdir(strip_file_scheme(self.url)):
            raise ConfigError(f"{self} is a directory, but columns need a table ({', '.join(TABLES)})")
        storage, folder, name = open_folder_of(self.url, self.storage_options)
        base = folder if self.images is None else str(self.images)
        if self.images is not None and not is_remote(base) and not os.path.isdir(strip_file_scheme(base)):
            found = "is a file" if os.path.exists(strip_file_scheme(base)) else "does not exist"
            raise NotFoundError(f"the folder of images, {base}, {found}; check --image-folder")
        is_text = name.lower().endswith(_TEXT_TABLES)
        rows = _read_rows(storage.read(name, most_bytes=MAX_TABLE_BYTES), name)
        unused: list[str] = []
        images = open_storage(base, self.storage_options, may_be_local=True)
        files = None if self.images is None else _Files(images)
        listed = self._unlabelled_inputs(rows, folder, base, files, unused, is_text)
        unlabelled = Items.of(counted(listed))
        if not unlabelled:
            raise ConfigError(f"{self} has no rows")
        classes = class_names(self.classes)
        if self.label is not None and not any(label is not None for _, label in unlabelled.labels):
            raise ConfigError(f"{self} has no label in column {self.label!r}; without labels, do not name a column")
        unlabelled = names_or_numbers(unlabelled, classes, is_text=is_text)
        reader = Reader.at(images, base, self.storage_options)
        if any(is_remote(each.path) for each in unlabelled):
            reader = replace(reader, remote=True)
        source = number_labels(unlabelled, classes, self, reader)
        for warning in unused:  # only if no error was raised
            logger.warning("%s", warning)
        return source if self.mask is None else replace(source, annotations=Annotations(masks=(MASK_PART,)))

    def _unlabelled_inputs(
        self,
        rows: Iterator[Row],
        folder: str,
        base: str,
        files: _Files | None,
        unused: MutableSequence[str],
        is_text: bool,
    ) -> Iterator[Item]:
        head = list(itertools.islice(rows, _HEAD))
        if not head:
            return
        columns = self._columns([_parsed(row, [self.caption]) for row in head] if is_text else head, unused)
        default = self._default_split()
        as_they_are = {columns.image, columns.split, columns.caption, columns.mask}

        def unlabelled(numbered: tuple[int, Row]) -> Item:
            number, row = numbered
            row = _parsed(row, as_they_are) if is_text else row
            if late := next((use for use in ("label", "split") if use in row and getattr(columns, use) is None), None):
                message = f"{self}, row {number} has {late!r}, which none of the first {_HEAD} rows has"
                raise ConfigError(f"{message}; write it into the first row too, or name the column with {late}=")
            for column in (columns.image, columns.mask):
                if files is not None and isinstance(place := row.get(column or ""), str):
                    row = {**row, str(column): files.with_extension(place, f"{self}, row {number}")}
            needed = columns.image, self.caption, columns.mask  # a split may lack labels, such as a test set
            split = default if columns.split is None else self._split(row, columns.split, number)
            return _unlabelled_input(row, columns, needed, split, number, folder, base)

        yield from map_in_threads(unlabelled, enumerate(itertools.chain(head, rows), 1))

    def _columns(self, head: Sequence[Row], unused: MutableSequence[str]) -> _Columns:
        """Return the columns, after checking that the table has the named ones; add warnings to `unused`.

        `head` has the first rows. Only a column with repeated values may be the label.
        """
        row: Row = {}
        for each in head:  # in JSON lines, a row may lack columns of others
            row = {**each, **{name: value for name, value in row.items() if value is not None}}
        named = _Columns(self.image, self.label, self.split, self.caption, self.mask)
        for column in named:
            if column is not None and not isinstance(column, str):
                raise ConfigError(
                    f"a column is named by a text, found {column!r:.80}; several need one column of lists"
                )
            if column is not None and column not in row:
                hint = _separator_hint([*row]) or f"it has {', '.join(row)}"
                raise ConfigError(f"{self} has no column {column!r}; {hint}")
        image = self.image or next((column for column in IMAGE_COLUMNS if column in row), None)
        if image is None:
            message = f"{self} has none of the columns {', '.join(IMAGE_COLUMNS)}, but {', '.join(row)}"
            raise ConfigError(f"{message}; {_header_hint(row, str(self))}")
        if not isinstance(row[image], str | None):
            kind = "their bytes" if isinstance(row[image], bytes | dict) else type(row[image]).__name__
            message = f"{self}: expected paths or URLs of images in column {image!r}, found {kind}"
            raise ConfigError(f"{message}; name another column, or pack files of .parquet as shardflow.sources.Parquet")
        label, split = ("label" if "label" in row else None), ("split" if "split" in row else None)
        default = self._default_split()
        used = named._replace(image=image, label=self.label or label, split=self.split or split)
        used = used._replace(caption=self._caption(head, unused) if "caption" in row or self.caption else None)
        others = [name for name in row if name not in used]
        like_split = _similar(others, _LIKE_SPLIT)
        files = [name for name in others if _extension(row[name]) in SOURCE_PARTS]
        like_caption = [name for name in _similar(others, LIKE_CAPTION) if isinstance(row[name], str)]
        if used.label is None and default != "test":
            scalars = [name for name in others if isinstance(row[name], str | int) and type(row[name]) is not bool]
            most = len(head) - (len(head) >= _FEW)
            values = {name: {str(each.get(name)) for each in head} for name in scalars}
            other_uses = {*like_split, *like_caption, *files, *filter(_NO_CLASS.fullmatch, others)}
            repeated = [name for name, found in values.items() if len(found) <= most and name not in other_uses]
            classes = [name for name in repeated if not any(map(_DECIMAL.fullmatch, values[name]))]
            likely = _similar(others, LIKE_LABEL) or sorted(classes, key=lambda name: len(values[name]))
            unused += self._perhaps_meant("label", likely, "the images have no labels")
        if used.split is None:
            effect = f"all rows are in the split {default}"
            unused += self._perhaps_meant("split", like_split, effect)
        if used.mask is None:
            unused += self._perhaps_meant("mask", _similar(files, _LIKE_MASK), "its paths go to .json")
        if used.caption is None and "caption" not in row:
            unused += self._perhaps_meant("caption", like_caption, "its texts go to .json")
        return used

    def _default_split(self) -> str:
        """Return the split of a table without a column of splits: by its name, such as `val.csv`, or "train"."""
        name = os.path.basename(divide_query(url_text(self.url)).place)
        said = split_words(os.path.splitext(name)[0])
        return min(said) if len(said) == 1 else "train"

    def _caption(self, head: Sequence[Row], unused: MutableSequence[str]) -> str | None:
        """Return the caption column, named or "caption"; if it has no texts, refuse a named one, or else warn."""
        column = self.caption or "caption"
        values = [value for row in head if (value := row.get(column)) not in (None, "")]
        if not values or any(isinstance(value, str | bytes) for value in values):
            return column
        kind = type(values[0]).__name__
        unused.append(unfit_caption(self, column, kind, is_named=self.caption is not None))
        return None

    def _perhaps_meant(self, use: str, likely: Sequence[str], effect: str) -> Iterator[str]:
        """Yield a warning of an unused column that was perhaps meant, and would silently go to `.json`."""
        if likely:
            message = f"{self} has no column {use!r}, so {effect}; to use {likely[0]!r}"
            yield f"{message}, name it with {use}= or --{use}-column"

    def _split(self, row: Row, column: str, number: int) -> str:
        split = str(row.get(column, "")).lower()
        if split not in SPLITS:
            message = f"{self}, row {number}: unknown split {split!r} in column {column!r}"
            raise ConfigError(f"{message}; write one of {', '.join(SPLITS)}")
        return split


def _similar(columns: Sequence[str], names: Collection[str]) -> list[str]:
    return [name for name in columns if name.strip().lower() in names]


def _extension(value: Any) -> str:
    return os.path.splitext(value)[1].lower()[1:] if isinstance(value, str) else ""


def _header_hint(row: Row, url: str) -> str:
    """Return the remedy for a table without an image column."""
    if hint := _separator_hint([*row]):
        return hint
    if next(iter(row), "").startswith("sep="):
        return "delete the first line, with which Excel names the separator"
    if any(_extension(name) in SOURCE_PARTS for name in row):
        return "the first line must name the columns"
    table = f"shardflow.sources.Table({url!r}, image=...)"
    return f"name the column of the images' paths or URLs with {table} or --image-column"


def _separator_hint(columns: Sequence[str]) -> str:
    """Return the remedy for columns that are separated by another character, or ""."""
    is_one = len(columns) == 1 and any(mark in columns[0] for mark in ";\t|")
    return "separate the columns by commas in .csv, by tabs in .tsv" if is_one else ""


class _Files:
    """The files of the folder of images, which is listed only if a path has no extension."""

    def __init__(self, storage: Storage) -> None:
        self._storage, self._lock = storage, threading.Lock()
        self._named: dict[str, list[str]] | None = None  # name without its image extension → names

    def with_extension(self, place: str, where: str) -> str:
        """Return a path with the extension of its image; unchanged if no image matches; ConfigError if several do."""
        if is_remote(place) or os.path.splitext(place)[1][1:].lower() in SOURCE_PARTS:
            return place
        with self._lock:
            if self._named is None:
                self._named = {}
                for name in sorted(self._storage.listing()):
                    stem, extension = os.path.splitext(name)
                    self._named.setdefault(stem if extension[1:].lower() in SOURCE_PARTS else name, []).append(name)
        found = self._named.get(place, [place])
        if len(found) > 1 and place not in found:
            both = f"{found[0]!r} and {found[1]!r}"
            raise ConfigError(
                f"{where}: {place!r} matches {both} in {self._storage}; write the extension into the table"
            )
        return place if place in found else found[0]


class _Columns(NamedTuple):
    """The columns of a table by their use."""

    image: str | None
    label: str | None
    split: str | None
    caption: str | None
    mask: str | None


def _unlabelled_input(
    row: Row, columns: _Columns, needed: Sequence[str | None], split: str, number: int, folder: str, base: str
) -> Item:
    missing = [column for column in needed if column is not None and row.get(column) in (None, "")]
    place = str(row.get(columns.image or "") or "")
    bad = f"row {number} has no {', '.join(missing)}" if missing else ""
    mask = str(row.get(columns.mask or "") or "")
    if reason := next(filter(None, (refusal(each, url) for each in (place, mask) for url in (folder, base))), ""):
        bad = f"row {number}: {reason}"
    parts: dict[str, object] = {}
    if not bad:
        try:
            if columns.caption is not None and (caption := row.get(columns.caption)) not in (None, ""):
                parts["txt"] = caption_text(caption)
            if rest := to_json({column: value for column, value in row.items() if column not in columns}):
                parts["json"] = rest
        except SampleError as error:
            bad = f"row {number} {error}"
    path = (public_name(place) if is_place(place) else "") or f"row {number}"
    if bad:
        return unlabelled_input(split, None, path, -1, 0, encode_more(bad=bad))
    size, identity = place_state(base, place)
    if columns.mask is not None:
        parts[MASK_PART] = [str(row[columns.mask])]
        identity = identity_of(identity, place_state(base, str(row[columns.mask])))
    more = encode_more(image=[place] if path != place else [], parts=parts)
    return unlabelled_input(split, row.get(columns.label or ""), path, size, identity, more)


def _read_rows(data: bytes, name: str) -> Iterator[Row]:
    """Yield the rows of a table, whose format follows from its name."""
    kind = os.path.splitext(name)[1].lower()
    if kind not in TABLES:
        raise ConfigError(f"{name} does not have the extension of a table; expected {', '.join(TABLES)}")
    if kind == ".parquet":
        yield from _parquet(data, name)
        return
    text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="")
    try:
        yield from _csv(text, name, kind) if kind in _TEXT_TABLES else _json_lines(text, name)
    except UnicodeDecodeError as error:
        at = text.buffer.tell() - len(error.object) + error.start  # the text is decoded some lines ahead
        line = data.count(b"\n", 0, at) + 1
        message = f"{name}, line {line}: the byte {data[at]:#04x} is not UTF-8; save it as UTF-8 with a header"
        raise ConfigError(message) from error


def _csv(text: io.TextIOWrapper, name: str, kind: str) -> Iterator[Row]:
    reader = csv.DictReader(text, delimiter="\t" if kind == ".tsv" else ",", strict=True)
    try:
        _refuse_repeated(reader.fieldnames or (), name)
        for row in reader:
            if None in row or None in row.values():
                found = sum(value is not None for value in row.values()) - (None in row) + len(row.get(None) or ())
                expected = plural(len(reader.fieldnames or ()), "column")
                message = f"{name}, line {reader.line_num}: expected {expected}, found {found}"
                hint = _separator_hint(reader.fieldnames or ()) or "quote cells that contain the separator"
                raise ConfigError(f"{message}; {hint}")
            if kind == ".tsv" and any("\t" in value or "\n" in value for value in row.values()):
                raise ConfigError(
                    f"{name}, line {reader.line_num}: a quoted cell contains a tab or line break, perhaps because a "
                    "text begins with a quote; write the table as .csv"
                )
            yield dict(row)
    except csv.Error as error:
        remedy = "perhaps because a text begins with a quote; write the table as .csv with a CSV library"
        raise ConfigError(f"{name}, line {reader.line_num + 1}: {error}; {remedy}") from error


def _refuse_repeated(columns: Sequence[str], where: str) -> None:
    repeated = next((column for number, column in enumerate(columns) if column in columns[:number]), None)
    if repeated is not None:
        raise ConfigError(f"{where} has two columns {repeated!r}; rename or remove one of them")


def _parsed(row: Row, as_they_are: Collection[str | None] = ()) -> Row:
    """Return a row of text with JSON lists and objects parsed, and empty cells as None, except in some columns."""
    return {column: text if column in as_they_are else _cell(text) for column, text in row.items()}


def _cell(text: str) -> Any:
    if not text:
        return None
    if text[:1] in ("[", "{"):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text, object_pairs_hook=unique_names)
    return text


def _json_lines(text: io.TextIOWrapper, name: str) -> Iterator[Row]:
    number = 0
    try:
        for number, line in enumerate(text, 1):
            row = json.loads(line, object_pairs_hook=unique_names) if line.strip() else {}
            if not isinstance(row, dict):
                raise ConfigError(f"{name}, line {number}: expected a JSON object, found {line[:40]!r}")
            if row:
                yield row
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError | UnicodeDecodeError):
            raise
        raise ConfigError(f"{name}, line {number or 1}: not JSON: {error}") from error


def _parquet(data: bytes, name: str) -> Iterator[Row]:
    pyarrow = import_pyarrow(f"{name}: Parquet needs")
    try:
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(data))
        _refuse_repeated(file.schema_arrow.names, name)
        for batch in file.iter_batches(4096):
            yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise ConfigError(f"{name} is not a readable Parquet file: {error}") from error
