"""Virtual datasets: writes the indexes and the manifest of a dataset whose tars are elsewhere, in its roots.

Files are only created, never replaced. After an interruption, the same call finds its files and continues. The
manifest is written last.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from shardflow._version import __version__
from shardflow.errors import ConfigError, DatasetExistsError, ManifestError
from shardflow.formats import manifest, quarantine, shard_index, ustar
from shardflow.formats.annotations import Annotations
from shardflow.formats.columns import stems_of
from shardflow.formats.manifest import Manifest
from shardflow.formats.quarantine import Quarantined
from shardflow.formats.shard import Shard
from shardflow.formats.shard_index import Index
from shardflow.formats.virtual_roots import Root, split_shard_name
from shardflow.storage.interface import Storage
from shardflow.storage.resolve import open_storage
from shardflow.storage.urls import canonical_root, url_text
from shardflow.storage.virtual import relative_root, root_url

from .column_files import FilesOfColumn, Values
from .leftovers import remove_leftovers
from .open_dataset import Dataset
from .shard_rows import read_index
from .write_lock import clean_up, refuse_dataset

logger = logging.getLogger(__name__)

_FILES_AT_A_TIME = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualReport:
    """A virtual dataset that was written.

    Attributes:
        url: The place of its manifest; `==` ignores it.
        fingerprint: Its fingerprint.
        samples, shards: Numbers of samples and of shards, by split.
        classes: Numbers of samples of each class, by the splits that `split` and `split_folds` made; otherwise empty,
            and empty if samples have several classes.
        bad: The samples of an index that were left out, with the reasons, as in the quarantine. A damaged tar is one
            entry, for all samples after the damage.
        lost: An estimate of the samples after the damage in tars, from the bytes of those before it.
    """

    url: str = field(compare=False)
    fingerprint: str
    samples: Mapping[str, int]
    shards: Mapping[str, int]
    classes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    bad: tuple[Quarantined, ...] = ()
    lost: int = 0


class TarLocation(NamedTuple):
    """Where a tar is, its size and its SHA-256."""

    root: str
    fingerprint: str | None  # of the dataset in the root
    path: str  # below the root
    bytes: int
    sha256: str
    has_tables: bool = False  # whether packing its dataset made seek tables


class SelectedRows(NamedTuple):
    """The records of a tar that belong to a split: rows of an index, with records numbered from 0, and columns."""

    split: str
    tar: TarLocation
    rows: Index
    columns: Mapping[str, Values] = MappingProxyType({})


def root_urls(dataset: Dataset) -> dict[str, str]:
    """Return the absolute path or URL of each root of a dataset, by name."""
    return {name: canonical_root(root_url(dataset.url, root)) for name, root in dataset.manifest.roots.items()}


def refuse_virtual(dataset: Dataset, lack: str, remedy: str, remedy_of_index: str) -> None:
    """Raise a ConfigError if a dataset is virtual: it lacks something that the datasets in its roots have.

    The message has `remedy` and the places of those datasets; for an index of tars, it has `remedy_of_index`.
    """
    if not (roots := dataset.manifest.roots):
        return
    places = [url for name, url in root_urls(dataset).items() if roots[name].fingerprint is not None]
    if not places:
        raise ConfigError(f"{dataset.url} was made by `shardflow index` from tars; {remedy_of_index}")
    raise ConfigError(f"{dataset.url} is a virtual dataset, which has no {lack}; {remedy} {', '.join(places)}")


def tar_locations(dataset: Dataset, split: str) -> list[TarLocation]:
    """Return where the tars of a split are, in order; those of a virtual dataset are in its roots."""
    urls = root_urls(dataset)
    roots = {name: (urls[name], root.fingerprint) for name, root in dataset.manifest.roots.items()}
    own = canonical_root(dataset.url), dataset.fingerprint
    tables, locations = dataset.manifest.packed_tables, []
    for shard in dataset[split].shards:
        name, path = split_shard_name(shard.name) if roots else ("", shard.name)
        root, fingerprint = roots.get(name, own)
        locations.append(TarLocation(root, fingerprint, path, shard.bytes, shard.sha256, shard.name in tables))
    return locations


def tar_bytes(dataset: Dataset, shards: Iterable[Shard]) -> int:
    """Return the bytes of the tars of shards; a tar that several shards of a virtual dataset share counts once."""
    return sum({dataset.storage.url(shard.name): shard.bytes for shard in shards}.values())


def used_bytes(dataset: Dataset, split: str) -> int:
    """Return how many bytes of the tars the samples of a split take, with the headers of the members.

    The tars of a virtual dataset can hold other samples too, so its indexes are read.
    """
    shards = dataset[split].shards
    if not dataset.manifest.roots:
        return sum(shard.bytes for shard in shards)
    with ThreadPoolExecutor(_FILES_AT_A_TIME) as pool:
        indexes = pool.map(lambda shard: read_index(dataset.storage, shard), shards)
        return sum(
            int((ustar.BLOCK + index["size"].astype(np.int64) + -index["size"].astype(np.int64) % ustar.BLOCK).sum())
            for index in (each[each["part"] != shard_index.KEY_PART] for each in indexes)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The contents of a virtual dataset."""

    selected: Iterable[SelectedRows]  # the samples, read once
    splits: Sequence[str]  # names of the splits; one without samples is left out
    classes: tuple[str, ...] | None  # the class names, None without labels
    recipe: Mapping[str, Any]  # of all samples; empty if their recipes differ or are unknown
    annotations: Annotations  # of the samples
    made_by: str  # the command and the datasets that it read, for the manifest
    kinds: Mapping[str, str] = field(default_factory=dict)  # column → the type of its values
    bad: Sequence[Quarantined] = ()  # the samples that were left out; no quarantine is written if there are none


