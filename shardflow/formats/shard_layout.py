"""Sharding: how the inputs of a dataset are divided into shards. Later inputs are divided in the same way."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardflow.errors import ManifestError

from .json_object import JsonObject, entry
from .shard import is_name

MOST_JOBS = 1 << 22
"""The most jobs of a split: eight times the shards of the largest manifest. Readers request the receipt of each job."""

_COUNTS: Any = {"write": dict, "read": lambda counts: dict(sorted(counts.items()))}


def job_name(split: str, number: int) -> str:
    """Return the name of a shard's files without their extensions: "train/000000"."""
    return f"{split}/{number:06d}"


def sample_key(ordinal: int) -> str:
    """Return the key of an input's sample, by its number in the split: "000000042"."""
    return f"{ordinal:09d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding(JsonObject):
    """How inputs were assigned to jobs. Each job packed one shard, or none if all of its inputs were quarantined.

    Raises:
        ManifestError: A value is out of its range.
    """

    shard_samples: int  # inputs per job, 1 or more. The last job of a `pack` or an `extend` may have fewer
    shuffle: bool  # whether `pack` and `extend` shuffle the inputs of "train" before they are divided
    seed: int  # seed of the shuffle
    jobs: Mapping[str, int] = field(metadata=entry(**_COUNTS))  # split → number of jobs, 1 or more
    inputs: Mapping[str, int] = field(metadata=entry(**_COUNTS))  # split → inputs, quarantined and removed ones too
    removed: Mapping[str, int] = field(default_factory=dict, metadata=entry(**_COUNTS, optional=True))  # of those
    retired: tuple[str, ...] = field(default=(), metadata=entry(write=list, read=tuple, optional=True))
    """Names of the jobs whose shards later jobs rewrote without removed samples."""

    def __post_init__(self) -> None:
        counts = (self.shard_samples, *self.jobs.values(), *self.inputs.values(), *self.removed.values())
        if not all(type(count) is int and count > 0 for count in counts) or self.jobs.keys() != self.inputs.keys():
            raise ManifestError("sharding: jobs and inputs of each split must be integers, 1 or more")
        if max(self.jobs.values(), default=0) > MOST_JOBS:
            raise ManifestError(f"sharding: a split has {max(self.jobs.values()):,} jobs, {MOST_JOBS:,} are the most")
        if not self.removed.keys() <= self.inputs.keys() or not all(map(is_name, self.retired)):
            raise ManifestError("sharding: removed names splits, and retired names jobs")
        if type(self.shuffle) is not bool or type(self.seed) is not int:
            raise ManifestError(
                f"sharding: seed must be an integer and shuffle true or false, found {self.seed!r} and {self.shuffle!r}"
            )

    def names(self) -> Iterator[str]:
        """Yield the names of all jobs that are not retired, in order."""
        names = (job_name(split, number) for split, jobs in self.jobs.items() for number in range(jobs))
        return itertools.filterfalse(frozenset(self.retired).__contains__, names)

    @property
    def kept_inputs(self) -> int:
        """Number of inputs that were not removed."""
        return sum(self.inputs.values()) - sum(self.removed.values())

    def extended(self, jobs: Mapping[str, int], inputs: Mapping[str, int]) -> Sharding:
        """Return the sharding with these numbers of jobs and inputs added to each split."""
        splits = sorted({*self.jobs, *jobs})
        return replace(
            self,
            jobs={split: self.jobs.get(split, 0) + jobs.get(split, 0) for split in splits},
            inputs={split: self.inputs.get(split, 0) + inputs.get(split, 0) for split in splits},
        )

    def without(self, removed: Mapping[str, int], retired: Sequence[str]) -> Sharding:
        """Return the sharding without the removed inputs of each split, with a new job in place of each retired one."""
        jobs = Counter(name.partition("/")[0] for name in retired)
        return replace(
            self,
            jobs={split: count + jobs[split] for split, count in self.jobs.items()},
            removed=dict(sorted((Counter(self.removed) + Counter(removed)).items())),
            retired=(*self.retired, *retired),
        )
