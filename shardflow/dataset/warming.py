"""Warming: all shards of a dataset fetched into the cache before anybody reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import as_completed

from shardflow.errors import ConfigError, DeadlineError, StoreError
from shardflow.formats.manifest import Shard
from shardflow.storage.cache import STALL_TIMEOUT_S, FetchResult
from shardflow.storage.transfers import TransferPool

from .dataset import Split

_AT_A_TIME = 8


def warm(splits: Iterable[Split], *, progress: Callable[[Shard], None] | None = None) -> None:
    """Have all shards of these splits in the cache. Those that are there already are marked as used and cost nothing.

    Args:
        splits: Of one dataset.
        progress: Called after each shard.

    Raises:
        ConfigError: They are read where they lie, or are more than the cache may hold.
        StoreError: A shard is out of reach, or the disk is full, or who fetches a shard already does not get on.
        IntegrityError: A shard is not the one packed.
    """
    places = [(split, number) for split in splits for number in range(len(split.shards))]
    for cache in {split.cache for split, _ in places}:
        if cache is None:
            raise ConfigError("a dataset on a local disk is read where it lies; there is nothing to be cached")
        needed = sum(split.shards[number].bytes for split, number in places)
        if needed > cache.limit_bytes:
            raise ConfigError(f"the shards have {needed} bytes, the cache holds {cache.limit_bytes}; raise its limit")
    with TransferPool(_AT_A_TIME) as pool:
        for done in as_completed([pool.submit(_fetch, split, number) for split, number in places]):
            shard = done.result()
            if progress is not None:
                progress(shard)


def _fetch(split: Split, number: int) -> Shard:
    fetched = split.fetch(number, stall_timeout_s=STALL_TIMEOUT_S)
    if fetched is FetchResult.BUSY:
        message = f"another process fetches it, and has not got on for {STALL_TIMEOUT_S:g} s"
        raise DeadlineError(f"{split.url(number)}: {message}; end that process, if it was stopped, and try again")
    if fetched is FetchResult.FULL:
        raise StoreError("the disk of the cache has no room; free some space, or choose another cache directory")
    return split.shards[number]
