"""A Parquet file, read row by row, forwards, through a storage (parquet.apache.org).

A row group can only be read from its beginning, and a page only whole. So memory holds a few rows of one row group, and
a page of each column, which may be all of the group: the size of groups has a limit.
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

from shardflow.errors import ConfigError, NotFoundError, SampleError, ShardflowError
from shardflow.storage.interface import BlobVersion, Storage

from .items import identity_of
from .table import import_pyarrow

MAX_GROUP_BYTES, MAX_GROUP_ROWS = 1 << 31, 1 << 20
"""The largest row group that is read, by its footer: a page of a column can be all of it."""

_BATCH_BYTES, _BATCH_ROWS = 1 << 24, 64
_BUFFER_BYTES = 1 << 23
_BYTES = ("binary", "large_binary", "binary_view")


class ParquetFile:
    """A Parquet file that is read forwards, a few rows at a time. It may be used by several threads."""

    def __init__(self, storage: Storage, name: str, columns: Sequence[str] = ()) -> None:
        version = storage.version(name)
        if version is None:
            raise NotFoundError(f"{storage.url(name)} does not exist; check the path")
        self.url, self.identity = storage.url(name), identity_of(version.size, version.tag)
        self._columns = list(columns)
        self._pyarrow = import_pyarrow(self.url)
        with self._readable():
            self._file = self._pyarrow.parquet.ParquetFile(
                _BlobFile(storage, name, version),
                buffer_size=_BUFFER_BYTES,
                pre_buffer=False,
                page_checksum_verification=True,
            )
            self.schema = self._file.schema_arrow
        groups = [self._file.metadata.row_group(number) for number in range(self._file.metadata.num_row_groups)]
        self._sizes = [(group.num_rows, group.total_byte_size) for group in groups]
        for number, (rows, size) in enumerate(self._sizes):
            if not 0 <= rows <= MAX_GROUP_ROWS or not 0 <= size <= MAX_GROUP_BYTES:
                raise ConfigError(
                    f"{self.url}: row group {number} has {rows:,} rows of {size:,} bytes; {MAX_GROUP_ROWS:,} rows and "
                    f"{MAX_GROUP_BYTES:,} bytes are the most: write the file again with fewer rows per group"
                )
        self._ends = list(itertools.accumulate(rows for rows, _ in self._sizes))
        self._lock = threading.Lock()
        self._group, self._start = -1, 0
        self._batch: Any = ()
        self._batches: Iterator[Any] = iter(())
        self._damaged: dict[int, tuple[int, str]] = {}

    @property
    def group_rows(self) -> int:
        """The rows of the largest row group."""
        return max((rows for rows, _ in self._sizes), default=0)

    def column(self, name: str | None) -> list[Any]:
        """Return a small column; as many None without a name."""
        if name is None:
            return [None] * (self._ends[-1] if self._ends else 0)
        with self._readable():
            return list(self._file.read([name], use_threads=False).column(0).to_pylist())

    def row(self, number: int) -> dict[str, Any]:
        """Return a row."""
        with self._lock:
            group = bisect.bisect_right(self._ends, number)
            if group == len(self._ends):
                raise SampleError("its file has no such row; run the same command again")
            since, reason = self._damaged.get(group, (number + 1, ""))
            if number >= since:
                raise SampleError(reason)
            if group != self._group or number < self._start:
                rows, size = self._sizes[group]
                count = max(1, min(_BATCH_ROWS, _BATCH_BYTES * rows // max(1, size)))
                self._group, self._start, self._batch = group, self._ends[group] - rows, ()
                self._batches = self._file.iter_batches(count, [group], self._columns, use_threads=False)
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
                if not self._batch:  # an iterator that failed does not go on
                    self._group = -1
            row: dict[str, Any] = self._batch.slice(number - self._start, 1).to_pylist()[0]
            return row

    @contextlib.contextmanager
    def _readable(self, where: str = "") -> Iterator[None]:
        try:
            yield
        except ShardflowError:
            raise
        except (self._pyarrow.ArrowException, OSError, EOFError, ValueError) as error:
            raise ConfigError(f"{self.url} is not a readable Parquet file: {where}{error}") from error


class _BlobFile(io.RawIOBase):
    """A blob as a file that pyarrow reads. Every part is of one version."""

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
    """Return the columns of bytes, each with whether it is a struct of bytes and path, as Hugging Face's images."""
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
    """Return what must be equal in files that are read alike: names, columns of bytes, and names of classes."""
    return sorted(schema.names), byte_columns(schema), class_names(schema)


def class_names(schema: Any) -> dict[str, tuple[str, ...]]:
    """Return the columns of Hugging Face's type ClassLabel, or lists of it, each with the names of its classes."""
    found: dict[str, tuple[str, ...]] = {}
    with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        for column, feature in features.items():
            one = feature[0] if isinstance(feature, list) else feature.get("feature", feature)
            if column in schema.names and one.get("_type") == "ClassLabel" and isinstance(one.get("names"), list):
                found[column] = tuple(map(str, one["names"]))
    return found
