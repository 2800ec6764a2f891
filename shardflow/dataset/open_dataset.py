"""An open dataset: `dataset["train"][17]` is a sample."""

from __future__ import annotations

import contextlib
import difflib
import json
import logging
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from shardflow._validation import check_integer, did_you_mean
from shardflow._wording import plural
from shardflow.errors import (
    BucketNotFoundError,
    ConfigError,
    FormatError,
    IntegrityError,
    ManifestError,
    NotFoundError,
    ShardflowError,
    StoreError,
)
from shardflow.formats import manifest, quarantine
from shardflow.formats.columns import COMPUTED_FIELDS, TABLE_FIELDS, Column
from shardflow.formats.labels import MAX_LABEL_BYTES
from shardflow.formats.quarantine import Quarantined
from shardflow.formats.receipt import Receipt
from shardflow.formats.shard import Shard
from shardflow.formats.shard_table import ShardTable
from shardflow.formats.virtual_roots import Root, name_of_other_tar
from shardflow.storage.cache import Cache, as_cache
from shardflow.storage.cached import CachedStorage
from shardflow.storage.interface import Storage
from shardflow.storage.resolve import open_storage
from shardflow.storage.virtual import virtual_storage

from .column_files import ColumnReader, Values
from .notebook_view import dataset_html
from .purged_tars import purged_tars
from .reader import ShardReader
from .receipts import find_receipt, read_receipt
from .unpacked import packing_command

logger = logging.getLogger(__name__)

_warned = set[str]()
_VALIDATION = ("val", "valid", "validation")
_LOOKED_AT = 20  # samples whose value shows whether a field has numbers as text