def build_virtual_dataset(
    dst: str | os.PathLike[str], contents: Contents, *, storage_options: Mapping[str, Any] | None = None
) -> VirtualReport:
    """Write the indexes of a virtual dataset and, last, its manifest; return the report."""
    storage = open_storage(dst, storage_options, to_write=True)
    refuse_dataset(storage)
    files = _Files(storage, contents)
    unwritten = files.indexes()
    batch = list(itertools.islice(unwritten, _FILES_AT_A_TIME))  # finds errors before a directory is made
    files.check()
    with storage.exclusive_writer(), ThreadPoolExecutor(_FILES_AT_A_TIME) as pool:
        remove_leftovers(storage.local_path(""))
        while batch:
            list(pool.map(lambda file: _put(storage, *file), batch))
            batch = list(itertools.islice(unwritten, _FILES_AT_A_TIME))
        written = files.manifest()
        # Not `quarantine.jsonl`: that allows a pack to replace tars next to it, and these are the user's.
        if contents.bad:
            _put(storage, quarantine.version_name(written.fingerprint), quarantine.to_bytes(contents.bad))
        storage.put(manifest.FILE_NAME, written.to_bytes(), new=True)
    if (path := files.equal_name()) is not None:
        message = "tars of several folders have the name %r, so their samples have equal sources; index all by one"
        logger.warning("%s pattern, such as 's3://bucket/{photos,art}/*.tar', to tell them apart", message % path)
    return _report(dst, written, contents)


def find_virtual_dataset(
    dst: str | os.PathLike[str], contents: Contents, *, storage_options: Mapping[str, Any] | None = None
) -> VirtualReport | None:
    """Return the report of a virtual dataset that `build_virtual_dataset` wrote at `dst`; None if there is none.

    Raises:
        DatasetExistsError: `dst` holds another dataset.
    """
    storage = open_storage(dst, storage_options, to_write=True)
    if storage.version(manifest.FILE_NAME) is None:
        return None
    files = _Files(storage, contents)
    for _ in files.indexes():
        pass
    files.check()
    expected = files.manifest()
    with contextlib.suppress(ManifestError):
        found = manifest.from_bytes(storage.read(manifest.FILE_NAME))
        if (found.fingerprint, found.roots) == (expected.fingerprint, expected.roots):
            clean_up(storage)
            return _report(dst, expected, contents)
    refuse_dataset(storage)
    return None  # it was removed meanwhile


