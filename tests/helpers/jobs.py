"""Shard jobs without a whole pack around them, and an executor that is run on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from shardflow.formats.receipt import Receipt, from_bytes
from shardflow.packing.executors import Executor
from shardflow.packing.jobs import Job, Outcome, PieceResult, plan_jobs
from shardflow.packing.recipe import Recipe
from shardflow.packing.sources.resolve import list_source


def jobs_of(src: Path, dst: Path, recipe: Recipe, shard_samples: int = 48) -> list[Job]:
    """Return the jobs that pack a folder; the destination is made unless something is there."""
    if not dst.exists():
        dst.mkdir()
    layout = {"shard_samples": shard_samples, "seed": 0, "shuffle": True}
    return plan_jobs(list_source(src), str(dst), recipe, staging=dst, **layout)


def run_jobs(
    executor: Executor, jobs: list[Job], on_piece: Callable[[PieceResult], None] | None = None
) -> list[PieceResult]:
    """Run jobs, and return the results of the pieces in the order in which they were done.

    Raises:
        AssertionError: The receipts that the executor handed over are not those that it wrote.
    """
    results: list[PieceResult] = []
    receipts: dict[str, Receipt] = {}

    def done(job: Job, outcome: Outcome) -> None:
        if isinstance(outcome, Receipt):
            receipts[job.name] = outcome
            return
        results.append(outcome)
        if on_piece is not None:
            on_piece(outcome)

    executor.run(jobs, done)
    assert receipts == {job.name: from_bytes(Path(job.dst, f"{job.name}.json").read_bytes()) for job in jobs}
    return results
