"""The table of samples, as Arrow: the facts in a dataset's indexes and columns; and conditions over it.

A condition is one SQL expression, which DuckDB parses and evaluates. It cannot access files, the network, extensions,
settings or other rows: aggregates, window functions and subqueries are refused. So are random(), now() and other
functions whose value changes: a command that is repeated after a kill must select the same samples. As in SQL, a
condition that is NULL does not select the sample. It is NULL if it compares a missing value, NaN or a list with NaN,
and if it divides by 0.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow._validation import did_you_mean
from shardflow._wording import first_few
from shardflow.errors import ConfigError, DatasetExistsError, NotFoundError
from shardflow.formats.columns import TABLE_FIELDS
from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.formats.shard import OnShard
from shardflow.formats.shard_index import KEY_PART
from shardflow.storage.resolve import open_storage
from shardflow.storage.staging import temporary_staging
from shardflow.storage.urls import split_name, strip_file_scheme

from .class_labels import shard_labels
from .column_files import Values, import_pyarrow, no_values, to_arrow
from .open_dataset import Split, open_dataset
from .selection import Mask, shard_keys

logger = logging.getLogger(__name__)

_TABLE_BYTES = 1 << 24  # bytes of rows per evaluation or write: shards are small, and each call has a cost
_IMAGES = [part.encode() for part in IMAGE_PARTS]
_SETTINGS = {
    "allow_community_extensions": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "enable_external_access": "false",
    "ieee_floating_point_ops": "false",  # else 0 / 0 is NaN, which is more than any number
    "memory_limit": "2GB",
    "python_enable_replacements": "false",  # names of Python's variables are not tables
    "temp_directory": "",
    "threads": "1",  # a loader forks its workers later
}
_CHANGING = """SELECT lower(function_name) FROM duckdb_functions() WHERE stability IS NOT NULL GROUP BY ALL
    HAVING bool_or(stability = 'VOLATILE') OR NOT bool_or(stability = 'CONSISTENT')"""
_MACROS = "SELECT lower(function_name), macro_definition FROM duckdb_functions() WHERE function_type = 'macro'"
_EQUALITY = re.compile(r"compare_((not_?)?(equal|in)|(not_)?distinct_from)|(list|array)_(contains|has)")
_SQL_VALUES = re.compile(r"(current|session)_\w+|localtime(stamp)?|user")  # functions without parentheses in SQL


def select(split: Split, classes: Sequence[str] | None, where: str, progress: OnShard = None) -> Mask:
    """Return which samples of a split satisfy a condition: bool [N].

    Only the columns that the condition names are read: reading keys may need the tars.

    Args:
        split: The split.
        classes: The class names; None without labels.
        where: The condition, such as "score > 0.5 and width >= 512 and class in ('cat', 'dog')".
        progress: Called after each shard.

    Raises:
        ConfigError: The condition is not valid for the table, or a library is missing.
        NotFoundError: The condition names `source`, and a shard has no receipt.
    """
    import_pyarrow("conditions need")
    try:
        import duckdb
    except ImportError as error:
        raise ConfigError("conditions need duckdb: pip install 'shardflow[parquet]'") from error
    names = [*TABLE_FIELDS, *split.columns.kinds]
    used = ["number", *(name for name in names if re.search(rf"\b{name}\b", where, re.IGNORECASE) and name != "number")]
    if len({name.lower() for name in used}) < len(used):
        raise ConfigError(f"the condition {where!r} names columns that differ only in case, which SQL ignores")
    mask, unknown = np.zeros(len(split), dtype=np.bool_), 0
    connection = duckdb.connect(":memory:", config=_SETTINGS)
    try:
        with contextlib.suppress(duckdb.Error):  # DuckDB 1 has no such setting, and returns NULL
            connection.execute("SET error_on_division_by_zero = false")
        connection.execute("SET TimeZone = 'UTC'")  # in which texts become times, on any machine
        connection.execute("SET lock_configuration = true")
        empty = connection.from_arrow(_empty(split, names))
        kinds = empty.filter(where).select(duckdb.SQLExpression(where)).types
        if [str(kind) for kind in kinds] != ["BOOLEAN"]:
            raise ConfigError(f"the condition {where!r} is not true or false; write a comparison, such as score > 0.5")
        paths = _Paths(_check_expression(connection, where, names, classes or ()))
        _warn_of_other_sizes(split, where, used)
        for table in _grouped(sample_tables(split, classes, used, progress, is_condition=True)):
            paths.search(table)
            mask[connection.from_arrow(table).filter(where).project("number").fetchnumpy()["number"]] = True
            unknown += max((table[side].null_count for side in ("width", "height") if side in used), default=0)
    except duckdb.Error as error:
        reason = str(error).partition("\n")[0]
        lacking = re.search('column "(.+?)" not found', reason)
        remedy = split.json_remedy(lacking[1]) if lacking else ""
        if lacking and f'"{lacking[1]}"' in where:
            remedy = f"; write a text in single quotes, '{lacking[1]}'"
        raise ConfigError(f"the condition {where!r}: {reason}; it can name {', '.join(names)}{remedy}") from error
    finally:
        connection.close()
    paths.refuse_incomplete(where)
    if unknown:
        message = "split %r: the index lacks the sizes of %d of %d images, so their width and height are NULL in the "
        logger.warning(
            message + "condition %r; pack them, and the index has all sizes", split.name, unknown, len(split), where
        )
    return mask


def _warn_of_other_sizes(split: Split, where: str, used: Collection[str]) -> None:
    """Warn of a condition on sizes if the samples' `.json` has others, such as those before packing."""
    sides = sorted({"width", "height"}.intersection(used))
    objects = split.json_objects() if sides else None
    stored = _of_index(split, 0) if objects else {}
    for record, given in (objects or {}).items():
        for side in sides:
            own = stored[side][record].as_py()
            if None not in (own, given.get(side)) and str(own) != str(given[side]):
                message = "split %r: in the condition %r, %s is that of the stored image, such as %s, not %s as in its "
                message += "json%s"
                logger.warning(message, split.name, where, side, own, given[side], split.json_remedy(side))
                return