class Split:
    """A split: its samples by number, and its shards in the manifest's order. It can be pickled, and used after a fork.

    Attributes:
        name: The name, such as "train".
        shards: The entries of the shards in the manifest.
        shard_samples: int64 [shards], the number of samples of each shard.
        reader: Reads the shards.
        columns: Reads the columns.
    """

    def __init__(
        self,
        storage: Storage,
        name: str,
        shards: Sequence[Shard],
        cache: Cache | str | os.PathLike[str] | None = None,
        tables: manifest.PackedTables = manifest.PackedTables(),  # noqa: B008 - immutable
        columns: Mapping[str, Column] | None = None,
        roots: Mapping[str, Root] | None = None,
    ) -> None:
        self.name, self._roots = name, roots or {}
        self.shards = ShardTable.of(shards)
        self.shard_samples = self.shards.samples
        self.reader = ShardReader(storage, self.shards, cache, tables)
        self.columns = ColumnReader(storage, name, self.shards, columns or {}, self.reader.cache)
        self._ends: npt.NDArray[np.int64] = np.cumsum(self.shard_samples)
        self._storage = storage
        self._receipt: tuple[int, Receipt, dict[str, int]] | None = None  # of the last shard in `source`

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self.shards) else 0

    def __repr__(self) -> str:
        return f"<Split {self.name!r}: {plural(len(self), 'sample')} in {plural(len(self.shards), 'shard')}>"

    @overload
    def __getitem__(self, number: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, number: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, number: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        """Return sample `number`, 0 … len-1: {"__key__", "__url__", part: bytes}; negative numbers count from the end.

        A slice returns a list of samples.

        Raises:
            IndexError: The sample does not exist.
            ConfigError: `number` is not an integer.
            IntegrityError: The sample's bytes are damaged.
        """
        if isinstance(number, slice):
            return [self[each] for each in range(len(self))[number]]
        sample = self.reader.read(*self.locate(check_integer("the number of a sample", number)))
        parts = {part: bytes(payload) for part, payload in sample.parts.items()}
        return {**parts, "__key__": sample.key, "__url__": sample.url}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[number] for number in range(len(self)))

    def source(self, sample: int | str) -> str:
        """Return the input from which a sample was packed: its path below the source, or its row in the table.

        It comes from the shard's receipt, also in a virtual dataset of `subset`, `split` or `merge`. A sample of a tar
        that another tool wrote, in an index, has the name of the tar and its key there: "train/000005.tar/c000254".

        >>> path = shardflow.open("photos256")["train"].source(17)  # "train/sea/0123.jpg"

        Args:
            sample: Its number in the split, or its key, as in messages: "000000017". These differ if inputs were
                quarantined or samples left out.

        Raises:
            IndexError: The sample does not exist.
            NotFoundError: The receipt is missing, because the receipts were not copied.
            FormatError, IntegrityError: The receipt is damaged, or belongs to another tar.
            ConfigError: Several samples have the key.
        """
        if isinstance(sample, str):
            return self._source_of_key(sample)
        shard, record = self.locate(check_integer("the number of a sample", sample))
        if name_of_other_tar(self._roots, self.shards[shard].name) is None:
            made, _ = self._made_of(shard)
            if len(made.sources) == self.shards[shard].samples:
                return made.sources[record]
        return self.source_in_shard(shard, self.reader.key(shard, record))

    def source_in_shard(self, shard: int, key: str) -> str:
        """Return the `source` of the sample of a shard with this key; its tar is not read."""
        if (tar := name_of_other_tar(self._roots, self.shards[shard].name)) is not None:
            return f"{tar}/{key}"
        made, slots = self._made_of(shard)
        return made.sources[slots[key]]

    def sources(self) -> list[str]:
        """Return the `source` of every sample, in the order of the split, which differs from that of a packed table.

        >>> train = shardflow.open("photos256")["train"]
        >>> folds = table.set_index("path")["fold"].loc[train.sources()]
        """
        return [path for shard in range(len(self.shards)) for path in self.shard_sources(shard)]

    def shard_sources(self, shard: int) -> Sequence[str]:
        """Return the `source` of every sample of a shard, in order; see there for errors."""
        if (tar := name_of_other_tar(self._roots, self.shards[shard].name)) is not None:
            return [f"{tar}/{key}" for key in self.stored_keys(shard)]
        made, slots = self._made_of(shard)
        if len(made.sources) == self.shards[shard].samples:
            return made.sources
        return [made.sources[slots[key]] for key in self.stored_keys(shard)]

    def stored_keys(self, shard: int) -> list[str]:
        """Return the key of every sample of a shard, from its tar."""
        keys = [self.reader.key(shard, record) for record in range(self.shards[shard].samples)]
        self.reader.close(shard)
        return keys

    def _source_of_key(self, key: str) -> str:
        found = set()
        for shard in range(len(self.shards)):
            if (tar := name_of_other_tar(self._roots, self.shards[shard].name)) is not None:
                found |= {f"{tar}/{key}"} if key in self.stored_keys(shard) else set()
                continue
            made, slots = self._made_of(shard)
            found |= {made.sources[slots[key]]} if key in slots else set()
        if len(found) > 1:
            raise ConfigError(f"several samples have the key {key!r}; give the number of one")
        if not found:
            raise IndexError(f"no sample has the key {key!r}; give a key such as '000000017', or a number")
        return found.pop()

    def _made_of(self, shard: int) -> tuple[Receipt, dict[str, int]]:
        """Return the receipt of a shard, and key → place in its sources."""
        if self._receipt is None or self._receipt[0] != shard:
            entry = self.shards[shard]
            try:
                made = read_receipt(self._storage, entry.receipt_name, entry)
            except NotFoundError as error:
                reason = purged_tars(self._storage, [entry.name]).get(entry.name)
                raise NotFoundError(reason or str(error)) from error
            self._receipt = shard, made, {key: place for place, key in enumerate(made.keys())}
        return self._receipt[1:]

    def receipt(self, number: int) -> Receipt | None:
        """Return the receipt of a shard; None if it is missing or belongs to another tar."""
        entry = self.shards[number]
        return find_receipt(self._storage, entry.receipt_name, entry)

    def locate(self, number: int) -> tuple[int, int]:
        """Return the shard and the record of sample `number`; IndexError if it does not exist."""
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} does not exist; there are {len(self)}, numbered from 0")
        number %= len(self)
        shard = int(np.searchsorted(self._ends, number, side="right"))
        return shard, number - int(self._ends[shard] - self.shard_samples[shard])

    def column(self, name: str) -> Values:
        """Return the values of an added column for all samples, in order.

        >>> values, present = shardflow.open("photos256")["train"].column("score")

        Returns:
            `values`, numbers or str, [N], or [N, D] for lists; and `present`, bool [N], True if a sample has a value.

        Raises:
            ConfigError: The dataset lacks the column, or pyarrow is missing.
            IntegrityError: The column's bytes are damaged.
        """
        if name not in self.columns.kinds:
            hint, known = did_you_mean(name, self.columns.kinds), ", ".join(self.columns.kinds) or "none"
            message = f"split {self.name!r} has no column {name!r}{hint}; its columns are {known}"
            raise ConfigError(f"{message}{self.json_remedy(name)}")
        return self.columns.read_all(name)

    def json_remedy(self, name: str) -> str:
        """Return the end of a message: how to make a field of the samples' `.json` a column; "" without `.json`."""
        rows = None
        with contextlib.suppress(ShardflowError):
            rows = self.reader.rows(0) if len(self.shards) else None
        if rows is None or "json" not in rows.parts():
            return ""
        objects = self.json_objects()
        values = None if objects is None else [each[name] for each in objects.values() if name in each]
        if values == []:  # no sample that was looked at has the field
            return ""
        value = f"row[{name!r}]"
        if _is_number_as_text(next(filter(None, values or ()), None)):
            value = f"{value} and float({value})"  # an empty cell is null
        new = f"json_{name}" if name in {*COMPUTED_FIELDS, *TABLE_FIELDS, *rows.parts()} else name
        call = f"compute({str(self._storage)!r}, {new!r}, lambda rows: [{value} for row in rows], field='json')"
        return f"; if {name!r} is a field of the samples' part 'json', `shardflow.columns.{call}` makes it a column"

    def json_objects(self) -> dict[int, dict[str, Any]] | None:
        """Return record → object of the `.json` of the first shard's first samples; None if one is damaged."""
        with contextlib.suppress(ShardflowError, RecursionError, ValueError):
            rows = self.reader.rows(0) if len(self.shards) else None
            members = () if rows is None else rows.members
            places = [row[:4] for row in members if row[1] == b"json" and row[3] <= MAX_LABEL_BYTES][:_LOOKED_AT]
            found = {
                record: json.loads(self._storage.read_range(self.shards[0].name, offset, offset + size))
                for record, _, offset, size in places
            }
            return {record: each for record, each in found.items() if isinstance(each, dict)}
        return None

    def image_sizes(self) -> npt.NDArray[np.int64]:
        """Return width and height of each sample's image from the indexes: int64 [N, 2], 0 if unknown or missing."""
        found = [np.empty((0, 2), dtype=np.int64)]
        for shard in range(len(self.shards)):
            found.append(self.reader.image_sizes(shard))
            self.reader.close(shard)
        return np.concatenate(found)

    def first_sample(self, shards: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of the first sample of each of these shards, int64."""
        starts: npt.NDArray[np.int64] = self._ends[shards] - self.shard_samples[shards]
        return starts


def _is_number_as_text(value: object) -> bool:
    """Return whether a value is a number as text, as the cells of a CSV are."""
    with contextlib.suppress(ValueError):
        return isinstance(value, str) and bool(np.isfinite(float(value)))
    return False


class Dataset(Mapping[str, Split]):
    """A dataset: a mapping of split names to splits. `shardflow.open` makes one.

    Attributes:
        url: The path or URL.
        storage: The storage of its files.
        manifest: The manifest.
    """

    def __init__(
        self,
        storage: Storage,
        content: manifest.Manifest,
        cache: Cache | str | os.PathLike[str] | None = None,
    ) -> None:
        self.url = str(storage)
        self.storage = storage
        self.manifest = content
        self._splits, tables = dict[str, Split](), content.packed_tables
        for name, shards in content.splits.items():
            split = self._splits[name] = Split(storage, name, shards, cache, tables, content.columns, content.roots)
            cache = split.reader.cache or cache  # the splits share it
        self._state = self._manifest_state()

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class name → label; empty without labels."""
        return {name: number for number, name in enumerate(self.classes or ())}

    def __repr__(self) -> str:
        splits = ", ".join(f"{name} {len(split)}" for name, split in self._splits.items())
        return f"<shardflow.Dataset {self.url}: samples {splits}>"

    def _repr_html_(self) -> str:
        readers = {name: split.reader for name, split in self._splits.items()}
        return dataset_html(self.url, self.fingerprint, self.classes, readers)

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self._splits)

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shards of all splits, in order."""
        return tuple(shard for split in self._splits.values() for shard in split.shards)

    @property
    def classes(self) -> list[str] | None:
        """The class names, label 0 first; None without labels."""
        return None if self.manifest.classes is None else list(self.manifest.classes)

    @property
    def fingerprint(self) -> str:
        """The identity of the dataset, "sha256:…": equal datasets have equal fingerprints."""
        return self.manifest.fingerprint

    @property
    def recipe(self) -> Mapping[str, Any]:
        """The settings of packing."""
        return self.manifest.recipe

    def refuse_replaced(self) -> None:
        """Raise IntegrityError if another dataset has taken the place of this one on a disk since it was opened."""
        if (state := self._manifest_state()) in (None, self._state):
            return
        found = _read_manifest(self.storage, manifest.FILE_NAME).fingerprint
        if found != self.fingerprint and not self.has_version(self.fingerprint):
            message = f"{self.url} was replaced since it was opened: it is {found}, and was {self.fingerprint}"
            raise IntegrityError(f"{message}; open it again, or make another loader")
        self._state = state

    def _manifest_state(self) -> tuple[int, ...] | None:
        """Return what changes if the manifest on a disk is replaced; None if it is remote or missing."""
        if (path := self.storage.local_path(manifest.FILE_NAME)) is not None:
            with contextlib.suppress(OSError):
                status = os.stat(path)
                return status.st_ino, status.st_mtime_ns, status.st_size
        return None

    def has_version(self, fingerprint: str) -> bool:
        """Return whether `shardflow.open(url, version=fingerprint)` finds an older version."""
        try:
            return self.storage.version(manifest.kept_name(fingerprint)) is not None
        except ConfigError:
            return False

    def quarantine(self) -> list[Quarantined]:
        """Return the inputs that were not packed, each with path, stage and reason; [] if the quarantine is missing.

        Raises:
            FormatError: The quarantine is damaged.
        """
        if (record := self.read_quarantine()) is None:
            return []
        name, data = record
        try:
            return quarantine.from_bytes(data, inputs=self.manifest.inputs - self.manifest.samples)
        except FormatError as error:
            raise error.with_location(shard=self.storage.url(name)) from error

    def read_quarantine(self) -> tuple[str, bytes] | None:
        """Return name and content of this version's quarantine; None if it is missing."""
        names = [quarantine.version_name(self.fingerprint)]
        if not self.manifest.roots:
            names.append(quarantine.FILE_NAME)  # next to an in-place index, this file belongs to a pack
        for name in names:
            with contextlib.suppress(NotFoundError):  # a copy may lack it
                return name, self.storage.read(name, most_bytes=quarantine.MAX_BYTES)
        return None

    def __getitem__(self, split: str) -> Split:
        if split not in [*self._splits]:
            message = f"{self.url} has no split {split!r}; it has {', '.join(self._splits)}"
            if split == "test" and [*self._splits] == ["train"]:
                message += "; if they are the test set, load them with split='train', shuffle=False; `pack` shuffled "
                message += "them, and `sources()` has their names"
            validation = [each for each in self._splits if split in [*_VALIDATION] and each in _VALIDATION]
            if validation:
                message += f" (did you mean {validation[0]!r}?)"
            elif split == "val" and "train" in self._splits:
                url = self.url.rstrip("/")
                message += f"; `{shlex.join(['shardflow', 'split', url, f'{url}-split'])}` holds one out"
            elif split == "train":
                message += "; to train on these images or divide them, rename their folder, or the value in their table"
                message += ", to train, and pack again"
            else:
                message += did_you_mean(split, self._splits)
            raise ConfigError(message)
        return self._splits[split]

    def __iter__(self) -> Iterator[str]:
        return iter(self._splits)

    def __len__(self) -> int:
        return len(self._splits)

    def __contains__(self, split: object) -> bool:
        return split in self._splits


