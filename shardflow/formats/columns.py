"""Columns: values per sample, added to a dataset after packing, each in a Parquet file per shard.

The file of column NAME and shard SPLIT/000000.tar is SPLIT/000000.NAME.parquet: one column of that name with a row per
record, in order, null if a sample has no value (parquet.apache.org/docs/file-format). The manifest of each version with
the column seals the files by size and SHA-256. Files are never replaced: a column that reuses the name of an earlier
one has files named SPLIT/000000.NAME-2.parquet.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shardflow.errors import ManifestError

from .json_object import JsonObject, by_name, entry
from .shard import MAX_BYTES, Shard, is_count

COMPUTED_FIELDS = (
    "image", "flipped", "crop", "pixel_mask", "image_size", "label", "labels", "key", "valid", "random_key", "index",
    "source", "bin", "cu_seqlens", "positions",
)  # fmt: skip
"""The fields of a batch that are neither a part of the samples nor a column."""

TABLE_FIELDS = ("split", "shard", "number", "key", "class", "classes", "width", "height", "bytes", "source")
"""The facts in the table of samples besides columns, see `dataset.sample_table`."""

HAS = "has_"
"""Prefix of a column's name in the field that tells which samples have a value."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_STEM = re.compile(rf"{NAME.pattern}(-[1-9][0-9]{{0,8}})?")
TEXT = "string"
NUMBERS = ("bool", "int64", "float32", "float64")
MOST_IN_LIST = 1 << 20
MAX_FILE_BYTES = 1 << 32
"""The largest file of a column, which is read whole."""

_KIND = re.compile(rf"{TEXT}|({'|'.join(NUMBERS)})(?:\[([1-9][0-9]{{0,6}})\])?")
_DIGITS = re.compile(r"[0-9a-f]*")


def parse_kind(kind: str) -> tuple[str, int | None]:
    """Return the element type of a column, and the length of its lists, None without lists: "float32[768]".

    Raises:
        ManifestError: The kind is unknown.
    """
    if not (isinstance(kind, str) and (match := _KIND.fullmatch(kind))) or int(match[2] or 1) > MOST_IN_LIST:
        raise ManifestError(f"a column has values of type {kind!r}, so a newer version wrote it; update shardflow")
    return match[1] or TEXT, int(match[2]) if match[2] else None


class ColumnFile(NamedTuple):
    """The file of a column for one shard: its name below the dataset, and its content."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnFiles(JsonObject):
    """The files of a column for the first shards of a split, in order. Later shards have no values."""

    bytes: tuple[int, ...] = field(metadata=entry(write=list, read=tuple))  # the size of each file
    sha256: str  # the SHA-256 of each file, 64 hexadecimal digits, joined
    nulls: int  # number of samples without a value in these files

    def __post_init__(self) -> None:
        digits = isinstance(self.sha256, str) and _DIGITS.fullmatch(self.sha256)
        if not digits or len(self.sha256) != 64 * len(self.bytes):
            raise ManifestError("the files of a column must have a size and a SHA-256 each; restore the manifest")
        sizes_fit = all(is_count(number, 0, MAX_FILE_BYTES) for number in self.bytes)
        if not sizes_fit or not is_count(self.nulls, 0, MAX_BYTES):
            message = f"the sizes of a column's files must be integers up to {MAX_FILE_BYTES:,}"
            raise ManifestError(f"{message}; restore the manifest, or pack fewer samples per shard")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(JsonObject):
    """A column of a dataset.

    Raises:
        ManifestError: A value is out of its range.
    """

    kind: str  # the type of its values: "string", "bool", "int64", "float32", "float64", or a list, "float32[768]"
    stem: str  # the column's name, possibly with a number, in the names of its files
    splits: Mapping[str, ColumnFiles] = field(metadata=by_name(ColumnFiles))  # split → its files

    def __post_init__(self) -> None:
        parse_kind(self.kind)
        check_stems([self.stem])

    def file(self, split: str, number: int, shard: Shard) -> ColumnFile | None:
        """Return the file of a shard, given its number in the split; None if its samples have no values."""
        files = self.splits.get(split)
        if files is None or number >= len(files.bytes):
            return None
        digest = files.sha256[64 * number : 64 * number + 64]
        return ColumnFile(file_name(shard, self.stem), files.bytes[number], digest)

    def describe(self) -> str:
        """Return the type of its values, and the beginning of a digest of its files."""
        digest = hashlib.sha256("".join(files.sha256 for _, files in sorted(self.splits.items())).encode())
        return f"{self.kind}, files {digest.hexdigest()[:12]}"

    def missing(self, split: str, shard_samples: Sequence[int]) -> int:
        """Return the number of samples of a split without a value, given the samples of each shard."""
        files = self.splits.get(split)
        return sum(shard_samples) if files is None else files.nulls + sum(shard_samples[len(files.bytes) :])


def file_name(shard: Shard, stem: str) -> str:
    """Return the name of the file of a column for a shard."""
    return f"{shard.name.removesuffix('.tar')}.{stem}.parquet"


def check_stems(stems: Sequence[object]) -> None:
    """Check that each stem is the name of a column, possibly with a number; ManifestError if not."""
    for stem in stems:
        if not (isinstance(stem, str) and _STEM.fullmatch(stem)):
            raise ManifestError(f"the stem {stem!r} of a column's files is invalid; restore the manifest")


def stems_of(names: Iterable[str], taken: Sequence[str]) -> dict[str, str]:
    """Return the stems for the files of new columns, given those of other columns; case alone does not tell two apart.

    On some disks `score.parquet` and `Score.parquet` are one file.
    """
    stems: dict[str, str] = {}
    for name in names:
        before = sum(stem.partition("-")[0].lower() == name.lower() for stem in (*taken, *stems.values()))
        stems[name] = f"{name}-{before + 1}" if before else name
    return stems


def check_columns(columns: Mapping[str, Column], splits: Mapping[str, Sequence[Shard]]) -> None:
    """Check that these can be the columns of a dataset with these splits; ManifestError if not."""
    for name, column in columns.items():
        if not NAME.fullmatch(name):
            raise ManifestError(f"a column is named {name!r}; a name must consist of A-Z a-z 0-9 _")
        for split, files in column.splits.items():
            if split not in splits or len(splits[split]) < len(files.bytes):
                raise ManifestError(f"column {name!r} has more files in split {split!r} than there are shards")
    if len({column.stem for column in columns.values()}) < len(columns):
        raise ManifestError("two columns have files of the same names; restore the manifest")