def _check_expression(connection: Any, where: str, columns: Collection[str], classes: Sequence[str]) -> set[str]:
    """Return the texts that a condition compares with `source`.

    Raises:
        ConfigError: It may not select the same samples again, or names an unknown class.
    """
    changing = {"age", *(name for (name,) in connection.execute(_CHANGING).fetchall())}  # age(t) reads the clock
    macros, known = dict(connection.execute(_MACROS).fetchall()), {name.lower() for name in columns}
    expressions, seen, sources = [where], set[str](), set[str]()
    while expressions:
        parsed = connection.execute("SELECT json_serialize_sql(?)", [f"SELECT {expressions.pop()}\n"]).fetchall()
        tree = json.loads(parsed[0][0])
        if tree["error"]:
            raise ConfigError(f"the condition {where!r} is not one expression: {tree['error_message']}")
        for node in _nodes(tree):
            sources.update(_compared(node, "source"))
            named = [*_compared(node, "class"), *_compared(node, "classes")] if classes else ()
            if unknown := [text for text in named if text not in classes]:
                meant = did_you_mean(unknown[0], classes)
                raise ConfigError(f"condition {where!r}: no class {unknown[0]!r}{meant} among {first_few(classes, 10)}")
            kind, name = node.get("class"), ""
            if kind == "SUBQUERY":
                raise ConfigError(f"the condition {where!r} has a query in it; write one expression over the columns")
            if kind == "FUNCTION":
                name = node["function_name"].lower()
            elif kind == "COLUMN_REF" and _SQL_VALUES.fullmatch(found := node["column_names"][-1].lower()):
                name = "" if found in known else found
            if name in changing or _SQL_VALUES.fullmatch(name):
                message = f"the condition {where!r} has {name}, which has another value in another call"
                raise ConfigError(f"{message}; write the value itself, or choose at random with fraction and seed")
            if name in macros and name not in seen:
                seen.add(name)
                expressions.append(macros[name])
    return sources


def _compared(node: Mapping[str, Any], column: str) -> list[str]:
    """Return the texts that an expression compares with a column, or looks for in its lists."""
    if not _EQUALITY.fullmatch(str(node.get("function_name", node.get("type"))).lower()):
        return []
    columns, texts = [], []
    for part in (part for part in _nodes(node) if part is not node and "class" in part):
        if part["class"] == "COLUMN_REF":
            columns.append(part["column_names"][-1].lower())
        elif part["class"] != "CONSTANT":
            return []
        elif isinstance(text := part["literal"].get("text") if "literal" in part else part["value"]["value"], str):
            texts.append(text)  # `literal` since DuckDB 2, `value` before
    return texts if {*columns} == {column} else []


