"""Warming: download all shards of a dataset into the cache before they are read."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import as_completed

from shardflow.errors import ConfigError, DeadlineError, StoreError
from shardflow.formats.shard import OnShard, Shard
from shardflow.storage.cache import FetchResult
from shardflow.storage.transfers import TransferPool

from .open_dataset import Split

_AT_A_TIME = 8


def warm(splits: Iterable[Split], *, progress: OnShard = None) -> None:
    """Download all shards of a dataset's splits into the cache; those that are there are only marked as used."""
    splits = list(splits)
    for cache in {split.reader.cache for split in splits}:
        if cache is None:
            raise ConfigError("a dataset on a local disk is read in place; there is nothing to cache")
        needed = sum(shard.bytes for split in splits for shard in split.shards)
        if needed > cache.limit_bytes:
            raise ConfigError(f"the shards have {needed} bytes, the cache holds {cache.limit_bytes}; raise its limit")
    with TransferPool(_AT_A_TIME) as pool:
        downloads = [pool.submit(_fetch, split, number) for split in splits for number in range(len(split.shards))]
        for download in as_completed(downloads):
            shard = download.result()
            if progress is not None:
                progress(shard)


def _fetch(split: Split, number: int) -> Shard:
    split.columns.fetch(number)
    timeout_s = split.reader.stall_timeout_s
    result = split.reader.fetch(number, stall_timeout_s=timeout_s)
    if result is FetchResult.BUSY:
        raise DeadlineError(
            f"{split.reader.url(number)}: another process downloads it, and its file has not grown for "
            f"{timeout_s:g} s; end that process, and try again"
        )
    if result is FetchResult.FULL:
        raise StoreError("the disk of the cache has no room; free some space, or choose another cache directory")
    return split.shards[number]
