"""Shard jobs without a whole pack around them, an executor that is run on them, and dry runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardflow.formats.annotations import Annotations
from shardflow.formats.receipt import Receipt, from_bytes
from shardflow.formats.shard_layout import Sharding
from shardflow.packing.creating import SHARD_SAMPLES, new_sharding, plan_pack
from shardflow.packing.executors import Executor
from shardflow.packing.jobs import Job, Outcome, PieceResult
from shardflow.packing.ledger import Ledger
from shardflow.packing.pack_plan import PackPlan, plan_jobs
from shardflow.packing.recipe import Recipe, make_recipe
from shardflow.packing.sample_recipe import SampleRecipe
from shardflow.packing.sources.resolve import list_source


def jobs_of(src: Path, dst: Path, recipe: Recipe | SampleRecipe, shard_samples: int = 48) -> list[Job]:
    """Return the jobs that pack a folder; the destination is made unless something is there."""
    if not dst.exists():
        dst.mkdir()
    sharding = Sharding(shard_samples=shard_samples, seed=0, shuffle=True, jobs={}, inputs={})
    samples = SampleRecipe(image=recipe) if isinstance(recipe, Recipe) else recipe
    jobs = plan_jobs(list_source(src), samples, sharding, str(dst))
    return [replace(job, staging=dst) for job in jobs]


def preview(
    src: object,
    dst: Path,
    *,
    preset: str = "imagenet",
    annotations: Annotations | None = None,
    shard_samples: int = SHARD_SAMPLES,
    **settings: Any,
) -> PackPlan:
    """Return the plan of a pack with these settings of its recipe; the source is closed."""
    recipe, sharding = make_recipe(preset, **settings), new_sharding(shard_samples, seed=0, shuffle=True)
    with plan_pack(src, Ledger(dst), recipe, sharding, annotations) as plan:
        return plan


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
