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

from shardflow import manifest, shardindex
from shardflow.base import Base, tar_of
from shardflow.dataset import Dataset
from shardflow.errors import ConfigError, DatasetExistsError
from shardflow.manifest import Manifest, Shard
from shardflow.shardindex import Index
from shardflow.spool import spool_for
from shardflow.store import Store, is_remote, open_store
from shardflow.view import place, url_from

_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewReport:
    """What became of the making of a view: its fingerprint, and the samples and shards of each split."""

    fingerprint: str
    samples: Mapping[str, int]
    shards: Mapping[str, int]


class Tar(NamedTuple):
    """A tar where it lies: the root that it is below, the fingerprint of the dataset there, its path, size, SHA-256."""

    root: str
    fingerprint: str | None
    path: str
    bytes: int
    sha256: str


class Chosen(NamedTuple):
    """The records of a tar that a split gets: the rows of an index, whose records run from 0 on."""

    split: str
    tar: Tar
    rows: Index


def tars_of(dataset: Dataset, split: str) -> list[Tar]:
    """Return where the tars of a split lie, in order; those of a view are in its bases."""
    own = resolved(dataset.url)
    bases = dataset.manifest.bases
    roots = {name: (resolved(place(dataset.url, base)), base.fingerprint) for name, base in bases.items()}

    def tar(shard: Shard) -> Tar:
        base, path = tar_of(shard.name) if bases else ("", shard.name)
        root, fingerprint = roots[base] if bases else (own, dataset.fingerprint)
        return Tar(root, fingerprint, path, shard.bytes, shard.sha256)

    return [tar(shard) for shard in dataset[split].shards]


def selected(index: Index, records: npt.NDArray[np.bool_]) -> Index:
    """Return the rows of some records of an index, renumbered from 0; `records` says of each whether it is one."""
    rows: Index = index[records[index["record"]]].copy()
    rows["record"] = (np.cumsum(records) - 1)[rows["record"]]
    return rows


def make_view(
    dst: str | os.PathLike[str],
    chosen: Iterable[Chosen],
    *,
    splits: Sequence[str],
    classes: tuple[str, ...] | None,
    recipe: Mapping[str, Any],
    made_by: str,
    bad: Sequence[Mapping[str, str]] = (),
    storage_options: Mapping[str, Any] | None = None,
) -> ViewReport:
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

    store = open_store(dst, storage_options)
    names: dict[str, str] = {}  # of the bases, by their roots
    bases: dict[str, Base] = {}
    shards: dict[str, list[Shard]] = {split: [] for split in splits}

    def files() -> Iterator[tuple[str, bytes]]:
        for split, tar, rows in chosen:
            if tar.root not in names:
                names[tar.root] = str(len(names))
                url = url_from(store, open_store(tar.root))
                bases[names[tar.root]] = Base(url=url, fingerprint=tar.fingerprint)
            data = shardindex.to_bytes(rows)
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

    if store.size(manifest.FILE_NAME) is not None:
        raise DatasetExistsError(f"{store} already holds a dataset; choose another destination or remove it")
    written = files()
    some = list(itertools.islice(written, _AT_ONCE))  # before a directory is made for what cannot be
    if not any(shards.values()):
        raise ConfigError("not one sample is left, so there is nothing to make a dataset of; choose otherwise")
    with spool_for(store), ThreadPoolExecutor(_AT_ONCE) as pool:
        while some:
            list(pool.map(lambda file: _put(store, *file), some))
            some = list(itertools.islice(written, _AT_ONCE))
        made = Manifest(
            splits={split: tuple(lines) for split, lines in shards.items() if lines},
            classes=classes,
            recipe=recipe,
            tools={"shardflow": __version__, "made by": made_by},
            inputs=sum(shard.samples for lines in shards.values() for shard in lines) + len(bad),
            bases=bases,
        )
        store.put_new(manifest.FILE_NAME, made.to_bytes())
    return ViewReport(
        fingerprint=made.fingerprint,
        samples={split: sum(shard.samples for shard in lines) for split, lines in made.splits.items()},
        shards={split: len(lines) for split, lines in made.splits.items()},
    )


def _put(store: Store, name: str, data: bytes) -> None:
    """Write a file that is new, or was left by an attempt at the same view."""
    try:
        store.put_new(name, data)
    except DatasetExistsError:
        if store.read(name) != data:
            message = f"{store.url(name)} exists and is something else, which is not overwritten"
            raise ConfigError(f"{message}; choose an empty or a new destination") from None


def resolved(root: str) -> str:
    """Return the one name that a place has, whatever led there."""
    return root if is_remote(root) else os.path.realpath(root)
