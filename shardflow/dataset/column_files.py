"""Files of columns: their bytes, and the reader of those of a split. All that a dataset does with pyarrow is here.

The files are Parquet without compression and dictionaries. So reading one never takes much more memory than it has
bytes, even if it is forged.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardflow._validation import did_you_mean
from shardflow.errors import ConfigError, IntegrityError, ShardflowError
from shardflow.formats.columns import TEXT, Column, ColumnFile, ColumnFiles, file_name, parse_kind
from shardflow.formats.shard import Shard
from shardflow.formats.shard_table import ShardTable
from shardflow.storage.cache import Cache
from shardflow.storage.interface import Storage
from shardflow.storage.local_files import map_os_errors
from shardflow.storage.resolve import open_folder_of

MOST_VALUES = 1 << 29
"""The most values of a column for one shard, which are read at once."""

MAX_TABLE_BYTES = 1 << 36
"""The most bytes of a remote table, which is read into memory."""

MAX_TABLE_ROWS = 1 << 28
"""The most rows of a Parquet table."""

MAX_VALUE_BYTES, MAX_EXPANSION = 1 << 32, 4
"""The values of a Parquet table have at most so many bytes, or so many times as many as its file."""

_BATCH_ROWS = 1 << 20  # each batch has a copy of a dictionary

_KEPT_BYTES = 1 << 30  # of the files whose values a process keeps
_OURS = b"shardflow"
_ENCODINGS = {"PLAIN", "RLE", "BIT_PACKED"}  # RLE is for lengths and nulls
_LONG = re.compile(rb"[\[,:]\s*-?[0-9]{20,}\s*[,\]}]")
_TEXTS = ("string", "large_string", "string_view")


class Values(NamedTuple):
    """The values of a column for some samples, in order.

    Attributes:
        values: [N] or, of lists, [N, D]: numbers, or of text an array of str; 0 or "" where a sample has no value.
        present: bool [N], whether each sample has a value.
    """

    values: npt.NDArray[Any]
    present: npt.NDArray[np.bool_]

    def take(self, rows: npt.NDArray[Any]) -> Values:
        """Return the values of these rows, or of those that are True."""
        return Values(self.values[rows], self.present[rows])


class Table(NamedTuple):
    """A table in memory: its keys, and its columns with their types; Arrow arrays."""

    keys: Any
    columns: Mapping[str, tuple[str, Any]]


def import_pyarrow(needed: str = "columns need") -> Any:
    """Return pyarrow, with its modules for tables and files; a ConfigError where it is missing says what needs it."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.json
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(f"{needed} pyarrow: pip install 'shardflow[parquet]'") from error
    return pyarrow


def no_values(kind: str, samples: int) -> Values:
    """Return a column of this type without any value."""
    scalar, width = parse_kind(kind)
    if samples * (width or 1) > MOST_VALUES:
        found = f"{samples * (width or 1):,} values for one shard; {MOST_VALUES:,} are the most"
        raise IntegrityError(f"a column has {found}: pack fewer samples per shard, or add shorter lists")
    shape = (samples,) if width is None else (samples, width)
    empty = np.full(shape, "", dtype=object) if scalar == TEXT else np.zeros(shape, dtype=scalar)
    return Values(empty, np.zeros(samples, dtype=np.bool_))