def open_dataset(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    cache: Cache | str | os.PathLike[str] | None = None,
    version: str | None = None,
) -> Dataset:
    """Open a dataset for reading; exported as `shardflow.open`.

    >>> dataset = shardflow.open("photos256")
    >>> dataset["train"][0]["jpg"][:2]
    b'\\xff\\xd8'

    Args:
        url: A directory, or any URL that fsspec serves: "s3://bucket/photos256".
        storage_options: Options of fsspec's file system (`endpoint_url`, `anon`, …), for a URL, or for the remote tars
            of a virtual dataset.
        cache: The cache of remote files: a `Cache`, or its directory; by default `shardflow` in the user's cache
            directory. Local shards are not cached.
        version: Fingerprint of the version to open; by default the newest.

    Raises:
        NotFoundError: The dataset or the version does not exist.
        ManifestError: The manifest is damaged.
        StoreError: The dataset cannot be reached.
        ConfigError: An argument is wrong.
    """
    storage = open_storage(url, storage_options, may_be_local=True)
    shared = as_cache(cache) if storage.local_path("") is None else None
    reading = storage if shared is None else CachedStorage(storage, shared)
    try:
        content = _read_manifest(reading, manifest.FILE_NAME)
    except BucketNotFoundError:
        raise
    except NotFoundError:
        root = storage.local_path("")
        place, _, file = str(storage).rpartition("/")
        is_named_as_file = file == manifest.FILE_NAME or file.endswith(".tar")
        if is_named_as_file if root is None else root.exists() and not root.is_dir():
            command, inputs = ("index", "tars") if file.endswith(".tar") else ("pack", "images")
            remedy = f"make a dataset of {inputs} with `shardflow {command}`"
            if file == manifest.FILE_NAME:
                remedy = f"name the dataset's folder, {place or '.'}"
            raise NotFoundError(f"{storage} is a file; {remedy}") from None
        if root is None or root.is_dir():
            reason = f"has no {manifest.FILE_NAME}: it is not a shardflow dataset, or packing was not finished"
            remedy = "check the path, run `shardflow pack` again to finish, or `shardflow index` on tars of other tools"
            if command := packing_command(storage):
                reason, remedy = "is not a dataset", command
            raise NotFoundError(f"{storage} {reason}; {remedy}") from None
        remedy = "`shardflow index` makes a dataset of tars" if root.suffix == ".tar" else _similar(root)
        raise NotFoundError(f"{storage} does not exist; {remedy or 'check the path'}") from None
    if version is not None and version != content.fingerprint:
        content = _read_version(reading, version)
    storage = virtual_storage(storage, url, content.roots, storage_options, must_exist=True)
    _warn_of_newer_versions(storage, content)
    return Dataset(storage, content, shared or cache)


