"""Parquet files that contain the images, in a column of bytes or in Hugging Face's form.

A column of Hugging Face's type Image is a struct of `bytes` and `path`; class names are JSON in the schema's metadata,
and the split is in the file name: `data/train-00000-of-00008.parquet`. img2dataset writes plain bytes.

The listing reads the footers, labels and splits. A row group can only be read from its beginning, so one process packs
adjacent rows (`Reader.chunk_items`); memory holds a row, and a page of each column.
"""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from shardflow._wording import plural
from shardflow.dataset import label_numbering
from shardflow.dataset.finding_tars import (
    expand_braces,
    has_wildcards,
    matching,
    refuse_unread,
    split_pattern,
    splits_of_files,
)
from shardflow.errors import ConfigError, NotFoundError, SampleError, ShardflowError
from shardflow.formats.annotations import Annotations
from shardflow.formats.image_types import SOURCE_PARTS
from shardflow.formats.labels import LABEL_PARTS
from shardflow.formats.manifest import SPLITS
from shardflow.packing.progress import counted
from shardflow.storage.file_names import is_below, name_bytes
from shardflow.storage.interface import Storage
from shardflow.storage.resolve import open_folder_of, open_storage
from shardflow.storage.urls import divide_query, is_remote, remote_options, strip_file_scheme

from .items import Item, Items, encode_more, identity_of
from .labelling import names_or_numbers, number_labels, unlabelled_input
from .parquet_file import ParquetFile, byte_columns, class_names, describe_schema, object_class_names
from .reader import Input, Reader, StorageOptions, process_storage, too_many_bytes
from .sample_adapter import IMAGE_KEYS, LIKE_CAPTION, MASK_PART, caption_text, label_column, to_json, unfit_caption
from .source import Source, SourceKind

logger = logging.getLogger(__name__)

EXTENSION = ".parquet"

_CHUNK_ITEMS = 128
_FOOTERS_AT_ONCE = 16

