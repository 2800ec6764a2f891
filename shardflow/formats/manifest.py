"""The manifest: `shardflow.json`, the file that makes a directory a dataset.

It is written last and create-only, so a dataset with a manifest is complete. It is JSON with sorted keys, so equal
datasets have equal manifests. Every value is checked when it is read: names become paths, which must not lead outside
the dataset.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardflow.errors import ConfigError, ManifestError

from .annotations import Annotations
from .columns import Column, check_columns, check_stems
from .json_object import JsonObject, by_name, entries, entry, nested, unique_names
from .shard import MAX_BYTES, SHA256, Shard, is_count, is_name
from .shard_layout import Sharding
from .shard_table import ShardTable, cut_tables
from .statistics import Statistics
from .virtual_roots import Root, split_shard_name

FILE_NAME = "shardflow.json"
VERSION = 1
SPLITS = ("train", "val", "valid", "validation", "test")
"""Names of folders that are splits, not classes."""

_MAX_JSON_BYTES = 1 << 25
"""The most bytes that are parsed as JSON, which takes up to twenty times as much memory. A million classes take 30 MB.
Shards are not counted: if they are in the form that shardflow writes, they are not parsed as JSON."""

_TUPLE = entry(
    write=lambda value: None if value is None else list(value),
    read=lambda value: None if value is None else tuple(value),
)


@dataclass(frozen=True, slots=True)
class PackedTables:
    """The shards whose seek tables `pack` made. Other tables are not used.

    Attributes:
        own: Whether these are all shards, of a dataset that owns its shards.
        roots: The roots whose shards these are.
    """

    own: bool = False
    roots: frozenset[str] = frozenset()

    def __contains__(self, shard_name: str) -> bool:
        return self.own or (bool(self.roots) and split_shard_name(shard_name)[0] in self.roots)


@dataclass(frozen=True, kw_only=True)
class Manifest(JsonObject):
    """The content of a dataset. The fields are the schema of `shardflow.json`.

    Args:
        splits: Name → shards in order; they become a `ShardTable`.
        classes: Class names, label 0 first; None if the samples have no labels.
        recipe: How the images were made, as `Recipe.describe` returns it.
        tools: Versions of the software that made them. Not part of the fingerprint.
        inputs: Number of inputs: packed, quarantined and skipped.
        skipped: Number of inputs that are images of unsupported kinds.
        mean, std: One number in 0 … 1 per channel (RGB) of the packed images; None if not measured.
        statistics: Split → counts over its images; None if not counted.
        sharding: How the inputs were cut into shards; None if unknown.
        annotations: The parts that are masks, and the places of boxes and keypoints; empty if nothing is declared.
        roots: Name → a place of tars that the dataset does not own. Not part of the fingerprint. If a dataset has
            roots, all of its shards are there.
        table_roots: Names of the roots whose tars have seek tables made by `pack`.
        columns: Name → a column that was added to the dataset.
        past_columns: The stems of columns that only earlier versions have; their files are kept.
        removals: Digests of the removals that led to this version's shards, oldest first: see `removal_name`.

    Raises:
        ManifestError: A value is out of its range.
    """

    splits: Mapping[str, Sequence[Shard]] = field(
        metadata=entry(
            write=dict,  # `_entries` writes the shards
            read=lambda splits: {split: _read_shards(shards) for split, shards in splits.items()},
        )
    )
    classes: tuple[str, ...] | None = field(default=None, metadata=_TUPLE)
    recipe: Mapping[str, Any] = field(default_factory=dict, metadata=entry(write=dict, read=dict))
    tools: Mapping[str, str] = field(default_factory=dict, metadata=entry(write=dict, read=dict, fingerprinted=False))
    inputs: int = 0
    skipped: int = field(default=0, metadata=entry(optional=True))
    mean: tuple[float, ...] | None = field(default=None, metadata=_TUPLE)
    std: tuple[float, ...] | None = field(default=None, metadata=_TUPLE)
    statistics: Mapping[str, Statistics] | None = field(default=None, metadata=by_name(Statistics, optional=True))
    sharding: Sharding | None = field(default=None, metadata=nested(Sharding, name="layout", optional=True))
    annotations: Annotations = field(default_factory=Annotations, metadata=nested(Annotations, optional=True))
    roots: Mapping[str, Root] = field(
        default_factory=dict, metadata=by_name(Root, name="bases", fingerprinted=False, optional=True)
    )
    table_roots: tuple[str, ...] = field(
        default=(), metadata=entry(name="seek_tables", write=list, read=tuple, optional=True)
    )
    columns: Mapping[str, Column] = field(default_factory=dict, metadata=by_name(Column, optional=True))
    past_columns: tuple[str, ...] = field(default=(), metadata=entry(write=list, read=tuple, optional=True))
    removals: tuple[str, ...] = field(default=(), metadata=entry(write=list, read=tuple, optional=True))

    def __post_init__(self) -> None:
        if not self.splits:
            raise ManifestError("it has no split; restore the manifest")
        for split in self.splits:
            if not is_name(split) or "/" in split:
                raise ManifestError(f"split name {split!r} is not made of A-Z a-z 0-9 . _ -")
        tables = self._tables
        object.__setattr__(self, "splits", tables)
        names = [name for table in tables.values() for name in table.names]
        if len(set(names)) != len(names):
            raise ManifestError("a shard is named twice")
        for name, count in (("inputs", self.inputs), ("skipped", self.skipped)):
            if not is_count(count, 0, MAX_BYTES):
                raise ManifestError(f"{name} must be an integer, 0 or more, found {count!r}")
        if not all(isinstance(text, str) for text in (*(self.classes or ()), *self.tools.values())):
            raise ManifestError("classes and the versions of tools must be strings")
        try:
            written = [self.classes, self.recipe, self.tools, self.annotations.to_json(), *self.roots]
            json.dumps(written, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError as error:
            name = error.object[max(error.start - 20, 0) : error.end]
            raise ManifestError(f"it has a text that is not Unicode, at the end of {name!a}; rename it") from None
        if not all(_is_fraction(number) for number in (*(self.mean or ()), *(self.std or ()))):
            raise ManifestError(f"mean and std must be numbers from 0 to 1, found {self.mean!r} and {self.std!r}")
        if self.statistics is not None and self.statistics.keys() != self.splits.keys():
            raise ManifestError(f"statistics of {sorted(self.statistics)} in a dataset with {sorted(self.splits)}")
        if self.roots and not {split_shard_name(name)[0] for name in names} <= self.roots.keys():
            raise ManifestError(f"a shard is in none of the roots {sorted(self.roots)}")
        if not set(self.table_roots) <= self.roots.keys():
            raise ManifestError(f"seek_tables must name roots of {sorted(self.roots)}, found {list(self.table_roots)}")
        if self.sharding is not None and self.sharding.jobs.keys() != self.splits.keys():  # they name the receipts
            raise ManifestError(f"layout of {sorted(self.sharding.jobs)} in a dataset with {sorted(self.splits)}")
        check_columns(self.columns, self.splits)
        check_stems(self.past_columns)
        if not all(isinstance(digest, str) and SHA256.fullmatch(digest) for digest in self.removals):
            raise ManifestError("removals are named by a SHA-256 each; restore the manifest")

    @property
    def samples(self) -> int:
        """Number of samples of all splits."""
        return sum(int(table.samples.sum()) for table in self._tables.values())

    @property
    def quarantined(self) -> int:
        """Number of inputs that could not be read, decoded or encoded."""
        return self.inputs - self.samples - self.skipped

    @property
    def packed_tables(self) -> PackedTables:
        """The shards whose seek tables are used: those packed by a recipe that makes tables."""
        if self.roots:
            return PackedTables(roots=frozenset(self.table_roots))
        return PackedTables(own=self.recipe.get("seek_tables", "none") != "none")

    @property
    def receipt_names(self) -> list[str]:
        """The names of the receipts, which may not all exist; a virtual dataset has none."""
        if self.roots:
            return []
        if self.sharding is None:
            return [shard.receipt_name for shards in self.splits.values() for shard in shards]
        # A job that could pack no input has a receipt but no shard.
        return [f"{job}.json" for job in self.sharding.names()]

    @property
    def removal_names(self) -> list[str]:
        """The names of the records of removals, which may not all exist."""
        return [removal_name(digest) for digest in self.removals]

    def file_names(self) -> set[str]:
        """Return the names of all files of this version except manifest and quarantine; not all of them may exist."""
        names = {*self.receipt_names, *self.removal_names}
        for split, shards in self.splits.items():
            for number, shard in enumerate(shards):
                files = (column.file(split, number, shard) for column in self.columns.values())
                names |= {shard.name, shard.index_name, *(file.name for file in files if file is not None)}
        return names

    @functools.cached_property
    def fingerprint(self) -> str:
        """The dataset's identity: "sha256:" and the digest of all entries except tools and roots."""
        return _fingerprint(self._entries(with_shards=False), self._tables)

    def to_bytes(self) -> bytes:
        """Return the contents of `shardflow.json`."""
        return _written({**self._entries(with_shards=True), "fingerprint": self.fingerprint})

    def _entries(self, *, with_shards: bool) -> dict[str, Any]:
        """Return the entries of `shardflow.json` except the fingerprint; without shards, their lists are empty."""
        splits = {
            split: [shard.to_json() for shard in shards] if with_shards else [] for split, shards in self.splits.items()
        }
        return {"version": VERSION, **self.to_json(), "splits": splits}

    @property
    def _tables(self) -> dict[str, ShardTable]:
        return {split: ShardTable.of(shards) for split, shards in self.splits.items()}