def load_table(
    table: Any, key: str, only: Sequence[str] | None, options: Mapping[str, Any] | None, *, by_path: bool = False
) -> Table:
    """Return a column of a table as keys, and others as values: `only` those, or all. Paths may be whole numbers.

    `table` is the path or URL of a Parquet, CSV, TSV or JSON lines file, or an object with Arrow's PyCapsule interface.

    Raises:
        ConfigError: It is not such a table, lacks one of the columns, or has values that columns cannot hold.
        StoreError: It cannot be read.
    """
    pa = import_pyarrow()
    shown = repr(os.fspath(table)) if isinstance(table, (str, os.PathLike)) else f"the {type(table).__name__}"
    wanted = None if only is None else [key, *only]
    if not isinstance(table, (str, os.PathLike)) and not hasattr(table, "__arrow_c_stream__"):
        remedy = "; write pandas.DataFrame(it)" * isinstance(table, dict | list)
        raise ConfigError(
            f"{shown} is neither a path nor a table: no method __arrow_c_stream__ (Arrow PyCapsule){remedy}"
        )
    try:
        found = _read_file(table, key, wanted, options) if isinstance(table, (str, os.PathLike)) else pa.table(table)
    except ShardflowError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:  # of a table of pandas too
        raise ConfigError(f"{shown} is not a readable table: {error}") from error
    names = found.column_names
    _check_has(shown, wanted or [key], names)
    if len(set(names)) < len(names):
        raise ConfigError(f"{shown} has two columns of one name among {', '.join(names)}; rename one of them")
    values = [name for name in only or names if name != key and (only or not name.startswith("__index_level_"))]
    if not values:
        raise ConfigError(f"{shown} has no column but {key!r}; nothing would be added")
    keys = found.column(key)
    keys = keys.cast(pa.large_string()) if by_path and pa.types.is_integer(keys.type) else keys
    if (target := _target(keys.type)) is None or str(target) != "large_string":
        call = f"columns.compute(URL, NAME, lambda rows: [values.get(row[{key!r}]) for row in rows], field='json')"
        keys_are = "keys are texts, such as 'train:000000042', which pandas reads with dtype=str"
        remedy = f"{keys_are}; join ids of the part 'json' by {call}"
        raise ConfigError(f"column {key!r} of {shown} has keys of type {keys.type}; {remedy}")
    return Table(keys.cast(target).combine_chunks(), {name: _canonical(name, found.column(name)) for name in values})


def _read_file(url: str | os.PathLike[str], key: str, wanted: Any, options: Mapping[str, Any] | None) -> Any:
    import pyarrow as pa
    from pyarrow import csv, json, parquet

    if set(os.path.basename(url)) & {*"*{"} or os.path.isdir(url):
        remedy = "read them as one, such as pyarrow.dataset.dataset(folder).to_table(), for shardflow.columns.add"
        raise ConfigError(f"{os.fspath(url)!r} names several files, and a table is one; {remedy}")
    storage, _, name = open_folder_of(url, options)
    local = storage.local_path(name)
    if local is None:
        file = pa.BufferReader(storage.read(name, most_bytes=MAX_TABLE_BYTES))
    else:
        with map_os_errors(local):
            file = pa.memory_map(str(local)) if local.stat().st_size else pa.BufferReader(b"")
    kind = os.path.splitext(name)[1].lower()
    if kind == ".parquet":
        opened = parquet.ParquetFile(file)
        if (rows := _rows(opened.metadata)) > MAX_TABLE_ROWS:
            raise ConfigError(f"{name} has {rows:,} rows; {MAX_TABLE_ROWS:,} are the most: divide it")
        _check_has(repr(os.fspath(url)), wanted or [key], opened.schema_arrow.names)  # the table lacks unwanted ones
        texts = [field.name for field in opened.schema_arrow if str(field.type) in _TEXTS]
        opened = parquet.ParquetFile(file, metadata=opened.metadata, read_dictionary=texts)
        return _read_bounded(opened, name, wanted, max(MAX_VALUE_BYTES, MAX_EXPANSION * file.size()))
    if kind in (".csv", ".tsv"):
        # Keys such as 000000042 are text, though they look like numbers.
        convert = csv.ConvertOptions(column_types={key: pa.string()})
        parse = csv.ParseOptions(delimiter="\t" if kind == ".tsv" else ",", newlines_in_values=True)
        found = csv.read_csv(file, None, parse, convert)
        for number, field in enumerate(found.schema):
            if field.name != key and str(field.type) == "string":
                values = found.column(number)  # an empty cell is missing, as in the tables that are packed
                values = pa.compute.if_else(pa.compute.equal(values, ""), pa.scalar(None, pa.string()), values)
                found = found.set_column(number, field, values)
        numbers = [field.name for field in found.schema if str(field.type) in ("int64", "double")]
        if not numbers or len(set(found.column_names)) < len(found.column_names):
            return found
        file.seek(0)
        convert = csv.ConvertOptions(column_types=dict.fromkeys(numbers, pa.string()), include_columns=numbers)
        return _with_codes(found, csv.read_csv(file, None, parse, convert))
    if kind in (".jsonl", ".ndjson"):
        found = json.read_json(file)
        file.seek(0)
        for column in found.column_names:
            if _is_rounded(found.column(column), file):
                message = f"{name}: column {column!r} has whole numbers that neither int64 nor float64 holds exactly"
                raise ConfigError(f"{message}; write them as text")
        return found
    raise ConfigError(f"{name} is not a table by its name; expected .parquet, .csv, .tsv or .jsonl")


