"""A Parquet file, read forwards, row by row, through a storage (parquet.apache.org).

A row group can only be read from its beginning, and a page only as a whole. Memory holds a row, and a page of each
column, compressed and not; as a page may be a whole row group, the size of groups is limited. Values that many rows
share are stored once, in a dictionary, and would grow when read: so rows are read one by one, and columns of labels and
JSON as dictionaries.
"""

from __future__ import annotations

import bisect
import contextlib
import io
import itertools
import json
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shardflow.dataset.column_files import import_pyarrow, unshared_bytes
from shardflow.errors import ConfigError, NotFoundError, SampleError, ShardflowError
from shardflow.storage.interface import BlobVersion, Storage

from .items import identity_of

MAX_GROUP_BYTES, MAX_GROUP_ROWS = 1 << 31, 1 << 20
"""Limits of a row group, which may be a single page per column."""

MAX_ROWS = 1 << 24
"""Limit of the rows of a file, whose labels are held in memory."""

MAX_SMALL_BYTES = 1 << 28
"""Limit of the labels of a file, and of a value that goes to JSON."""

_BUFFER_BYTES = 1 << 23
_TEXTS_AT_ONCE = 4096
_BYTES = ("binary", "large_binary", "binary_view")


class ParquetFile:
    """A Parquet file that is read forwards, row by row. Several threads may use it.

    Args:
        storage: The storage of the file.
        name: The name of the file in the storage.
        columns: The columns that `row` returns.
        small: The columns of labels and of values for JSON, which must be small.
    """

    def __init__(self, storage: Storage, name: str, columns: Sequence[str] = (), small: Sequence[str] = ()) -> None:
        version = storage.version(name)
        if version is None:
            raise NotFoundError(f"{storage.url(name)} does not exist; check the path")
        self.url, self.identity = storage.url(name), identity_of(version.size, version.tag)
        self._columns, self._small = list(columns), small
        self._pyarrow = import_pyarrow(f"{self.url}: Parquet needs")
        with self._readable():
            file = _BlobFile(storage, name, version)
            metadata = self._pyarrow.parquet.read_metadata(file)
            leaves = [metadata.schema.column(number) for number in range(metadata.num_columns)]
            self._paths = [leaf.path for leaf in leaves]
            texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY" and _is_of(leaf.path, small)]
            self.schema = metadata.schema.to_arrow_schema()
            self._file = self._pyarrow.parquet.ParquetFile(
                file,
                metadata=metadata,
                read_dictionary=texts,
                buffer_size=_BUFFER_BYTES,
                pre_buffer=False,
                page_checksum_verification=True,
            )
        groups = [self._file.metadata.row_group(number) for number in range(self._file.metadata.num_row_groups)]
        self._sizes = [(group.num_rows, group.total_byte_size) for group in groups]
        for number, (rows, size) in enumerate(self._sizes):
            if not 0 <= rows <= MAX_GROUP_ROWS or not 0 <= size <= MAX_GROUP_BYTES:
                raise ConfigError(
                    f"{self.url}: row group {number} has {rows:,} rows of {size:,} bytes; the limits are "
                    f"{MAX_GROUP_ROWS:,} rows and {MAX_GROUP_BYTES:,} bytes: write the file with fewer rows per group"
                )
        self._ends = list(itertools.accumulate(rows for rows, _ in self._sizes))
        if self._ends and self._ends[-1] > MAX_ROWS:
            raise ConfigError(f"{self.url} has {self._ends[-1]:,} rows; the limit is {MAX_ROWS:,}: divide it")
        self._lock = threading.Lock()
        self._group, self._start = -1, 0
        self._batch: Any = ()
        self._batches: Iterator[Any] = iter(())
        self._damaged: dict[int, tuple[int, str]] = {}

    @property
    def group_rows(self) -> int:
        """Number of rows of the largest row group."""
        return max((rows for rows, _ in self._sizes), default=0)

    def column(self, name: str | None) -> list[Any]:
        """Return a small column, or for a path the classes of each row's objects; a list of None without a name."""
        if name is None:
            return [None] * (self._ends[-1] if self._ends else 0)
        found: list[Any] = []
        size, (column_name, _, field) = 0, name.rpartition(".")
        is_field = name not in self.schema.names
        paths = [path for path in self._paths if path.startswith(f"{column_name}.") and field in path.split(".")]
        for group in range(len(self._sizes)):
            with self._readable(f"row group {group}: "):
                column = self._file.read_row_group(group, paths if is_field else [name], use_threads=False).column(0)
                size += sum(map(unshared_bytes, column.chunks))
                if size > MAX_SMALL_BYTES:
                    message = f"{self.url}: column {name!r} has more than {MAX_SMALL_BYTES:,} bytes"
                    raise ConfigError(f"{message}; if it is not the label, name that with label= or --label-column")
                values = column.to_pylist()
                if is_field:
                    values = [_classes_of_objects(value, field) for value in values]
                found += values
        return found

    def without_text(self, name: str) -> set[int]:
        """Return the rows without a text in a small column; row groups whose statistics exclude this are not read."""
        found: set[int] = set()
        leaf = self._paths.index(name)
        for group, end in enumerate(self._ends):
            known = self._file.metadata.row_group(group).column(leaf).statistics
            if known is not None and known.has_null_count and not known.null_count and known.has_min_max and known.min:
                continue
            number = end - self._sizes[group][0]
            with self._readable(f"row group {group}: "):
                for batch in self._file.iter_batches(_TEXTS_AT_ONCE, [group], [name], use_threads=False):
                    texts, is_empty = batch.column(0), np.ones(len(batch), dtype=np.bool_)
                    if texts.null_count < len(batch):
                        lengths = self._pyarrow.compute.binary_length(texts.dictionary)
                        is_empty = lengths.take(texts.indices).fill_null(0).to_numpy() == 0
                    found.update((number + np.flatnonzero(is_empty)).tolist())
                    number += len(batch)
        return found

    def row(self, number: int) -> dict[str, Any]:
        """Return a row."""
        with self._lock:
            group = bisect.bisect_right(self._ends, number)
            if group == len(self._ends):
                raise SampleError("the row no longer exists in its file; run the same command again")
            since, reason = self._damaged.get(group, (number + 1, ""))
            if number >= since:
                raise SampleError(reason)
            if group != self._group or number < self._start:
                self._group, self._start, self._batch = group, self._ends[group] - self._sizes[group][0], ()
                self._batches = self._file.iter_batches(1, [group], self._columns, use_threads=False)
            try:
                while number >= self._start + len(self._batch):
                    self._start, self._batch = self._start + len(self._batch), ()
                    with self._readable(f"row group {group}: "):
                        self._batch = next(self._batches)
            except (ConfigError, StopIteration) as error:
                reason = str(error) or f"row group {group} ends before its last row"
                self._damaged[group] = (self._start, reason)
                raise SampleError(reason) from error
            finally:
                if not self._batch:  # a failed iterator cannot continue
                    self._group = -1
            for name in set(self._small).intersection(self._columns):
                if (size := unshared_bytes(self._batch.column(name))) > MAX_SMALL_BYTES:
                    raise SampleError(f"its column {name!r} has {size:,} bytes; the limit is {MAX_SMALL_BYTES:,}")
            row: dict[str, Any] = self._batch.to_pylist()[0]
            return row

    @contextlib.contextmanager
    def _readable(self, where: str = "") -> Iterator[None]:
        try:
            yield
        except ShardflowError:
            raise
        except (self._pyarrow.ArrowException, OSError, EOFError, ValueError) as error:
            raise ConfigError(f"{self.url} is not a readable Parquet file: {where}{error}") from error