class _Paths:
    """The texts that a condition compares with `source`, and the paths that they name or that they may mean."""

    def __init__(self, texts: set[str]) -> None:
        self._unknown = texts
        self._meant: dict[str, str] = {}  # a text that is a path without its folder or extension → the path

    def search(self, table: Any) -> None:
        for path in filter(None, table["source"].to_pylist() if self._unknown else ()):
            self._unknown.discard(path)
            stem = os.path.splitext(path)[0]
            shorter = {stem, os.path.basename(path), os.path.basename(stem)} - {path}
            self._meant.update(dict.fromkeys(self._unknown & shorter, path))

    def refuse_incomplete(self, where: str) -> None:
        """Raise ConfigError if a text is no path but the end of one, or lacks an extension, so it selects nothing."""
        if meant := sorted(self._unknown & self._meant.keys()):
            path = self._meant[meant[0]]
            raise ConfigError(f"condition {where!r:.200}: no source is {meant[0]!r}; write the whole path, {path!r}")


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects of a syntax tree."""
    if isinstance(tree, dict):
        yield tree
    for each in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _nodes(each)


def to_parquet(
    url: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    only: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: OnShard = None,
) -> int:
    """Write the table of the samples of a dataset as one Parquet file; return its number of rows.

    The table has a row per sample, in order: split, shard, number (in the split), key, class (NULL unless the sample
    has exactly one), classes, width and height (of its image), bytes (of its parts), source (the path from which it was
    packed, see `Split.source`; NULL without receipts), and all columns that were added.

    >>> shardflow.columns.to_parquet("photos256", "photos256.parquet")

    Args:
        url: A dataset, a directory or a URL.
        to: Path or URL of a new `.parquet` file.
        only: Names of the columns to write; by default all.
        storage_options: Options of fsspec's file systems, for `url` and `to` if they are URLs.
        progress: Called after each shard.

    Raises:
        NotFoundError: The dataset is missing.
        ConfigError: An argument is wrong, or pyarrow is missing.
        DatasetExistsError: The file exists.
        StoreError: A place cannot be read or written.
    """
    parquet = import_pyarrow().parquet
    folder, name = split_name(strip_file_scheme(to))
    if not name.endswith(".parquet"):
        raise ConfigError(f"{name!r} is not the name of a .parquet file")
    dataset = open_dataset(url, storage_options=storage_options)
    known = [*TABLE_FIELDS, *dataset.manifest.columns]
    names = known if only is None else list(dict.fromkeys(only))
    if lacking := [each for each in names if each not in known]:
        hint = did_you_mean(lacking[0], known)
        raise ConfigError(f"{dataset.url} has no column {lacking[0]!r}{hint}; there are {', '.join(known)}")
    storage = open_storage(folder, storage_options, may_be_local=True, to_write=True)
    if storage.version(name) is not None:
        raise DatasetExistsError(f"{storage.url(name)} exists; remove it, or choose another name")
    with temporary_staging() as (staging, _):
        schema = _empty(next(iter(dataset.values())), names).schema
        with parquet.ParquetWriter(staging / name, schema) as writer:
            for split in dataset.values():
                for table in _grouped(sample_tables(split, dataset.classes, names, progress)):
                    writer.write_table(table)
        storage.put(name, staging / name, new=True)
    return dataset.manifest.samples


def sample_tables(
    split: Split,
    classes: Sequence[str] | None,
    names: Collection[str],
    progress: OnShard = None,
    *,
    is_condition: bool = False,
) -> Iterator[Any]:
    """Yield a table of the samples of each shard with these columns; for a condition, NaN becomes null."""
    import pyarrow as pa

    schema, first = _empty(split, names).schema, 0
    labels = None if classes is None else shard_labels(split, len(classes))
    for shard, entry in enumerate(split.shards):
        known: dict[str, Any] = {"split": [split.name] * entry.samples, "shard": [entry.name] * entry.samples}
        known["number"] = np.arange(first, first + entry.samples)
        if "source" in names:
            known["source"] = [None] * entry.samples
            with contextlib.nullcontext() if is_condition else contextlib.suppress(NotFoundError):
                known["source"] = _shown(split.shard_sources(shard))
        first += entry.samples
        if "key" in names:
            known["key"] = _shown(shard_keys(split, shard))
        if {"class", "classes"} & set(names):
            nothing = np.zeros(entry.samples, dtype=np.int64), np.empty(0, dtype=np.int64)
            counts, numbers = nothing if labels is None else next(labels)
            known |= _classes(counts, numbers, classes or ())
            if is_condition and "class" in names and (counts > 1).any():
                remedy = "write list_contains(classes, 'cat')"
                raise ConfigError(f"samples of {entry.name} have several classes, so `class` is not one; {remedy}")
        if {"width", "height", "bytes"} & set(names):
            known |= _of_index(split, shard)
        for name in split.columns.kinds:
            if name in names:
                values, present = split.columns.read(name, shard)
                if is_condition and values.dtype.kind == "f":
                    present = present & ~np.isnan(values).reshape(len(values), -1).any(axis=1)
                known[name] = to_arrow(split.columns.kinds[name], Values(values, present))
        yield pa.table({name: known[name] for name in names}, schema=schema)
        if progress is not None:
            progress(entry)


def _shown(names: Sequence[str]) -> list[str]:
    """Return names that may not be UTF-8 as text, with backslashes for such bytes."""
    return [name.encode(errors="backslashreplace").decode() for name in names]


def refuse_other_name(split: Split, number: int, key: str) -> None:
    """Refuse a key without its split if the sample's file has another number as its name, which may be meant."""
    with contextlib.suppress(NotFoundError):
        path = split.source(number)
        stem = os.path.splitext(os.path.basename(path))[0]
        if stem != key and re.fullmatch(r"[0-9]{9,}", stem):
            message = f"{key!r} is the key of {path!r}, and file names look like keys here"
            remedy = f"write '{split.name}:{key}' for the key that `pack` gave; `Split.sources()` has all files"
            raise ConfigError(f"{message}; {remedy}")


