"""A dataset opened for reading: `dataset["train"][17]` is a sample."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow.errors import BucketNotFoundError, ConfigError, ManifestError, NotFoundError
from shardflow.formats import manifest
from shardflow.storage.cache import Cache, as_cache
from shardflow.storage.local import LocalStorage
from shardflow.storage.resolve import open_storage
from shardflow.storage.storage import Storage
from shardflow.storage.urls import is_remote
from shardflow.storage.virtual import virtual_storage

from .reader import ShardReader


class Split:
    """One split: its samples by number, and its shards in the manifest's order.

    Can be sent to another process and used after a fork; each process maps the shards that it reads.

    Attributes:
        name: Its name, "train".
        shards: The entries of its shards in the manifest.
        shard_samples: int64 [shards], the number of samples of each shard.
        reader: Reads its shards.
    """

    def __init__(
        self, storage: Storage, name: str, shards: tuple[manifest.Shard, ...], cache: Cache | None = None
    ) -> None:
        self.name = name
        self.shards = shards
        self.shard_samples: npt.NDArray[np.int64] = np.array([shard.samples for shard in shards], dtype=np.int64)
        self.reader = ShardReader(storage, shards, cache)
        self._ends: npt.NDArray[np.int64] = np.cumsum(self.shard_samples)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self.shards) else 0

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return sample `number`, 0 … len-1: {"__key__", "__url__", part: bytes}; negative numbers count from the end.

        Raises:
            IndexError: There is no such sample.
            IntegrityError: Its bytes are damaged.
        """
        sample = self.reader.read(*self.locate(number))
        parts = {part: bytes(payload) for part, payload in sample.parts.items()}
        return {"__key__": sample.key, "__url__": sample.url, **parts}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[number] for number in range(len(self)))

    def locate(self, number: int) -> tuple[int, int]:
        """Return in which shard sample `number` lies, and which record it is there; numbers as for `[]`.

        Raises:
            IndexError: There is no such sample.
        """
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} of {len(self)}")
        number %= len(self)
        shard = int(np.searchsorted(self._ends, number, side="right"))
        return shard, number - int(self._ends[shard]) + self.shards[shard].samples

    def first_sample(self, shards: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number that the first sample of each of these shards has in the split."""
        starts: npt.NDArray[np.int64] = self._ends[shards] - self.shard_samples[shards]
        return starts


class Dataset(Mapping[str, Split]):
    """A whole dataset: a mapping of split names to splits.

    Attributes:
        url: What was opened.
        store: Where it lies.
        manifest: Everything the dataset says of itself.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        cache: Cache | str | os.PathLike[str] | None = None,
        version: str | None = None,
    ) -> None:
        storage = open_storage(url, storage_options if is_remote(url) else None)
        self.url = str(storage)
        try:
            data = storage.read(manifest.FILE_NAME)
        except BucketNotFoundError:
            raise
        except NotFoundError as error:
            if not isinstance(storage, LocalStorage) or storage.root.is_dir():
                reason = f"holds no {manifest.FILE_NAME}: it is no dataset, or packing it has not been finished"
            else:
                reason = "does not exist"
            raise NotFoundError(f"{storage} {reason}; pack one with `shardflow pack SRC {storage}`") from error
        try:
            self.manifest = manifest.from_bytes(data)
        except ManifestError as error:
            raise error.at(shard=storage.url(manifest.FILE_NAME)) from error
        if version is not None and version != self.manifest.fingerprint:
            self.manifest = _kept(storage, version)
        self.storage = storage = virtual_storage(storage, self.manifest.bases, storage_options)
        used = None if isinstance(storage, LocalStorage) else as_cache(cache)
        self._splits = {name: Split(storage, name, shards, used) for name, shards in self.manifest.splits.items()}

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self._splits)

    @property
    def shards(self) -> tuple[manifest.Shard, ...]:
        """The shards of all splits, in order."""
        return tuple(shard for split in self._splits.values() for shard in split.shards)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The class names, label 0 first; None without labels."""
        return self.manifest.classes

    @property
    def fingerprint(self) -> str:
        """The dataset's identity, "sha256:…"."""
        return self.manifest.fingerprint

    def has_version(self, fingerprint: str) -> bool:
        """Return whether an older version is kept here, to be opened with `version=`."""
        try:
            return self.storage.size(manifest.kept_name(fingerprint)) is not None
        except ConfigError:
            return False

    @property
    def recipe(self) -> Mapping[str, Any]:
        """How the images were made."""
        return self.manifest.recipe

    def __getitem__(self, split: str) -> Split:
        if split not in self._splits:
            raise ConfigError(f"{self.url} has no split {split!r}; it has {', '.join(self._splits)}")
        return self._splits[split]

    def __iter__(self) -> Iterator[str]:
        return iter(self._splits)

    def __len__(self) -> int:
        return len(self._splits)

    def __contains__(self, split: object) -> bool:
        return split in self._splits


def _kept(storage: Storage, version: str) -> manifest.Manifest:
    """Return the manifest of a version that a later one has replaced."""
    name = manifest.kept_name(version)
    try:
        kept = manifest.from_bytes(storage.read(name))
    except NotFoundError as error:
        message = f"{storage} is not {version} and has no {name}: it was never that, or is a copy"
        raise NotFoundError(f"{message}; `shardflow sync` copies the newest version alone") from error
    except ManifestError as error:
        raise error.at(shard=storage.url(name)) from error
    if kept.fingerprint != version:
        raise ManifestError(f"holds version {kept.fingerprint}; restore it").at(shard=storage.url(name))
    return kept


def open_dataset(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    cache: Cache | str | os.PathLike[str] | None = None,
    version: str | None = None,
) -> Dataset:
    """Open a dataset for reading; exported as `shardflow.open`.

    >>> dataset = shardflow.open("photos256")                      # doctest: +SKIP
    >>> len(dataset["train"]), dataset["train"][0]["jpg"][:2]      # doctest: +SKIP
    (1281167, b'\\xff\\xd8')

    Args:
        url: A directory, or any URL that fsspec serves: "s3://bucket/photos256".
        storage_options: What fsspec's file system takes (`endpoint_url`, `anon`, …); not for directories, unless the
            tars are behind a URL.
        cache: Where shards that are not on a local disk are kept: a `Cache`, or its directory; by default `shardflow`
            in the user's cache directory. Shards on a local disk are read where they lie.
        version: Fingerprint of the version to open, where the dataset was extended since; by default the newest.

    Raises:
        NotFoundError: There is no dataset, or no such version of it.
        ManifestError: Its manifest is damaged.
        StoreError: It is out of reach.
        ConfigError: An argument is wrong.
    """
    return Dataset(url, storage_options=storage_options, cache=cache, version=version)
