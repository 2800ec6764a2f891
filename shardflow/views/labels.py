"""Labels and keys: what no index has must be read of the tars. Those far away are fetched into the cache for it."""

from __future__ import annotations

import json
import zlib

from shardflow import shardindex
from shardflow.dataset import Split
from shardflow.errors import IntegrityError
from shardflow.files import packed_index
from shardflow.manifest import Shard
from shardflow.shardindex import Index
from shardflow.store import Store


def index_of(store: Store, shard: Shard) -> Index:
    """Return the index of a shard.

    Raises:
        StoreError: It is missing or out of reach.
        IntegrityError: It is not the one packed.
    """
    return shardindex.from_bytes(packed_index(store, shard), samples=shard.samples, tar_bytes=shard.bytes)


def labels_of(split: Split, number: int, index: Index) -> list[tuple[int, ...]]:
    """Return the labels of each record of a shard: of none, one or several classes.

    Raises:
        StoreError: The tar is missing or out of reach.
        IntegrityError: A label is damaged, or is no number.
    """
    shard = split.shard(number)
    labels: list[tuple[int, ...]] = [()] * split.shards[number].samples
    for record, part, _, _, crc32, *_ in index[(index["part"] == b"cls") | (index["part"] == b"labels.json")].tolist():
        payload = bytes(shard.sample(record, check=False)[part.decode()])
        try:
            if zlib.crc32(payload) != crc32:
                raise ValueError("its CRC-32 differs")
            found = json.loads(payload)
            labels[record] = tuple(map(int, found)) if part == b"labels.json" else (int(found),)
        except (ValueError, TypeError) as error:
            message = f"its part {part.decode()!r} cannot be read as labels: {error}; run `shardflow verify`"
            raise IntegrityError(message).at(shard=shard.url, key=shard.key(record)) from error
    return labels


def keys_of(split: Split, number: int) -> list[str]:
    """Return the key of each record of a shard.

    Raises:
        StoreError: The tar is missing or out of reach.
        IntegrityError: A header is damaged.
    """
    shard = split.shard(number)
    return [shard.key(record) for record in range(split.shards[number].samples)]