def removal_name(digest: str) -> str:
    """Return the name of the record of a removal. A record whose digest no version has is of an unfinished removal."""
    return f"removals/{digest}.json"


def from_bytes(data: bytes) -> Manifest:
    """Read `shardflow.json`.

    Raises:
        ManifestError: It is not a manifest, its fingerprint differs, or a newer version of shardflow wrote it.
    """
    try:
        content, tables = _parse(data)
        version = content["version"]
        if type(version) is int and version > VERSION:
            raise ManifestError(
                f"manifest has version {version}, this shardflow reads {VERSION}; update shardflow to read it"
            )
        claimed = content.pop("fingerprint")
        found = _fingerprint(content, tables)
        if claimed != found:
            raise ManifestError(
                f"manifest states the fingerprint {claimed}, but its content has {found}; it was edited or damaged; "
                "restore it"
            )
        del content["version"]
        manifest = Manifest.from_json(content if tables is None else {**content, "splits": tables})
        # Refuse content that was not read, in which an edit could hide.
        if _canonical({"version": version, **content}) != _canonical(manifest._entries(with_shards=tables is None)):
            raise ManifestError("manifest has values in a form that shardflow never writes; it was edited; restore it")
        vars(manifest)["fingerprint"] = found  # saves 0.4 s with 500,000 shards
        return manifest
    except ManifestError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ManifestError(f"not a shardflow manifest: {type(error).__name__}: {error}") from error


