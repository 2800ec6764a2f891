"""An attempt: the jobs that are not finished yet are run, and what happens is counted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from shardflow.errors import StoreError

from .executors import Executor
from .jobs import Job, PieceResult
from .ledger import Ledger
from .report import Progress


def run_jobs(
    ledger: Ledger, jobs: Sequence[Job], executor: Executor, progress: Callable[[Progress], None] | None
) -> int:
    """Run the jobs that have no receipt that still holds, and return how many inputs the others have.

    Raises:
        StoreError: The destination failed.
        PackIncompleteError: Workers kept dying.
    """
    missing = [job for job in jobs if ledger.finished(job) is None]
    inputs = sum(len(job.items) for job in jobs)
    resumed = inputs - sum(len(job.items) for job in missing)
    so_far = Progress(inputs=inputs, resumed=resumed, done=resumed)

    def count(result: PieceResult | None) -> None:
        nonlocal so_far
        if result is not None:
            so_far = replace(
                so_far,
                done=so_far.done + len(result.sources) + len(result.quarantined),
                bytes_in=so_far.bytes_in + result.statistics.counts["bytes_before"],
                bytes_out=so_far.bytes_out + result.fragment.size,
            )
        if progress is not None:
            progress(so_far)

    count(None)
    try:
        executor.run(missing, count)
    finally:
        with contextlib.suppress(StoreError):  # what went wrong before matters more
            ledger.remove_temporaries()
    return resumed
