"""The rows of a table: CSV and TSV with a header, JSON lines, Parquet.

In the text formats a cell that holds a JSON list or object is read as one, so that a CSV can have boxes or several
labels in a cell; every other cell stays text. Sources: RFC 4180; jsonlines.org; parquet.apache.org.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from shardflow.errors import ConfigError

Row: TypeAlias = "dict[str, Any]"

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
TEXT_TABLES = (".csv", ".tsv")


def rows(data: bytes, name: str) -> Iterator[Row]:
    """Yield the rows of a table, whose name says what it is, each as column → value.

    Raises:
        ConfigError: It is no such table, or Parquet cannot be read here.
    """
    kind = os.path.splitext(name)[1].lower()
    if kind not in TABLES:
        raise ConfigError(f"{name} is no table by its name; expected {', '.join(TABLES)}")
    if kind == ".parquet":
        return _parquet(data, name)
    text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="")
    return _json_lines(text, name) if kind in (".jsonl", ".ndjson") else _csv(text, name, kind)


def _csv(text: io.TextIOWrapper, name: str, kind: str) -> Iterator[Row]:
    reader = csv.DictReader(text, delimiter="\t" if kind == ".tsv" else ",", strict=True)
    try:
        for row in reader:
            if None in row or None in row.values():
                raise ConfigError(f"{name}, line {reader.line_num}: expected {len(reader.fieldnames or ())} columns")
            yield {column: _cell(value) for column, value in row.items()}
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}, line {reader.line_num + 1}: {error}; save it as UTF-8 with a header") from error


def _cell(text: str) -> Any:
    if text[:1] in ("[", "{"):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text)
    return text


def _json_lines(text: io.TextIOWrapper, name: str) -> Iterator[Row]:
    number = 0
    try:
        for number, line in enumerate(text, 1):
            row = json.loads(line) if line.strip() else {}
            if not isinstance(row, dict):
                raise ConfigError(f"{name}, line {number}: expected a JSON object, found {line[:40]!r}")
            if row:
                yield row
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{name}, line {number or 1}: not JSON: {error}") from error


def _parquet(data: bytes, name: str) -> Iterator[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(f"{name}: Parquet is read by pyarrow: pip install 'shardflow[parquet]'") from error
    try:
        for batch in pyarrow.parquet.ParquetFile(pyarrow.BufferReader(data)).iter_batches(4096):
            yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise ConfigError(f"{name} is no Parquet file that can be read: {error}") from error


def rest_of(row: Mapping[str, Any], used: frozenset[str]) -> str:
    """Return the columns of a row that are not used otherwise as a JSON object; nothing when there are none.

    What JSON does not know becomes text, and a number that is none becomes null.
    """
    rest = {column: None if value != value else value for column, value in row.items() if column not in used}
    return json.dumps(rest, ensure_ascii=False, default=str) if rest else ""