def _read_shards(shards: Sequence[Any]) -> Sequence[Shard]:
    return shards if isinstance(shards, ShardTable) else tuple(map(Shard.from_json, shards))


def _parse(data: bytes) -> tuple[dict[str, Any], dict[str, ShardTable] | None]:
    """Return the JSON of a manifest; if `to_bytes` wrote it, without its shards, and these as tables."""
    if (cut := cut_tables(data)) is not None and len(cut[0]) <= _MAX_JSON_BYTES:
        with contextlib.suppress(ValueError, RecursionError):
            content = json.loads(cut[0])
            if _written(content) == cut[0] and content["splits"] == {split: [] for split in cut[1]}:
                return content, cut[1]
    if len(data) > _MAX_JSON_BYTES:
        raise ManifestError(f"not in the form in which shardflow writes {len(data):,} bytes; restore it")
    return json.loads(data, object_pairs_hook=unique_names), None


def _written(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, indent=1).encode() + b"\n"


def kept_name(fingerprint: str) -> str:
    """Return where the manifest of a version is kept after a later version replaced it."""
    kind, _, digest = fingerprint.partition(":")
    if kind != "sha256" or not SHA256.fullmatch(digest):
        raise ConfigError(
            f"version {fingerprint!r} is not a fingerprint; expected sha256: followed by 64 hexadecimal digits"
        )
    return f"manifests/{digest}.json"


_NOT_FINGERPRINTED = {name for name, (_, declared) in entries(Manifest).items() if not declared.fingerprinted}


def _fingerprint(content: Mapping[str, Any], tables: Mapping[str, ShardTable] | None) -> str:
    """Return the fingerprint of the entries of a manifest, with the shards of `tables` in place of theirs."""
    content = {name: value for name, value in content.items() if name not in _NOT_FINGERPRINTED}
    if tables is None:
        return "sha256:" + hashlib.sha256(_canonical(content)).hexdigest()
    digest = hashlib.sha256(_canonical({name: content[name] for name in content if name < "splits"})[:-1])
    before = b',"splits":{'
    for split, table in sorted(tables.items()):
        digest.update(before + json.dumps(split).encode() + b":")
        for piece in table.canonical():
            digest.update(piece)
        before = b","
    digest.update(b"}," + _canonical({name: content[name] for name in content if name > "splits"})[1:])
    return "sha256:" + digest.hexdigest()


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _is_fraction(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1
