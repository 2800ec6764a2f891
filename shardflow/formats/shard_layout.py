"""Sharding: how the inputs of a dataset were divided into shards. Later inputs are divided in the same way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from shardflow.errors import ManifestError

from .json_object import JsonObject, entry

MOST_JOBS = 1 << 22
"""The most jobs of a split: eight times the shards of the largest manifest. Readers ask for the receipt of each job."""

_COUNTS = entry(write=dict, read=lambda counts: dict(sorted(counts.items())))


def job_name(split: str, number: int) -> str:
    """Return the name of a shard's files without their extensions: "train/000000"."""
    return f"{split}/{number:06d}"


def sample_key(ordinal: int) -> str:
    """Return the key of an input's sample, by its number in the split: "000000042"."""
    return f"{ordinal:09d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding(JsonObject):
    """How inputs were dealt out to jobs. Each job packed one shard, or none where all of its inputs were quarantined.

    Raises:
        ManifestError: A value is out of its range.
    """

    shard_samples: int  # inputs per job, 1 or more. The last job of a `pack` or an `extend` may have fewer
    shuffle: bool  # whether the inputs of a `pack` or an `extend` were shuffled before they were cut
    seed: int  # seed of the shuffle
    jobs: Mapping[str, int] = field(metadata=_COUNTS)  # split → number of jobs, 1 or more
    inputs: Mapping[str, int] = field(metadata=_COUNTS)  # split → number of inputs, the quarantined ones included

    def __post_init__(self) -> None:
        counts = (self.shard_samples, *self.jobs.values(), *self.inputs.values())
        if not all(type(count) is int and count > 0 for count in counts) or self.jobs.keys() != self.inputs.keys():
            raise ManifestError("sharding: jobs and inputs of each split must be integers, 1 or more")
        if max(self.jobs.values(), default=0) > MOST_JOBS:
            raise ManifestError(f"sharding: a split has {max(self.jobs.values()):,} jobs, {MOST_JOBS:,} are the most")
        if type(self.shuffle) is not bool or type(self.seed) is not int:
            raise ManifestError(
                f"sharding: seed must be an integer and shuffle true or false, found {self.seed!r} and {self.shuffle!r}"
            )

    def names(self) -> Iterator[str]:
        """Yield the names of all jobs, in order."""
        return (job_name(split, number) for split, jobs in self.jobs.items() for number in range(jobs))

    def extended(self, jobs: Mapping[str, int], inputs: Mapping[str, int]) -> Sharding:
        """Return the sharding after so many jobs with so many inputs were added to each split."""
        splits = sorted({*self.jobs, *jobs})
        return replace(
            self,
            jobs={split: self.jobs.get(split, 0) + jobs.get(split, 0) for split in splits},
            inputs={split: self.inputs.get(split, 0) + inputs.get(split, 0) for split in splits},
        )
