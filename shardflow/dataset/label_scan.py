"""Labels and keys: what no index has must be read of the tars. Those far away are fetched into the cache for it."""

from __future__ import annotations

from shardflow.errors import DecodeError, IntegrityError
from shardflow.formats.labels import sample_labels

from .dataset import Split
from .mapped_shard import MappedShard


def labels_of(split: Split, number: int) -> list[tuple[int, ...]]:
    """Return the labels of each record of a shard: of none, one or several classes.

    Raises:
        StoreError: The tar is missing or out of reach.
        IntegrityError: A label is damaged, or is no number.
    """
    shard = split.shard(number)
    return [_labels(shard, record) for record in range(split.shards[number].samples)]


def keys_of(split: Split, number: int) -> list[str]:
    """Return the key of each record of a shard.

    Raises:
        StoreError: The tar is missing or out of reach.
        IntegrityError: A header is damaged.
    """
    shard = split.shard(number)
    return [shard.key(record) for record in range(split.shards[number].samples)]


def _labels(shard: MappedShard, record: int) -> tuple[int, ...]:
    try:
        return sample_labels(lambda part: shard.part(record, part)) or ()
    except DecodeError as error:
        raise IntegrityError(f"{error}; run `shardflow verify`").at(shard=shard.url, key=shard.key(record)) from error