class _Files:
    """The files of a virtual dataset; making the indexes collects its roots and shards."""

    def __init__(self, storage: Storage, contents: Contents) -> None:
        self._storage, self._contents = storage, contents
        self._roots: dict[str, Root] = {}
        self._without_tables: set[str] = set()  # roots with a tar whose seek tables, if any, may be wrong
        self._shards: dict[str, list[Shard]] = {split: [] for split in contents.splits}
        stems = stems_of(contents.kinds, ())
        self._columns = {name: FilesOfColumn(name, kind, stems[name]) for name, kind in contents.kinds.items()}

    def indexes(self) -> Iterator[tuple[str, bytes]]:
        """Yield the name and the bytes of each index and each column file."""
        names: dict[str, str] = {}  # root → its name in the manifest
        for split, tar, rows, columns in self._contents.selected:
            if tar.root not in names:
                names[tar.root] = str(len(names))
                url = relative_root(self._storage, open_storage(tar.root))
                self._roots[names[tar.root]] = Root(url=url, fingerprint=tar.fingerprint)
            if not tar.has_tables:
                self._without_tables.add(names[tar.root])
            data = shard_index.to_bytes(rows)
            shard = Shard(
                name=f"{split}/{names[tar.root]}/{tar.path}",
                samples=int(rows["record"][-1]) + 1,
                bytes=tar.bytes,
                sha256=tar.sha256,
                index_sha256=hashlib.sha256(data).hexdigest(),
            )
            self._shards[split].append(shard)
            yield shard.index_name, data
            for name, column in self._columns.items():
                yield column.add(split, shard, columns.get(name))

    def check(self) -> None:
        """Check that the dataset would not be empty.

        Raises:
            ConfigError: No index was yielded.
        """
        if not any(self._shards.values()):
            raise ConfigError("no sample is selected, so the dataset would be empty; select others")

    def equal_name(self) -> str | None:
        """Return the path of a tar of other tools that several roots have in a split; None without one."""
        tars = ((split, *split_shard_name(shard.name)) for split, entries in self._shards.items() for shard in entries)
        times = Counter((split, path) for split, root, path in tars if self._roots[root].fingerprint is None)
        return next((path for (_, path), number in times.items() if number > 1), None)

    def manifest(self) -> Manifest:
        """Return the manifest of the indexes that `indexes` has yielded."""
        contents = self._contents
        return Manifest(
            splits={split: tuple(entries) for split, entries in self._shards.items() if entries},
            classes=contents.classes,
            recipe=contents.recipe,
            tools={"shardflow": __version__, "made by": contents.made_by},
            inputs=sum(shard.samples for entries in self._shards.values() for shard in entries) + len(contents.bad),
            annotations=contents.annotations,
            roots=self._roots,
            table_roots=tuple(name for name in self._roots if name not in self._without_tables),
            columns={name: files.column() for name, files in self._columns.items()},
        )


def _report(dst: str | os.PathLike[str], written: Manifest, contents: Contents) -> VirtualReport:
    return VirtualReport(
        url=url_text(dst),
        bad=tuple(contents.bad),
        fingerprint=written.fingerprint,
        samples={split: sum(shard.samples for shard in entries) for split, entries in written.splits.items()},
        shards={split: len(entries) for split, entries in written.splits.items()},
    )


def _put(storage: Storage, name: str, data: bytes) -> None:
    """Write a new file; accept a file with the same content, which an earlier attempt left."""
    try:
        storage.put(name, data, new=True)
    except DatasetExistsError:
        if storage.read(name) != data:
            message = f"{storage.url(name)} exists and has other content, which is not overwritten"
            raise ConfigError(f"{message}; choose an empty or a new destination") from None