def _is_of(path: str, columns: Sequence[str]) -> bool:
    """Return whether the values at a path belong to one of these columns."""
    return any(path == name or path.startswith(f"{name}.") for name in columns)


class _BlobFile(io.RawIOBase):
    """A blob as a file for pyarrow. All reads are of one version."""

    def __init__(self, storage: Storage, name: str, version: BlobVersion) -> None:
        self._storage, self._name, self._version, self._at = storage, name, version, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._version.size}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        stop = self._version.size if size is None or size < 0 else min(self._at + size, self._version.size)
        data = self._storage.read_range(self._name, self._at, max(self._at, stop), version=self._version)
        self._at += len(data)
        return data


def byte_columns(schema: Any) -> dict[str, bool]:
    """Return column of bytes → whether it is a struct of bytes and path, as Hugging Face stores images."""
    found = {}
    for each in schema:
        kind = str(each.type)
        is_struct = kind.startswith("struct<") and {"bytes", "path"} == {
            each.type.field(n).name for n in range(each.type.num_fields)
        }
        if is_struct:
            kind = str(each.type.field("bytes").type)
        if kind in _BYTES:
            found[each.name] = is_struct
    return found


def describe_schema(schema: Any) -> object:
    """Return the properties that the files of a source must share: names, columns of bytes, class names."""
    return sorted(schema.names), byte_columns(schema), class_names(schema), object_class_names(schema)


def class_names(schema: Any) -> dict[str, tuple[str, ...]]:
    """Return the columns of Hugging Face's type ClassLabel, or of lists of it → class names."""
    return {path: names for path, lists, names in _class_labels(schema) if path in schema.names and lists < 2}


def object_class_names(schema: Any) -> dict[str, tuple[str, ...]]:
    """Return the fields of type ClassLabel in lists of objects, by path (`objects.category`) → class names."""
    found = {path: names for path, lists, names in _class_labels(schema) if lists == 1}
    return {path: names for path, names in found.items() if path.count(".") == 1 and path.split(".")[0] in schema.names}


def _class_labels(schema: Any) -> list[tuple[str, int, tuple[str, ...]]]:
    """Return path, nesting depth of lists, and names of each ClassLabel in Hugging Face's metadata."""
    found: list[tuple[str, int, tuple[str, ...]]] = []

    def walk(feature: Any, path: str, lists: int) -> None:
        if isinstance(feature, list):
            walk(feature[0], path, lists + 1)
        elif not isinstance(kind := feature.get("_type"), str):
            for name, field in feature.items():
                walk(field, f"{path}.{name}" if path else name, lists)
        elif "feature" in feature:
            walk(feature["feature"], path, lists + 1)
        elif kind == "ClassLabel" and isinstance(feature.get("names"), list):
            found.append((path, lists, tuple(map(str, feature["names"]))))

    with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
        walk(json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"], "", 0)
    return found


def _classes_of_objects(value: Any, field: str) -> tuple[Any, ...]:
    """Return the classes of a row's objects, which are a struct of lists or a list of structs; -1 means no class."""
    found = value.get(field) if isinstance(value, dict) else [each[field] for each in value or () if each]
    return tuple(sorted({one for one in found or () if one not in (None, -1)}))
