"""The partition: the positions of an epoch that each rank takes at each step.

    rank r    takes the positions p with p % world_size == r
    step k    of an epoch entered at `first` covers the world_size*B positions from first + k*world_size*B on

Any world_size*B consecutive positions hold B of each residue, so a step gives every rank exactly B samples, wherever
the epoch was entered. The positions that are left at the end, fewer than a global batch, are the tail:

    drop      is left out
    pad       is filled up with positions from 0 on; these repeats are marked invalid
    short     is distributed evenly: ranks differ by one sample at most, and some may get none

Every rank makes the same number of steps in all three cases.

With `contiguous`, rank r takes the r-th B consecutive positions of the world_size*B instead, so that a batch composed
by a sampler stays whole for any number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardflow._validation import check_integer
from shardflow.errors import ConfigError

TAILS = ("drop", "pad", "short")

MOST_POSITIONS = 1 << 60
"""Limit of the positions of an epoch. With these limits, a position plus a global batch fits into 63 bits."""

MOST_RANKS = 1 << 20
MOST_BATCH = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPartition:
    """The steps of one rank through an epoch of `length` positions.

    Args:
        length: Samples in the epoch, up to 2**60.
        batch_size: Samples per rank and step, 1 … 2**31.
        rank: 0 … world_size-1.
        world_size: Number of ranks, up to 2**20.
        tail: "drop", "pad" or "short".
        contiguous: Whether a batch is B consecutive positions.
    """

    length: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    tail: str = "drop"
    contiguous: bool = False

    def __post_init__(self) -> None:
        check_integer("the length of an epoch", self.length, 0, MOST_POSITIONS)
        check_integer("batch_size", self.batch_size, 1, MOST_BATCH)
        check_integer("world_size", self.world_size, 1, MOST_RANKS)
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(f"rank must be 0 … world_size-1, found rank {self.rank} of world_size {self.world_size}")
        if self.tail not in TAILS:
            raise ConfigError(f"tail must be one of {', '.join(TAILS)}, found {self.tail!r}")

    @property
    def global_batch(self) -> int:
        """Number of positions per step, over all ranks."""
        return self.batch_size * self.world_size

    def steps(self, first: int = 0) -> int:
        """Return the number of steps from position `first` to the end, equal on every rank."""
        left = max(0, self.length - first)
        return left // self.global_batch if self.tail == "drop" else -(-left // self.global_batch)

    def positions(self, first: int, step: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return this rank's positions in a step of an epoch entered at `first`, int64, and which are valid, bool.

        Positions are below `length`. Invalid ones are repeats that fill a padded tail.
        """
        start = first + step * self.global_batch
        stop = start + self.global_batch
        if self.tail == "short":
            stop = min(stop, self.length)
        if self.contiguous:
            start += self.rank * self.batch_size
            mine = np.arange(start, min(start + self.batch_size, stop), dtype=np.int64)
        else:
            mine = np.arange(start + (self.rank - start) % self.world_size, stop, self.world_size, dtype=np.int64)
        return mine % max(1, self.length), mine < self.length

    def after(self, first: int, step: int) -> int:
        """Return the position at which an epoch entered at `first` continues after `step` steps."""
        return min(first + step * self.global_batch, self.length)
