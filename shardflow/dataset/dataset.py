"""A dataset opened for reading: `dataset["train"][17]` is a sample."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow.errors import BucketNotFoundError, ConfigError, ManifestError, NotFoundError
from shardflow.formats import manifest
from shardflow.formats.shard_index import Index
from shardflow.storage.cache import LIMIT, STALL_TIMEOUT_S, Cache, FetchResult
from shardflow.storage.resolve import open_storage
from shardflow.storage.storage import Storage
from shardflow.storage.urls import remote_options
from shardflow.storage.virtual import virtual_storage

from .mapped_shard import MappedShard
from .partial_shard import PartialSample, PartialShard
from .shard_files import are_local, shard_files

MAPPED_SHARDS = 256
"""Shards a process keeps mapped; more than the plan needs at a time, and well below the usual limit of open files."""

_LOOK_S = 0.01


class Split:
    """One split: its shards in the manifest's order, and its samples by number.

    Can be sent to another process and used after a fork; each process maps the shards it reads for itself.
    """

    def __init__(
        self, storage: Storage, name: str, shards: tuple[manifest.Shard, ...], cache: Cache | None = None
    ) -> None:
        self.name = name
        self.shards = shards
        self.shard_samples: npt.NDArray[np.int64] = np.array([shard.samples for shard in shards], dtype=np.int64)
        self._ends: npt.NDArray[np.int64] = np.cumsum(self.shard_samples)
        self._files = shard_files(storage, cache)
        self._mapped: OrderedDict[int, MappedShard] = OrderedDict()
        self._arriving: dict[int, PartialShard] = {}

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self.shards) else 0

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return sample `number`, 0 … len-1: {"__key__", "__url__", part: bytes}; negative numbers count from the end.

        Raises:
            IndexError: There is no such sample.
            IntegrityError: Its bytes are damaged.
        """
        shard, record = self.locate(number)
        mapped = self.shard(shard)
        parts = {part: bytes(payload) for part, payload in mapped.sample(record, check=True).items()}
        return {"__key__": mapped.key(record), "__url__": mapped.url, **parts}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[number] for number in range(len(self)))

    def shard(self, number: int, *, announce: bool = False) -> MappedShard:
        """Return a shard, mapped; the least recently used one is let go when too many are.

        `announce` says that all of it will be read, which the kernel is told when the shard is mapped.
        """
        if number in self._mapped:
            self._mapped.move_to_end(number)
        else:
            self._mapped[number] = MappedShard(self._files, self.shards[number])
            if announce:
                self._mapped[number].announce()
            if len(self._mapped) > MAPPED_SHARDS:
                self._mapped.popitem(last=False)
        return self._mapped[number]

    def arrived(self, number: int, record: int) -> PartialSample | None:
        """Return a sample of a shard that somebody is fetching, as soon as its own bytes are there.

        None when the shard is at hand, or nobody fetches it: `shard` has it, or has to fetch it, then.

        Raises:
            StoreError: The index is out of reach.
        """
        deadline, alone = time.monotonic() + STALL_TIMEOUT_S, 0
        while number not in self._mapped and not self.at_hand(number) and time.monotonic() < deadline:
            file = self._files.arriving(self.shards[number])
            if file is None:
                alone += 1
                if alone == 3:  # who looks ahead may be about to begin
                    return None
            else:
                with file:
                    if number not in self._arriving:
                        self._arriving[number] = PartialShard(self._files, self.shards[number])
                    if (sample := self._arriving[number].sample(file, record)) is not None:
                        return sample
            time.sleep(_LOOK_S)
        self._arriving.pop(number, None)
        return None

    def soonest(self, number: int, record: int) -> MappedShard | PartialSample:
        """Return what has a record soonest: its shard, or what has arrived of it; for who will read all of the shard.

        Raises:
            StoreError: It is missing or out of reach.
            IntegrityError: It is not the one packed.
        """
        return self.arrived(number, record) or self.shard(number, announce=True)

    def index(self, number: int) -> Index:
        """Return the index of a shard.

        Raises:
            StoreError: It is missing or out of reach.
            IntegrityError: It is not the one packed.
        """
        return self._files.index(self.shards[number])

    def url(self, number: int) -> str:
        """Return how messages name a shard."""
        return self._files.url(self.shards[number])

    def let_go(self, number: int) -> None:
        """Unmap a shard that will not be needed soon; what is in use of it stays as long as it is used."""
        self._mapped.pop(number, None)
        self._arriving.pop(number, None)

    @property
    def cache(self) -> Cache | None:
        """What the shards are fetched into; None when they are read where they lie."""
        return self._files.cache

    def fetch(self, number: int, *, stall_timeout_s: float = 0) -> FetchResult:
        """Have a shard in the cache. Any thread may do this.

        Others who are at it are waited for until their file has not grown for `stall_timeout_s`.

        Raises:
            StoreError: It is missing or out of reach.
            IntegrityError: It is not the one packed.
        """
        return self._files.fetch(self.shards[number], stall_timeout_s=stall_timeout_s)

    def at_hand(self, number: int) -> bool:
        """Return whether a shard can be mapped now without reaching for another machine."""
        return self._files.has(self.shards[number])

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

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": OrderedDict(), "_arriving": {}}


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
        cache_dir: str | os.PathLike[str] | None = None,
        cache_limit: int | str = LIMIT,
        version: str | None = None,
    ) -> None:
        storage = open_storage(url, remote_options(url, storage_options))
        self.url = str(storage)
        try:
            data = storage.read(manifest.FILE_NAME)
        except BucketNotFoundError:
            raise
        except NotFoundError as error:
            root = storage.local_path("")
            if root is None or root.is_dir():
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
        self.storage = storage = virtual_storage(storage, self.manifest.roots, storage_options)
        shards = [shard for shards in self.manifest.splits.values() for shard in shards]
        cache = None if are_local(storage, shards) else Cache(cache_dir, cache_limit)
        self._splits = {name: Split(storage, name, shards, cache) for name, shards in self.manifest.splits.items()}

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
    cache_dir: str | os.PathLike[str] | None = None,
    cache_limit: int | str = LIMIT,
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
        cache_dir: Where shards that are not on a local disk are kept; by default `shardflow` in the user's cache
            directory. Directories are read where they lie.
        cache_limit: The most bytes the cache may hold, as a number or as in "500GB".
        version: Fingerprint of the version to open, where the dataset was extended since; by default the newest.

    Raises:
        NotFoundError: There is no dataset, or no such version of it.
        ManifestError: Its manifest is damaged.
        StoreError: It is out of reach.
        ConfigError: An argument is wrong.
    """
    return Dataset(url, storage_options=storage_options, cache_dir=cache_dir, cache_limit=cache_limit, version=version)
