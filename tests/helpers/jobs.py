"""Shard jobs without a whole pack around them, and an executor that is run on them."""

from __future__ import annotations

from pathlib import Path

from shardflow.packing.executors import Executor
from shardflow.packing.jobs import Job, PieceResult, plan_jobs
from shardflow.packing.recipe import Recipe
from shardflow.packing.sources import list_source


def jobs_of(src: Path, dst: Path, recipe: Recipe, shard_samples: int = 48) -> list[Job]:
    """Return the jobs that pack a folder; the destination is made unless something is there."""
    if not dst.exists():
        dst.mkdir()
    layout = {"shard_samples": shard_samples, "seed": 0, "shuffle": True}
    return plan_jobs(list_source(src), str(dst), recipe, spool=dst, **layout)


def run_jobs(executor: Executor, jobs: list[Job]) -> list[PieceResult]:
    """Return what an executor makes of the jobs, in the order in which the pieces were done."""
    results: list[PieceResult] = []
    executor.run(jobs, results.append)
    return results