_OF = re.compile(r"(.*)-(\d+)-of-(\d+)[^/]*")
_NESTED_BYTES = re.compile(r"\b(large_|fixed_size_)?binary(_view)?(?=[\[,>]|$| not)")  # other than a name of a field
_TEXT = re.compile(r"(dictionary<values=)?((large_|fixed_size_)?(string|binary)|null)")
_NOT_IN_PART = re.compile(r"[^a-z0-9_.]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parquet(SourceKind):
    """The rows of Parquet files that contain images.

    Other columns of bytes become parts with the column's name; all other columns without a use below go to the samples'
    `.json`. A row without the bytes of its image is quarantined: a path in it is never opened.

    Args:
        url: A `.parquet` file; or a directory or URL of such files, "hf://datasets/OWNER/NAME"; or a pattern with
            braces or wildcards. Splits follow from the names of the files, as on the Hugging Face Hub
            (`train-00000-of-00008.parquet`), or of their folders; otherwise all rows are for training.
        image: Column of the images; None for the only column of Hugging Face's type Image, otherwise of bytes.
        label: Column with the number or name of a class, or a list of those; None for "label" or "cls", otherwise the
            only column of the type ClassLabel, or the only field of objects of this type, such as `objects.category`:
            an image then has the classes of its objects.
        split: Column with "train", "val", "valid", "validation" or "test"; None for "split", if there is one.
        caption: Column with a text for `.txt`; None for "caption", if it has texts. Lists stay in `.json`.
        mask: Column of masks, images like those in `image`, for `.mask.png`, which is declared as a mask.
        classes: Class names in the order of their labels, or a file with one per line; None for those in the schema or,
            without any, those of the rows, sorted.
        storage_options: Options of fsspec's file system.

    Example:
        >>> shardflow.pack(shardflow.sources.Parquet("hf://datasets/ethz/food101"), "food256/")
    """

    image: str | None = None
    label: str | None = None
    split: str | None = None
    caption: str | None = None
    mask: str | None = None

    @staticmethod
    def recognizes(url: str, storage_options: Mapping[str, Any] | None) -> bool:
        """Return whether a path or URL names Parquet files with images, or a Hugging Face repository with some."""
        path = divide_query(strip_file_scheme(url)).place
        if url.startswith("hf://") and not path.endswith(EXTENSION):
            # Parquet files next to tars describe their samples. A card's pictures do not make a folder of images.
            storage = open_storage(url, storage_options)
            listing = storage.listing()
            name = next((name for name in listing if name.endswith(EXTENSION)), "")
            if not name or any(each.endswith(".tar") for each in listing):
                return False
        elif not path.lower().endswith(EXTENSION) or os.path.isdir(path):
            return False
        else:
            storage, _, name = open_folder_of(url, storage_options)
        if split_pattern(url).pattern is not None:
            return True
        try:
            file = ParquetFile(storage, name)
        except ShardflowError:
            return False  # listed as a `Table`, which raises the error
        return bool(byte_columns(file.schema))

    def list(self) -> Source:
        """List the rows, in the order of the files' names."""
        root, splits = self._files()
        storage = open_storage(root, self.storage_options, may_be_local=True)
        first = ParquetFile(storage, next(iter(splits)))
        columns = self._columns(first.schema)
        names = {**class_names(first.schema), **object_class_names(first.schema)}
        read = functools.partial(_list_file, storage, first, columns)
        with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
            listed = list(pool.map(read, splits))
        unlabelled = Items.of(counted(self._unlabelled_inputs(columns, splits, listed, names)))
        if not unlabelled:
            raise ConfigError(f"{self} has no rows")
        reader = ParquetReader(
            base=root if is_remote(root) else str(storage),
            chunk_items=min(_CHUNK_ITEMS, max(each.group_rows for each in listed)),
            storage_options=remote_options(root, self.storage_options),
            columns=columns,
        )
        classes = names.get(columns.label or "") if self.classes is None else label_numbering.class_names(self.classes)
        if not names.get(columns.label or ""):
            unlabelled = names_or_numbers(unlabelled, classes, is_text=False)
        source = number_labels(unlabelled, classes, self, reader)
        return source if self.mask is None else replace(source, annotations=Annotations(masks=(MASK_PART,)))

    def _unlabelled_inputs(
        self, columns: _Columns, splits: Mapping[str, str], listed: Sequence[_ListedFile], names: Mapping[str, object]
    ) -> Iterator[Item]:
        more = encode_more(
            parts=[*dict(columns.parts), *(["txt"] if columns.caption else []), *(["json"] if columns.json else [])]
        )
        without_caption = encode_more(bad=f"has no text in column {columns.caption!r}")
        for (name, split), file in zip(splits.items(), listed, strict=True):
            for row, label in enumerate(file.labels):
                own = split if file.splits is None else str(file.splits[row]).lower()
                if own not in SPLITS:
                    message = f"{self}, row {row} of {name}: unknown split {own!r} in column {columns.split!r}"
                    raise ConfigError(f"{message}; write one of {', '.join(SPLITS)}")
                known = None if label == -1 and columns.label in names else label
                content = without_caption if row in file.without_caption else more
                yield unlabelled_input(own, known, f"{name}#{row}", -1, file.identity, content)

    def _files(self) -> tuple[str, dict[str, str]]:
        """Return the root of the files, and their sorted names → splits."""
        root, pattern = split_pattern(self.url)
        if pattern is None and root.lower().endswith(EXTENSION) and not os.path.isdir(root):
            _, root, name = open_folder_of(self.url, self.storage_options)
            return root, splits_of_files(root, [name])
        storage = open_storage(root, self.storage_options, may_be_local=True)
        patterns = ["**/*" + EXTENSION] if pattern is None else expand_braces(pattern)
        listing = storage.listing() if any(map(has_wildcards, patterns)) else {}
        names = {name for one in patterns for name in (matching(listing, one) if has_wildcards(one) else [one])}
        if not names:
            raise NotFoundError(
                f"{self}: no match among {plural(len(listing), 'file')} in {storage}; check the path, and write ** to "
                "match folders at any depth"
            )
        if (foreign := next((name for name in names if "://" in name or not is_below(name)), None)) is not None:
            raise ConfigError(f"{storage} lists {foreign!a}, which is not a file below it; rename the file")
        splits = splits_of_files(root, sorted(names, key=name_bytes))
        if pattern is None:
            refuse_unread(matching(listing, "**"), EXTENSION, str(self))
            _refuse_incomplete(splits, self)
        return root, splits

    def _columns(self, schema: Any) -> _Columns:
        """Return the use of each column; refuse ambiguous columns."""
        names: Sequence[str] = schema.names
        if len(set(names)) < len(names):
            raise ConfigError(f"{self} has two columns of the same name; rename or remove one of them")
        for named in (self.image, self.label, self.split, self.caption, self.mask):
            if named is not None and named not in names:
                raise ConfigError(f"{self} has no column {named!r}; it has {', '.join(names)}")
        in_bytes = byte_columns(schema)
        structs = {name for name, is_struct in in_bytes.items() if is_struct}
        images = structs - {self.mask} or in_bytes.keys() - {self.mask}
        only = min(images) if len(images) == 1 else next((key for key in IMAGE_KEYS if key in images), None)
        image = self.image or only
        if image is None or image not in in_bytes or (self.mask or image) not in in_bytes:
            found = f"has images in the columns {', '.join(in_bytes)}" if in_bytes else "has no column of bytes"
            raise ConfigError(
                f"{self} {found}; name one with image= or --image-column, or pack a table of paths or URLs as "
                "shardflow.sources.Table"
            )
        classes = class_names(schema)
        label = label_column(self.label, names, classes, self)
        if label is None and len(of_objects := object_class_names(schema)) == 1:
            (label,) = of_objects
        split = self.split or ("split" if "split" in names else None)
        caption = self.caption or ("caption" if "caption" in names else None)
        if caption is not None and _TEXT.match(kind := str(schema.field(caption).type)) is None:
            logger.warning("%s", unfit_caption(self, caption, kind, is_named=self.caption is not None))
            caption = None
        texts = [name for name in names if _TEXT.match(str(schema.field(name).type)) and name not in (*in_bytes, label)]
        if not {caption, "caption"}.intersection(names) and (likely := LIKE_CAPTION.intersection(texts)):
            message = "%s has no column 'caption', so its texts go to .json; to use %r, name it with caption= or %s"
            logger.warning(message, self, min(likely), "--caption-column")
        used = {image, label, split, caption, self.mask}
        parts: dict[str, str] = {}
        for name in (name for name in in_bytes if name not in used):
            if (other := parts.setdefault(_NOT_IN_PART.sub("_", name.lower()), name)) != name:
                raise ConfigError(f"{self}: columns {other!r} and {name!r} would become one part; rename or remove one")
        if wrong := [name for part, name in parts.items() if part in {*SOURCE_PARTS, *LABEL_PARTS, "txt", "json"}]:
            raise ConfigError(f"{self}: column {wrong[0]!r} has the name of a part with another meaning; rename it")
        if self.mask is not None:
            parts[MASK_PART] = self.mask
        rest = [name for name in names if name not in used and name not in in_bytes]
        if left_out := [name for name in rest if _NESTED_BYTES.search(str(schema.field(name).type))]:
            logger.warning("%s: left out the columns %s, whose values are lists of bytes", self, ", ".join(left_out))
        others = tuple(name for name in rest if name not in left_out)
        return _Columns(image, label, split, caption, self.caption is not None, tuple(parts.items()), others)


class _Columns(NamedTuple):
    """The columns of a file by their use."""

    image: str
    label: str | None
    split: str | None
    caption: str | None
    needs_caption: bool
    parts: tuple[tuple[str, str], ...]  # part and column of bytes
    json: tuple[str, ...]

    @property
    def read(self) -> tuple[str, ...]:
        """The columns that are read for packing."""
        return self.image, *([self.caption] if self.caption else []), *dict(self.parts).values(), *self.json

    def identity(self, file: ParquetFile) -> int:
        """Return the identity of the rows of a file, which also depends on the columns in use."""
        return identity_of(file.identity, self.image, self.caption, self.needs_caption, self.parts, self.json)


class _ListedFile(NamedTuple):
    """The labels and splits of the rows of a file, the rows without a caption, and its footer."""

    labels: Sequence[Any]
    splits: Sequence[Any] | None
    without_caption: Collection[int]  # bad rows, as the caption is required
    identity: int
    group_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetReader(Reader):
    """Reads rows. The path of an item is its file below the base, and its row number: `a.parquet#17`."""

    columns: _Columns

    def _input(self, item: Item, more: Mapping[str, Any]) -> Input:  # noqa: ARG002 - the path says all
        name, _, number = item.path.rpartition("#")
        columns = self.columns
        row = _open(self.base, StorageOptions(self.storage_options), name, item.identity, columns).row(int(number))
        parts = {part: _bytes(row[column], column) for part, column in columns.parts}
        if columns.caption and (columns.needs_caption or row[columns.caption] not in (None, "", b"")):
            parts["txt"] = caption_text(row[columns.caption]).encode(errors="replace")
        if text := to_json({column: row[column] for column in columns.json}):
            parts["json"] = text.encode(errors="replace")
        image = _bytes(row[columns.image], columns.image)
        if problem := too_many_bytes(len(image)):
            raise SampleError(problem)
        return Input(image, parts)


def _bytes(value: Any, column: str) -> bytes:
    data = value.get("bytes") if isinstance(value, dict) else value
    if data is not None:
        return bytes(data)
    path = value.get("path") if isinstance(value, dict) else None
    named = f", but the path {path!a}, which is not opened, as its origin is unknown" if path else ""
    raise SampleError(f"has no bytes in column {column!r}{named}")


@functools.lru_cache(maxsize=2)  # each may hold a row group in memory
def _open(base: str, options: StorageOptions, name: str, identity: int, columns: _Columns) -> ParquetFile:
    """Return an open file of this process; SampleError if it has changed since it was listed."""
    file = ParquetFile(process_storage(base, options), name, columns.read, columns.json)
    if columns.identity(file) != identity:
        raise SampleError("its file has changed since it was listed; run the same command again")
    return file


def _list_file(storage: Storage, first: ParquetFile, columns: _Columns, name: str) -> _ListedFile:
    caption = columns.caption if columns.needs_caption else None
    file = ParquetFile(storage, name, small=[each for each in (columns.label, columns.split, caption) if each])
    if describe_schema(file.schema) != describe_schema(first.schema):
        raise ConfigError(f"{file.url} has other columns or class names than {first.url}; pack it separately")
    splits = None if columns.split is None else file.column(columns.split)
    without = file.without_text(caption) if caption else ()
    return _ListedFile(file.column(columns.label), splits, without, columns.identity(file), file.group_rows)


def _refuse_incomplete(splits: Mapping[str, str], where: object) -> None:
    """Refuse several configurations, which may have the same images, and incomplete or repeated files of a set."""
    folders: dict[str, str] = {}
    sets: dict[tuple[str, int], list[int]] = {}
    for name, split in splits.items():
        folder = os.path.dirname(name)
        if (other := folders.setdefault(split, folder)) != folder:
            raise ConfigError(
                f"{where} has the split {split!r} in two folders, {other!r} and {folder!r}, which may have the same "
                "images; name one folder, or choose files with a pattern"
            )
        if match := _OF.fullmatch(name):
            sets.setdefault((match[1], int(match[3])), []).append(int(match[2]))
    for (name, expected), numbers in sets.items():
        if len(set(numbers)) < len(numbers):
            raise ConfigError(f"{where} has two files of the same number among {name!r}; remove one, or use a pattern")
        if len(numbers) != expected:
            found = f"{len(numbers)} of {plural(expected, 'file')} {name!r}"
            raise ConfigError(f"{where} has only {found}; download the others, or choose files with a pattern")