def _classes(counts: npt.NDArray[np.int64], labels: npt.NDArray[np.int64], classes: Sequence[str]) -> dict[str, Any]:
    """Return the class of each sample (null unless it has exactly one), and the list of its classes."""
    import pyarrow as pa

    named = pa.array(classes, pa.string()).take(pa.array(labels, mask=labels >= len(classes)))
    ends = np.cumsum(counts)
    one = named.take(pa.array(np.maximum(ends - 1, 0), mask=counts != 1))
    return {"class": one, "classes": pa.ListArray.from_arrays(np.append(0, ends).astype(np.int32), named)}


def _of_index(split: Split, shard: int) -> dict[str, Any]:
    """Return width and height of the first image of each sample of a shard, and the bytes of its parts."""
    import pyarrow as pa

    index, samples = split.reader.index(shard), split.shards[shard].samples
    members = index[index["part"] != KEY_PART]
    images = members[np.isin(members["part"], _IMAGES)]
    records, first = np.unique(images["record"], return_index=True)
    found: dict[str, Any] = {"bytes": np.bincount(members["record"], members["size"], samples).astype(np.int64)}
    for side in ("width", "height"):
        values = np.zeros(samples, dtype=np.int64)
        values[records] = images[side][first]
        found[side] = pa.array(values, mask=values == 0)
    return found


def _empty(split: Split, names: Collection[str]) -> Any:
    """Return a table with these columns and no rows."""
    import pyarrow as pa

    known: dict[str, Any] = {name: pa.array([], pa.int64()) for name in ("number", "width", "height", "bytes")}
    known |= {name: pa.array([], pa.string()) for name in ("split", "shard", "key", "class", "source")}
    known["classes"] = pa.array([], pa.list_(pa.string()))
    known |= {name: to_arrow(kind, no_values(kind, 0)) for name, kind in split.columns.kinds.items()}
    return pa.table({name: known[name] for name in names})


def _grouped(tables: Iterator[Any]) -> Iterator[Any]:
    """Yield concatenated tables of `_TABLE_BYTES` or more, except for the last one."""
    import pyarrow as pa

    group, size = [], 0
    for table in tables:
        group.append(table)
        size += table.nbytes
        if size >= _TABLE_BYTES:
            yield pa.concat_tables(group)
            group, size = [], 0
    if group:
        yield pa.concat_tables(group)
