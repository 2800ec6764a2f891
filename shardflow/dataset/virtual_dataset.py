"""Virtual datasets: writes the indexes and the manifest of a dataset whose tars lie elsewhere, in its roots.

Every file is created and none is replaced. The same call, made again after it was stopped, finds its own files and goes
on. The manifest is written last.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from shardflow._version import __version__
from shardflow.errors import ConfigError, DatasetExistsError
from shardflow.formats import manifest, quarantine, shard_index, ustar
from shardflow.formats.annotations import Annotations
from shardflow.formats.manifest import Manifest
from shardflow.formats.quarantine import Quarantined
from shardflow.formats.roots import Root, split_shard_name
from shardflow.formats.shard import Shard
from shardflow.formats.shard_index import Index
from shardflow.storage.resolve import open_storage
from shardflow.storage.storage import Storage
from shardflow.storage.urls import canonical_root
from shardflow.storage.virtual import relative_root, root_url
from shardflow.storage.write_lock import refuse_dataset

from .dataset import Dataset
from .shard_rows import read_index

_FILES_AT_A_TIME = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualReport:
    """A virtual dataset that was written.

    Attributes:
        fingerprint: Its fingerprint.
        samples, shards: Numbers of samples and of shards, by split.
    """

    fingerprint: str
    samples: Mapping[str, int]
    shards: Mapping[str, int]


class TarLocation(NamedTuple):
    """Where a tar lies, its size and its SHA-256."""

    root: str
    fingerprint: str | None  # of the dataset in the root
    path: str  # below the root
    bytes: int
    sha256: str


class SelectedRows(NamedTuple):
    """The records of a tar that belong to a split: rows of an index, their records numbered from 0."""

    split: str
    tar: TarLocation
    rows: Index


def root_urls(dataset: Dataset) -> dict[str, str]:
    """Return the places of a dataset's roots, by their names: absolute paths and URLs."""
    return {name: canonical_root(root_url(dataset.url, root)) for name, root in dataset.manifest.roots.items()}


def refuse_virtual(dataset: Dataset, lack: str, remedy: str, remedy_of_index: str) -> None:
    """Raise a ConfigError if a dataset is virtual. It lacks something that the datasets in its roots have.

    `remedy` stands before their places. An index of tars has none, and `remedy_of_index`.
    """
    if not (roots := dataset.manifest.roots):
        return
    places = [url for name, url in root_urls(dataset).items() if roots[name].fingerprint is not None]
    if not places:
        raise ConfigError(f"{dataset.url} was made by `shardflow index` from tars; {remedy_of_index}")
    raise ConfigError(f"{dataset.url} is a virtual dataset without {lack} of its own; {remedy} {', '.join(places)}")


def tar_locations(dataset: Dataset, split: str) -> list[TarLocation]:
    """Return where the tars of a split lie, in order; the tars of a virtual dataset lie in its roots."""
    urls = root_urls(dataset)
    roots = {name: (urls[name], root.fingerprint) for name, root in dataset.manifest.roots.items()}
    own = canonical_root(dataset.url), dataset.fingerprint
    locations = []
    for shard in dataset[split].shards:
        name, path = split_shard_name(shard.name) if roots else ("", shard.name)
        locations.append(TarLocation(*roots.get(name, own), path, shard.bytes, shard.sha256))
    return locations


def tar_bytes(dataset: Dataset, shards: Iterable[Shard]) -> int:
    """Return the size of the tars of shards; a tar that several shards of a virtual dataset share counts once."""
    return sum({dataset.storage.url(shard.name): shard.bytes for shard in shards}.values())


def used_bytes(dataset: Dataset, split: str) -> int:
    """Return how many bytes of its tars the samples of a split take, with the headers of the members.

    The tars of a virtual dataset can hold other samples as well, so its indexes are read.
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


def build_virtual_dataset(
    dst: str | os.PathLike[str],
    selected: Iterable[SelectedRows],
    *,
    splits: Sequence[str],
    classes: tuple[str, ...] | None,
    recipe: Mapping[str, Any],
    annotations: Annotations,
    made_by: str,
    bad: Sequence[Quarantined] = (),
    storage_options: Mapping[str, Any] | None = None,
) -> VirtualReport:
    """Write the indexes of a virtual dataset and, at the end, its manifest. A split without samples is left out.

    `bad` are the samples that were left out; `quarantine.jsonl` is not written if there are none.
    """
    storage = open_storage(dst, storage_options, to_write=True)
    names: dict[str, str] = {}  # root → its name in the manifest
    roots: dict[str, Root] = {}
    shards: dict[str, list[Shard]] = {split: [] for split in splits}

    def files() -> Iterator[tuple[str, bytes]]:
        for split, tar, rows in selected:
            if tar.root not in names:
                names[tar.root] = str(len(names))
                url = relative_root(storage, open_storage(tar.root))
                roots[names[tar.root]] = Root(url=url, fingerprint=tar.fingerprint)
            data = shard_index.to_bytes(rows)
            shard = Shard(
                name=f"{split}/{names[tar.root]}/{tar.path}",
                samples=int(rows["record"][-1]) + 1,
                bytes=tar.bytes,
                sha256=tar.sha256,
                index_sha256=hashlib.sha256(data).hexdigest(),
            )
            shards[split].append(shard)
            yield shard.index_name, data
        if bad:
            yield quarantine.FILE_NAME, quarantine.to_bytes(bad)

    refuse_dataset(storage)
    unwritten = files()
    batch = list(itertools.islice(unwritten, _FILES_AT_A_TIME))  # finds errors before a directory is made
    if not any(shards.values()):
        raise ConfigError("no sample is selected, so the dataset would be empty; select others")
    with storage.exclusive_writer(), ThreadPoolExecutor(_FILES_AT_A_TIME) as pool:
        while batch:
            list(pool.map(lambda file: _put(storage, *file), batch))
            batch = list(itertools.islice(unwritten, _FILES_AT_A_TIME))
        written = Manifest(
            splits={split: tuple(entries) for split, entries in shards.items() if entries},
            classes=classes,
            recipe=recipe,
            tools={"shardflow": __version__, "made by": made_by},
            inputs=sum(shard.samples for entries in shards.values() for shard in entries) + len(bad),
            annotations=annotations,
            roots=roots,
        )
        storage.put_new(manifest.FILE_NAME, written.to_bytes())
    return VirtualReport(
        fingerprint=written.fingerprint,
        samples={split: sum(shard.samples for shard in entries) for split, entries in written.splits.items()},
        shards={split: len(entries) for split, entries in written.splits.items()},
    )


def _put(storage: Storage, name: str, data: bytes) -> None:
    """Write a new file; one with the same content is left by an earlier attempt."""
    try:
        storage.put_new(name, data)
    except DatasetExistsError:
        if storage.read(name) != data:
            message = f"{storage.url(name)} exists and has other content, which is not overwritten"
            raise ConfigError(f"{message}; choose an empty or a new destination") from None
