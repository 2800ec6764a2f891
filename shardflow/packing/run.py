"""One run of jobs: the unfinished ones are done, and progress is counted."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from shardflow._wording import plural
from shardflow.errors import StoreError
from shardflow.formats.receipt import Receipt

from .executors import Executor
from .jobs import Job, Outcome
from .ledger import Ledger, remove_temporaries
from .progress import Progress, ProgressLike, showing

logger = logging.getLogger(__name__)


def run_jobs(
    ledger: Ledger,
    jobs: Sequence[Job],
    executor: Executor,
    *,
    staging: Path,
    on_receipt: Callable[[str, Receipt], None],
    progress: ProgressLike,
) -> int:
    """Run the unfinished jobs, and return the number of inputs of the finished ones.

    `on_receipt` gets the name of each job and its receipt, in any order. What killed processes left in `staging` is
    removed.
    """
    unfinished = []
    for job in jobs:
        if (receipt := ledger.finished(job)) is None:
            unfinished.append(job)
        else:
            on_receipt(job.name, receipt)
    if anew := sum(map(ledger.has_receipt, unfinished)):
        why = "their inputs or settings have changed, an input could not be read, or a file is damaged"
        logger.warning("%s of %s packed anew: %s", plural(anew, "finished shard"), ledger.storage, why)
    inputs = sum(len(job.items) for job in jobs)
    resumed = inputs - sum(len(job.items) for job in unfinished)
    so_far = Progress(inputs=inputs, resumed=resumed, done=resumed)

    def done(job: Job, outcome: Outcome) -> None:
        nonlocal so_far
        if isinstance(outcome, Receipt):
            on_receipt(job.name, outcome)
            return
        so_far = replace(
            so_far,
            done=so_far.done + len(outcome.sources) + len(outcome.quarantined),
            bytes_in=so_far.bytes_in + outcome.statistics.counts["bytes_before"],
            bytes_out=so_far.bytes_out + outcome.fragment.size,
        )
        show(so_far)

    with showing(progress) as show:
        show(so_far)
        try:
            executor.run(unfinished, done)
        finally:
            with contextlib.suppress(StoreError):  # an error of the run matters more
                remove_temporaries(staging)
    return resumed