def _warn_of_newer_versions(storage: Storage, content: manifest.Manifest) -> None:
    """Warn, once per process, of a virtual dataset over an earlier version of a dataset."""
    for name, root in content.roots.items():
        if not root.fingerprint:  # an index of other tools' tars
            continue
        kept = f"train/{name}/{manifest.kept_name(root.fingerprint)}"  # in the root, as its receipts are
        with contextlib.suppress(StoreError, ManifestError):
            if (key := f"{storage} {name}") not in _warned and storage.version(kept) is not None:
                _warned.add(key)
                old, new = (_read_manifest(storage, file) for file in (kept, f"train/{name}/{manifest.FILE_NAME}"))
                changed = "columns" if old.splits == new.splits else "samples"
                message = "%s has an earlier version of %s, whose %s have changed since; to have them, make this one "
                message += "again (`shardflow split --keep` leaves images in their splits)"
                logger.warning(message, storage, root.url, changed)


def _similar(path: Path) -> str:
    """Return the suggestion of a dataset with a similar name next to a missing path; "" if there is none."""
    with contextlib.suppress(OSError):
        others = [other.parent.name for other in path.parent.glob(f"*/{manifest.FILE_NAME}")]
        if names := difflib.get_close_matches(path.name, others, 1):
            return f"did you mean {path.parent / names[0]}?"
    return ""


def _read_version(storage: Storage, version: str) -> manifest.Manifest:
    name = manifest.kept_name(version)
    try:
        content = _read_manifest(storage, name)
    except NotFoundError:
        message = f"{storage} is not version {version} and has no {name}; open the original dataset, because a copy by"
        purged = "`remove --purge` deletes all earlier ones"
        raise NotFoundError(f"{message} `shardflow sync` has only one version; {purged}") from None
    if content.fingerprint != version:
        raise ManifestError(f"is version {content.fingerprint}; restore it").with_location(shard=storage.url(name))
    return content


def _read_manifest(storage: Storage, name: str) -> manifest.Manifest:
    try:
        return manifest.from_bytes(storage.read(name))
    except ManifestError as error:
        raise error.with_location(shard=storage.url(name)) from error