def _rows(metadata: Any) -> int:
    """Return the rows of a Parquet file; ValueError if its groups have others, for which pyarrow would allocate."""
    rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    if min(rows, default=0) < 0 or sum(rows) != metadata.num_rows:
        raise ValueError(f"its footer says {metadata.num_rows:,} rows, and {sum(rows):,} in its groups")
    return sum(rows)


def _check_has(shown: str, wanted: Sequence[str], names: Sequence[str]) -> None:
    if lacking := [name for name in wanted if name not in names]:
        hint = did_you_mean(lacking[0], names)
        raise ConfigError(f"{shown} has no column {lacking[0]!r}{hint}; it has {', '.join(names)}")


def _read_bounded(opened: Any, name: str, wanted: Sequence[str] | None, most: int) -> Any:
    """Return columns of a Parquet file whose texts are read as dictionaries; ConfigError if they exceed `most` bytes.

    The footer's sizes bound values that are compressed; a text that rows share is counted before it is copied. The
    columns are read one by one, so that a page of one is in memory.
    """
    import pyarrow as pa

    schema, metadata, columns, size = opened.schema_arrow, opened.metadata, list[Any](), 0
    names = schema.names if wanted is None else wanted
    paths = [metadata.schema.column(leaf).path for leaf in range(metadata.num_columns)]

    def check(size: int) -> None:
        if size > most:
            message = f"{name}: its values have {size:,} bytes or more; {most:,} are the most"
            raise ConfigError(f"{message}: divide it, or add fewer columns (--only)")

    for column, kind in [(each, schema.types[schema.names.index(each)]) for each in names]:
        target, is_shared, parts = _checked_target(column, kind), pa.types.is_dictionary(kind), list[Any]()
        leaves = [leaf for leaf, path in enumerate(paths) if f"{path}.".startswith(f"{column}.")]
        chunks = [metadata.row_group(group).column(leaf) for group in range(metadata.num_row_groups) for leaf in leaves]
        check(size + sum(max(chunk.total_uncompressed_size, 4 * chunk.num_values) for chunk in chunks))
        for batch in opened.iter_batches(_BATCH_ROWS, columns=[column], use_threads=False):
            array = batch.column(batch.schema.names.index(column))  # `a` comes with a column `a.b`
            size += unshared_bytes(array)
            check(size)
            parts.append(array.cast(target) if is_shared else array)
        columns.append(pa.chunked_array(parts, target if is_shared else kind))
    return pa.table(columns, names)


def unshared_bytes(array: Any) -> int:
    """Return the bytes of an array if values that its rows share are written for each row."""
    import pyarrow as pa
    from pyarrow import compute

    kind = array.type
    if pa.types.is_struct(kind):
        return sum(map(unshared_bytes, array.flatten()))
    if pa.types.is_nested(kind):
        return unshared_bytes(array.values if pa.types.is_map(kind) else array.flatten())
    if not pa.types.is_dictionary(kind):
        return int(array.nbytes)
    if array.null_count == len(array):
        return 8 * len(array)
    used = array.indices.drop_null().value_counts()  # not all of the dictionary, which other rows have too
    lengths = compute.binary_length(array.dictionary.take(used.field("values")).cast("large_binary"))
    return 8 * len(array) + int(compute.sum(compute.multiply(lengths, used.field("counts").cast("int64"))).as_py())


def _with_codes(found: Any, texts: Any) -> Any:
    """Return a table whose columns of numbers are text where their `texts` say more: 007, 0x7, and 20 digits."""
    from pyarrow import compute

    for name in texts.column_names:
        has_value, text = found.column(name).is_valid(), texts.column(name)
        is_long = "" if str(found.column(name).type) == "int64" else "|[0-9]{16,} *$"
        is_code = compute.match_substring_regex(text, f"^ *[+-]?(0[0-9xX]{is_long})")
        if compute.any(compute.and_(has_value, is_code)).as_py():
            codes = compute.if_else(has_value, text, None)
            found = found.set_column(found.column_names.index(name), name, codes)
    return found


