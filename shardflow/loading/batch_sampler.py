"""The batch sampler: the one attribute of a torch DataLoader that a trainer looks for on a loader.

Lightning tells the epoch to `loader.batch_sampler.sampler` and reads `loader.batch_sampler.batch_size`. A loader has no
sampler to be replaced, so `loader.sampler` is left out: where that exists, Lightning takes shuffling to be its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class TellsEpoch(Protocol):
    """Something that is told which epoch comes next."""

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one that the next iteration runs through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSampler:
    """Where a trainer finds what it calls by the DataLoader's conventions.

    Attributes:
        sampler: The loader or mix itself.
        batch_size: Samples per batch and rank.
    """

    sampler: TellsEpoch
    batch_size: int
