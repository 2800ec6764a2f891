"""The layout: how the inputs of a dataset were cut into shards. What is added to it later is cut in the same way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shardflow.errors import ManifestError


def job_name(split: str, number: int) -> str:
    """Return the name of a shard's files without their extensions: "train/000000"."""
    return f"{split}/{number:06d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How inputs were dealt out to jobs; each job has made one shard, or none where all of its inputs were bad.

    Args:
        shard_samples: Inputs per job, but for the last one of each time that something was packed.
        shuffle: Whether the inputs of each time were shuffled before they were cut.
        seed: Of the shuffle.
        jobs: Split → number of jobs.
        inputs: Split → number of inputs, the quarantined ones included.

    Raises:
        ManifestError: A value is out of its range.
    """

    shard_samples: int
    shuffle: bool
    seed: int
    jobs: Mapping[str, int]
    inputs: Mapping[str, int]

    def __post_init__(self) -> None:
        counts = (self.shard_samples, *self.jobs.values(), *self.inputs.values())
        if not all(type(count) is int and count > 0 for count in counts) or self.jobs.keys() != self.inputs.keys():
            raise ManifestError("a layout counts jobs and inputs of each split in integers above 0")
        if type(self.shuffle) is not bool or type(self.seed) is not int:
            raise ManifestError(f"a layout with seed {self.seed!r} and shuffle {self.shuffle!r}")

    def names(self) -> Iterator[str]:
        """Yield the names of all jobs, in order."""
        for split in self.jobs:
            for number in range(self.jobs[split]):
                yield job_name(split, number)

    def extended(self, jobs: Mapping[str, int], inputs: Mapping[str, int]) -> Sharding:
        """Return the layout after so many jobs with so many inputs were added to each split."""
        splits = sorted({*self.jobs, *jobs})
        return Sharding(
            shard_samples=self.shard_samples,
            shuffle=self.shuffle,
            seed=self.seed,
            jobs={split: self.jobs.get(split, 0) + jobs.get(split, 0) for split in splits},
            inputs={split: self.inputs.get(split, 0) + inputs.get(split, 0) for split in splits},
        )

    def to_json(self) -> dict[str, Any]:
        """Return what `json` can write."""
        return {**asdict(self), "jobs": dict(self.jobs), "inputs": dict(self.inputs)}


def from_json(content: Mapping[str, Any]) -> Sharding:
    """Return what `to_json` made.

    Raises:
        ManifestError: Something else made it.
    """
    try:
        counts = {name: dict(sorted(content[name].items())) for name in ("jobs", "inputs")}
        return Sharding(**{**content, **counts})
    except (KeyError, TypeError, AttributeError) as error:
        raise ManifestError(f"a layout that is none: {type(error).__name__}: {error}") from error
