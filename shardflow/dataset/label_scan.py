"""Labels and keys: what no index has must be read of the tars. Those far away are fetched into the cache for it."""

from __future__ import annotations

from shardflow.errors import IntegrityError
from shardflow.formats.labels import LABELS, numbers

from .dataset import Split


def labels_of(split: Split, number: int) -> list[tuple[int, ...]]:
    """Return the labels of each record of a shard: of none, one or several classes.

    Raises:
        StoreError: The tar is missing or out of reach.
        IntegrityError: A label is damaged, or is no number.
    """
    return [_labels(split, number, record) for record in range(split.shards[number].samples)]


def keys_of(split: Split, number: int) -> list[str]:
    """Return the key of each record of a shard.

    Raises:
        StoreError: The tar is missing or out of reach.
        IntegrityError: A header is damaged.
    """
    return [split.reader.key(number, record) for record in range(split.shards[number].samples)]


def _labels(split: Split, shard: int, record: int) -> tuple[int, ...]:
    for part in LABELS:
        if (payload := split.reader.part(shard, record, part)) is not None:
            try:
                return numbers(part, bytes(payload))
            except ValueError as error:
                message = f"its part {part!r} cannot be read as labels: {error}; run `shardflow verify`"
                raise IntegrityError(message).at(
                    shard=split.reader.url(shard), key=split.reader.key(shard, record)
                ) from error
    return ()