def _is_rounded(values: Any, file: Any) -> bool:
    """Return whether a file's floats, alone or in lists, may stand for other whole numbers."""
    import pyarrow as pa
    from pyarrow import compute

    while pa.types.is_list(values.type):
        values = compute.list_flatten(values)
    if str(values.type) != "double" or (most := compute.max(compute.abs(values)).as_py() or 0) < 1 << 53:
        return False
    large = compute.greater_equal(compute.abs(values), float(1 << 53))
    if most >= 1e22 and _LONG.search(memoryview(file.read_buffer())):  # others, such as 1e300, are written so
        return True
    return bool(compute.any(compute.and_(large, compute.less(compute.abs(values), 1e22))).as_py())


def _target(kind: Any) -> Any:
    """Return the Arrow type in which values of a type are kept; None of one that columns cannot hold."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _target(kind.value_type)
    if str(kind) in _TEXTS:
        return pa.large_string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        target = _target(kind.value_type)
        is_number = target is not None and not (pa.types.is_large_string(target) or pa.types.is_nested(target))
        return pa.large_list(target) if is_number else None
    scalars = {"bool": pa.bool_(), "halffloat": pa.float32(), "float": pa.float32(), "double": pa.float64()}
    return pa.int64() if pa.types.is_integer(kind) else scalars.get(str(kind))


def _checked_target(name: str, kind: Any) -> Any:
    if (target := _target(kind)) is None:
        kinds = "numbers, texts and lists of numbers"
        is_time = str(kind).startswith(("date", "time"))  # Arrow finds dates in texts of CSV and JSON lines
        remedy = "name the others in only= or --only, or make it text in a Parquet table" if is_time else "leave it out"
        raise ConfigError(f"column {name!r} has values of type {kind}; columns hold {kinds}: {remedy}")
    return target


def _canonical(name: str, column: Any) -> tuple[str, Any]:
    """Return the type of a column of a table, and its values as one array of that type."""
    import pyarrow as pa
    from pyarrow import compute

    target = _checked_target(name, column.type)
    try:
        array = column.cast(target).combine_chunks()
    except pa.ArrowException as error:
        raise ConfigError(f"column {name!r} cannot be kept as {target}: {error}") from error
    scalar, is_list = _kind(target)
    if not is_list:
        return scalar, array
    lengths = compute.unique(compute.list_value_length(array)).drop_null().to_pylist()
    if len(lengths) != 1 or not lengths[0] or array.flatten().null_count:
        found = f"lists of {', '.join(map(str, sorted(lengths)[:3]))} numbers" if lengths != [0] else "empty lists"
        wrong = f"{found}; all lists of a column have one length: pad or divide it"
        if array.flatten().null_count:
            wrong = "lists with missing values or NaN in them; fill these in, as by pandas' fillna"
        raise ConfigError(f"column {name!r} has {wrong}")
    return f"{scalar}[{lengths[0]}]", array


def _kind(target: Any) -> tuple[str, bool]:
    """Return the type of values in our words, and whether these are lists; `target` is from `_target`."""
    is_list = hasattr(target, "value_type")
    name = str(target.value_type if is_list else target)
    return {"double": "float64", "float": "float32", "large_string": TEXT}.get(name, name), is_list


def take(kind: str, array: Any, rows: npt.NDArray[np.int64]) -> Values:
    """Return the values in rows of a table; a row below 0 is none."""
    import pyarrow as pa

    return _from_arrow(kind, array.take(pa.array(rows, mask=rows < 0)))


def _from_arrow(kind: str, array: Any) -> Values:
    scalar, width = parse_kind(kind)
    values, present = no_values(kind, len(array))
    present[:] = array.is_valid().to_numpy(zero_copy_only=False)
    found = array.drop_null() if width is None else array.flatten()
    texts = found.to_pylist() if scalar == TEXT else None
    flat = found.to_numpy(zero_copy_only=False) if texts is None else np.array(texts, dtype=object)
    values[present] = flat if width is None else flat.reshape(-1, width)
    return Values(values, present)


def encode(name: str, kind: str, column: Values) -> bytes:
    """Return the contents of the file of a column."""
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table({name: to_arrow(kind, column)}).replace_schema_metadata({_OURS: kind})
    written = io.BytesIO()
    options = {"compression": "NONE", "use_dictionary": False, "write_statistics": False}
    parquet.write_table(table, written, row_group_size=max(1, len(table)), **options)
    return written.getvalue()


def to_arrow(kind: str, column: Values) -> Any:
    """Return values as an Arrow array, null where a sample has none."""
    import pyarrow as pa

    scalar, width = parse_kind(kind)
    values, absent = column.values, ~column.present
    if width is None:
        return pa.array(values, pa.large_string() if scalar == TEXT else None, mask=absent)
    ends = np.concatenate([[0], np.cumsum(column.present, dtype=np.int64) * width])
    offsets = pa.array(ends, mask=np.append(absent, False))
    return pa.LargeListArray.from_arrays(offsets, pa.array(values[column.present].reshape(-1)))


def decode(data: bytes, name: str, kind: str, samples: int) -> Values:
    """Return the values in the file of a column for so many samples; IntegrityError if it has others."""
    pa = import_pyarrow()
    scalar, width = parse_kind(kind)
    try:
        file = pa.parquet.ParquetFile(pa.BufferReader(data))
        groups = [file.metadata.row_group(number).column(0) for number in range(file.metadata.num_row_groups)]
        is_plain = all(each.compression == "UNCOMPRESSED" and _ENCODINGS.issuperset(each.encodings) for each in groups)
        counts = _rows(file.metadata), sum(each.num_values for each in groups)
        if not is_plain or counts[0] != samples or counts[1] > samples * (width or 1):
            raise IntegrityError(f"it is not a column of {samples} samples")
        column = file.read([name], use_threads=False).column(0)
        if _target(column.type) != column.type or _kind(column.type) != (scalar, width is not None):
            raise IntegrityError(f"it is a column of {column.type}, the manifest says {kind}")
        return _from_arrow(kind, column.combine_chunks())
    except (pa.ArrowException, OSError, ValueError, KeyError, IndexError) as error:
        raise IntegrityError(f"it is not a column of {kind}: {error}") from error


def is_ours(data: bytes) -> bool:
    """Return whether these are the contents of a file that `encode` made."""
    import pyarrow as pa
    from pyarrow import parquet

    with contextlib.suppress(pa.ArrowException, OSError):
        return _OURS in (parquet.ParquetFile(pa.BufferReader(data)).schema_arrow.metadata or {})
    return False


class FilesOfColumn:
    """The files of a new column, made shard by shard of each split."""

    def __init__(self, name: str, kind: str, stem: str | None = None) -> None:
        self.name, self.kind, self.stem = name, kind, stem or name
        self._files: dict[str, list[tuple[int, str]]] = {}
        self._nulls = Counter[str]()

    def add(self, split: str, shard: Shard, values: Values | None) -> tuple[str, bytes]:
        """Return the name and the content of the file of the next shard of a split."""
        values = no_values(self.kind, shard.samples) if values is None else values
        data = encode(self.name, self.kind, values)
        self._files.setdefault(split, []).append((len(data), hashlib.sha256(data).hexdigest()))
        self._nulls[split] += shard.samples - int(values.present.sum())
        return file_name(shard, self.stem), data

    def column(self) -> Column:
        """Return the entry of the column in the manifest."""
        splits = {
            split: ColumnFiles(
                bytes=tuple(size for size, _ in files),
                sha256="".join(sha256 for _, sha256 in files),
                nulls=self._nulls[split],
            )
            for split, files in self._files.items()
        }
        return Column(kind=self.kind, stem=self.stem, splits=splits)


class ColumnReader:
    """Reads the columns of a split: in place, or through the cache; checked by their SHA-256 in either case.

    `read_often` is for one thread; any thread may call the other methods. A reader can be sent to another process.

    Args:
        storage: Where the files are.
        split: Name of the split.
        shards: Its shards.
        columns: The columns of the dataset.
        cache: Where to keep files that are not on a local disk; None if nothing is kept.

    Attributes:
        kinds: Column → the type of its values.
        used: The columns that are fetched ahead.
    """

    def __init__(
        self, storage: Storage, split: str, shards: ShardTable, columns: Mapping[str, Column], cache: Cache | None
    ) -> None:
        self._storage, self._split, self._shards, self._columns = storage, split, shards, columns
        self._cache = cache
        self.kinds = {name: column.kind for name, column in columns.items()}
        self.used = tuple(columns)
        self._kept: OrderedDict[tuple[str, int], tuple[int, Values]] = OrderedDict()
        self._kept_bytes = 0

    def missing(self, name: str) -> int:
        """Return how many samples have no value in a column."""
        return self._columns[name].missing(self._split, self._shards.samples.tolist())

    def files(self) -> Iterator[ColumnFile]:
        """Yield the files of all columns."""
        for name in self.kinds:
            found = (self.file(name, shard) for shard in range(len(self._shards)))
            yield from (file for file in found if file is not None)

    def file(self, name: str, shard: int) -> ColumnFile | None:
        """Return the file of a column for a shard; None where its samples have no values."""
        return self._columns[name].file(self._split, shard, self._shards[shard])

    def read_often(self, name: str, shard: int) -> Values:
        """Return the values of the samples of a shard, and keep them in memory with other shards read lately."""
        if (kept := self._kept.get((name, shard))) is not None:
            self._kept.move_to_end((name, shard))
            return kept[1]
        values, file = self.read(name, shard), self.file(name, shard)
        size = 0 if file is None else file.bytes
        self._kept[name, shard] = size, values
        self._kept_bytes += size
        while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
            self._kept_bytes -= self._kept.popitem(last=False)[1][0]
        return values

    def read(self, name: str, shard: int) -> Values:
        """Return the values of the samples of a shard.

        Raises:
            IntegrityError: The file is not the one that was added.
            StoreError: It is missing, or out of reach.
        """
        kind, samples = self.kinds[name], int(self._shards.samples[shard])
        if (file := self.file(name, shard)) is None:
            return no_values(kind, samples)
        try:
            if self._cache is not None and self._is_remote(file):
                url = self._storage.url(file.name)
                data = self._cache.read(file.sha256, file.bytes, self._download(file), url)
            else:
                data = self.read_bytes(file)
            return decode(data, name, kind, samples)
        except IntegrityError as error:
            raise error.with_location(shard=self._storage.url(file.name)) from error

    def read_all(self, name: str) -> Values:
        """Return the values of all samples of the split."""
        parts = [self.read(name, shard) for shard in range(len(self._shards))] or [no_values(self.kinds[name], 0)]
        values, present = zip(*parts, strict=True)
        return Values(np.concatenate(values), np.concatenate(present))

    def read_bytes(self, file: ColumnFile) -> bytes:
        """Return the contents of a file from its storage, with the size and the SHA-256 that the manifest says."""
        data = self._storage.read(file.name, most_bytes=max(1, file.bytes))
        if len(data) != file.bytes or hashlib.sha256(data).hexdigest() != file.sha256:
            raise IntegrityError("it is not the file that was added; run `shardflow verify` and restore it from a copy")
        return data

    def fetch(self, shard: int) -> None:
        """Download the files of the columns in use for a shard into the cache, unless they are there."""
        for file in self._remote_files(shard):
            if self._cache is not None:
                self._cache.fetch(file.sha256, file.bytes, self._download(file))

    def finish(self, shard: int) -> None:
        """Say that the columns of a shard are not needed before the next epoch: see `ShardReader.finish`."""
        for file in self._remote_files(shard):
            if self._cache is not None:
                self._cache.finish(file.sha256)

    def renew(self) -> None:
        """Say that the columns in use are still needed: see `ShardReader.renew`."""
        if self._cache is not None and self.used:
            files = (file for shard in range(len(self._shards)) for file in self._remote_files(shard))
            self._cache.renew({file.sha256 for file in files})

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": OrderedDict(), "_kept_bytes": 0}

    def _remote_files(self, shard: int) -> Iterator[ColumnFile]:
        files = (self.file(name, shard) for name in self.used)
        return (file for file in files if file is not None and self._is_remote(file))

    def _is_remote(self, file: ColumnFile) -> bool:
        return self._storage.local_path(file.name) is None

    def _download(self, file: ColumnFile) -> Any:
        return partial(self._storage.get, file.name, size=file.bytes, sha256=file.sha256)
