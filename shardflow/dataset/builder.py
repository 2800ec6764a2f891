"""Made: a view on its way, from the records that were chosen to the manifest, which is written last.

Every file is written create-only, so nothing that is there is replaced; the same view, made once more where it was
stopped, finds its own files and goes on.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardflow.errors import ConfigError, DatasetExistsError
from shardflow.formats import manifest, shard_index
from shardflow.formats.manifest import Manifest, Shard
from shardflow.formats.roots import Root, split_shard_name
from shardflow.formats.shard_index import Index
from shardflow.storage.resolve import open_storage
from shardflow.storage.storage import Storage
from shardflow.storage.urls import canonical_root
from shardflow.storage.virtual import relative_root, root_url

from .dataset import Dataset

_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualReport:
    """What became of the making of a view: its fingerprint, and the samples and shards of each split."""

    fingerprint: str
    samples: Mapping[str, int]
    shards: Mapping[str, int]


class TarLocation(NamedTuple):
    """A tar where it lies: the root that it is below, the fingerprint of the dataset there, its path, size, SHA-256."""

    root: str
    fingerprint: str | None
    path: str
    bytes: int
    sha256: str


class SelectedRows(NamedTuple):
    """The records of a tar that a split gets: the rows of an index, whose records run from 0 on."""

    split: str
    tar: TarLocation
    rows: Index


def tar_locations(dataset: Dataset, split: str) -> list[TarLocation]:
    """Return where the tars of a split lie, in order; those of a view are in its bases."""
    own = canonical_root(dataset.url)
    bases = dataset.manifest.roots
    roots = {name: (canonical_root(root_url(dataset.url, base)), base.fingerprint) for name, base in bases.items()}

    def tar(shard: Shard) -> TarLocation:
        base, path = split_shard_name(shard.name) if bases else ("", shard.name)
        root, fingerprint = roots[base] if bases else (own, dataset.fingerprint)
        return TarLocation(root, fingerprint, path, shard.bytes, shard.sha256)

    return [tar(shard) for shard in dataset[split].shards]


def select_rows(index: Index, records: npt.NDArray[np.bool_]) -> Index:
    """Return the rows of some records of an index, renumbered from 0; `records` says of each whether it is one."""
    rows: Index = index[records[index["record"]]].copy()
    rows["record"] = (np.cumsum(records) - 1)[rows["record"]]
    return rows


def build_virtual_dataset(
    dst: str | os.PathLike[str],
    chosen: Iterable[SelectedRows],
    *,
    splits: Sequence[str],
    classes: tuple[str, ...] | None,
    recipe: Mapping[str, Any],
    made_by: str,
    bad: Sequence[Mapping[str, str]] = (),
    storage_options: Mapping[str, Any] | None = None,
) -> VirtualReport:
    """Write the indexes and, at the end, the manifest of a view.

    Args:
        dst: A directory or URL without a dataset.
        chosen: Its shards in order, tar by tar.
        splits: Their names in order; those that get no samples are left out.
        classes, recipe: For the manifest.
        made_by: How it was made, for people to read.
        bad: What `quarantine.jsonl` is to say, a line each; there is no such file where nothing is bad.
        storage_options: For `dst`, where it is a URL.

    Raises:
        DatasetExistsError: There is a dataset.
        ConfigError: The view is empty, or cannot lead to its tars from there, or another file is in the way.
        StoreError: It cannot be written.
    """
    from shardflow import __version__  # here, because shardflow imports this module while it is being imported

    storage = open_storage(dst, storage_options)
    names: dict[str, str] = {}  # of the bases, by their roots
    bases: dict[str, Root] = {}
    shards: dict[str, list[Shard]] = {split: [] for split in splits}

    def files() -> Iterator[tuple[str, bytes]]:
        for split, tar, rows in chosen:
            if tar.root not in names:
                names[tar.root] = str(len(names))
                url = relative_root(storage, open_storage(tar.root))
                bases[names[tar.root]] = Root(url=url, fingerprint=tar.fingerprint)
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
            yield manifest.QUARANTINE_NAME, "".join(json.dumps(entry, sort_keys=True) + "\n" for entry in bad).encode()

    if storage.size(manifest.FILE_NAME) is not None:
        raise DatasetExistsError(f"{storage} already holds a dataset; choose another destination or remove it")
    written = files()
    some = list(itertools.islice(written, _AT_ONCE))  # before a directory is made for what cannot be
    if not any(shards.values()):
        raise ConfigError("not one sample is left, so there is nothing to make a dataset of; choose otherwise")
    with storage.exclusive_writer(), ThreadPoolExecutor(_AT_ONCE) as pool:
        while some:
            list(pool.map(lambda file: _put(storage, *file), some))
            some = list(itertools.islice(written, _AT_ONCE))
        made = Manifest(
            splits={split: tuple(lines) for split, lines in shards.items() if lines},
            classes=classes,
            recipe=recipe,
            tools={"shardflow": __version__, "made by": made_by},
            inputs=sum(shard.samples for lines in shards.values() for shard in lines) + len(bad),
            roots=bases,
        )
        storage.put_new(manifest.FILE_NAME, made.to_bytes())
    return VirtualReport(
        fingerprint=made.fingerprint,
        samples={split: sum(shard.samples for shard in lines) for split, lines in made.splits.items()},
        shards={split: len(lines) for split, lines in made.splits.items()},
    )


def _put(storage: Storage, name: str, data: bytes) -> None:
    """Write a file that is new, or was left by an attempt at the same view."""
    try:
        storage.put_new(name, data)
    except DatasetExistsError:
        if storage.read(name) != data:
            message = f"{storage.url(name)} exists and is something else, which is not overwritten"
            raise ConfigError(f"{message}; choose an empty or a new destination") from None
