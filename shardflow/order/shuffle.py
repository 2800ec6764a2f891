"""The settings of a shuffle: how many samples are permuted together, and into how many streams an epoch is cut."""

from __future__ import annotations

from dataclasses import dataclass

from shardflow._validation import check_integer
from shardflow.errors import ConfigError

MOST_LANES = 1 << 20
"""Each lane takes memory, and a saved state may name any number."""

MOST_WINDOW = 1 << 40
"""So that the offsets of windows fit into 63 bits; a window larger than a lane is the whole lane."""

WINDOW = 8192
LANES_PER_RANK = 8
"""Defaults for shards packed in class order (docs/performance.md).

Several lanes mix from the first batch on. With a window of half the size, 30 shards per rank would be open in place of
45, and the classes of a batch would vary half as much again beyond what a full shuffle gives.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle:
    """How a loader shuffles; `shuffle=True` stands for `Shuffle()`.

    >>> loader = shardflow.Loader("photos256", batch_size=256, shuffle=shardflow.Shuffle(lanes=64))  # doctest: +SKIP

    Attributes:
        window: Samples of a lane that are shuffled together, 1 … 2**40. A larger window mixes better, a smaller one
            keeps fewer shards open.
        lanes: Parallel streams into which the epoch is cut, 1 … 1,048,576; None for eight per rank. A resumed run
            that leaves this at None keeps the lanes of the saved run.
        sticky: Keep the shards of a lane from epoch to epoch, and shuffle their order and their samples alone. Then a
            host reads the same shards in every epoch, and needs a cache for its share of the dataset only; samples of
            different ranks never meet in a rank's batch (docs/performance.md). Not with `samples_per_epoch` or
            `samplers.ClassBatches`, nor in a `Mix` by sample.

    Raises:
        ConfigError: A value is out of its range.
    """

    window: int = WINDOW
    lanes: int | None = None
    sticky: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "window", check_integer("window", self.window, 1, MOST_WINDOW))
        if self.lanes is not None:
            object.__setattr__(self, "lanes", check_integer("lanes", self.lanes, 1, MOST_LANES))
        if self.sticky not in (True, False):
            raise ConfigError(f"sticky must be True or False, found {self.sticky!r}")
        object.__setattr__(self, "sticky", bool(self.sticky))

    @classmethod
    def of(cls, given: object) -> Shuffle | None:
        """Return what the argument `shuffle` of a loader stands for: None keeps the order of the split."""
        if isinstance(given, Shuffle):
            return given
        if given not in (True, False) or (isinstance(given, int) and not isinstance(given, bool)):
            raise ConfigError(f"shuffle must be True, False or Shuffle(...), found {given!r}")
        return cls() if given else None


def default_lanes(world_size: int, shuffle: bool) -> int:
    """Return the default number of lanes."""
    return min(LANES_PER_RANK, MOST_LANES // world_size) * world_size if shuffle else 1
