"""The settings of a shuffle: the size of the shuffle buffer, and the number of streams of an epoch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardflow._validation import check_integer, check_switch
from shardflow.errors import ConfigError

MOST_STREAMS = 1 << 20
"""Each stream takes memory, and a saved state may name any number."""

MOST_BUFFER = 1 << 40
"""Offsets of windows then fit into 63 bits; a buffer larger than a stream shuffles the whole stream."""

TRAIN = "train"
"""The split that is shuffled by default."""

BUFFER = 8192
STREAMS_PER_RANK = 8
"""Defaults for shards packed in class order (docs/performance.md).

Several streams mix classes from the first batch on. Half the buffer opens 30 shards per rank instead of 45, but the
excess variance of a batch's classes grows by half.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle:
    """How a loader shuffles; `shuffle=True` means `Shuffle()`.

    >>> loader = shardflow.Loader("photos256", batch_size=256, shuffle=shardflow.Shuffle(streams=64))

    Attributes:
        buffer: Samples of a stream that are shuffled together, 1 … 2**40. A larger buffer mixes better, a smaller one
            keeps fewer shards open. From the second epoch on, up to eight buffers of samples are shuffled as a whole.
        streams: Pieces of an epoch's sequence of shards, read in parallel, 1 … 1,048,576; None for eight per rank. A
            resumed run with None keeps the streams of the saved run.
        shard_affinity: Keep the shards of a stream from epoch to epoch, and shuffle only their order and samples. A
            host then reads the same shards in every epoch, and caches only its share of the dataset; samples of
            different ranks never meet in a batch (docs/performance.md). Not with `samples_per_epoch`,
            `samplers.ClassBatches` or a `Mix` by sample.

    Raises:
        ConfigError: A value is out of its range.
    """

    buffer: int = BUFFER
    streams: int | None = None
    shard_affinity: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "buffer", check_integer("buffer", self.buffer, 1, MOST_BUFFER))
        if self.streams is not None:
            object.__setattr__(self, "streams", check_integer("streams", self.streams, 1, MOST_STREAMS))
        object.__setattr__(self, "shard_affinity", check_switch("shard_affinity", self.shard_affinity))

    @classmethod
    def of(cls, given: object, split: str) -> Shuffle | None:
        """Return the settings that a loader's argument `shuffle` means; None keeps the order of the split."""
        if given is None:
            given = split == TRAIN
        if isinstance(given, Shuffle):
            return given
        if not isinstance(given, bool | np.bool_):
            raise ConfigError(f"shuffle must be True, False or Shuffle(...), found {given!r}")
        return cls() if given else None


def default_streams(world_size: int) -> int:
    """Return the number of streams of a shuffle with `streams=None`."""
    return min(STREAMS_PER_RANK, MOST_STREAMS // world_size) * world_size
