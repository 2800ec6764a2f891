"""Sharding: divides the inputs of a source into shards, a job each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardflow.formats.receipt import check_bytes, least_bytes
from shardflow.formats.shard_layout import Sharding, job_name
from shardflow.order import keyed_rng

from .jobs import Job
from .sample_recipe import SampleRecipe
from .sources.source import Source

_CHECKED_INPUTS = 1 << 16


def plan_jobs(
    source: Source,
    recipe: SampleRecipe,
    sharding: Sharding,
    dst: str,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Job]:
    """Cut the inputs of each split, shuffled if the sharding says so, into jobs, numbered after those that it has."""
    jobs: list[Job] = []
    for split, items in source.splits.items():
        if sharding.shuffle:
            items = items.take(keyed_rng.permutation(keyed_rng.key(sharding.seed, "pack", split), len(items)))
        jobs += [
            Job(
                name=job_name(split, number),
                first=sharding.inputs.get(split, 0) + start,
                items=items[start : start + sharding.shard_samples],
                reader=source.reader,
                dst=dst,
                recipe=recipe,
                storage_options=storage_options,
            )
            for number, start in enumerate(
                range(0, len(items), sharding.shard_samples), start=sharding.jobs.get(split, 0)
            )
        ]
    for job in jobs:
        if len(job.items) > _CHECKED_INPUTS:  # before hours of work; of fewer inputs with very long names, after it
            check_bytes(least_bytes(item.path for item in job.items), len(job.items))
    return jobs
