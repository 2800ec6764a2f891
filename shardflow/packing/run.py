"""The run of a plan: does the unfinished jobs, sums their receipts, and counts progress."""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from dataclasses import dataclass, field, replace

from shardflow._wording import plural
from shardflow.dataset.leftovers import remove_leftovers
from shardflow.dataset.own_files import job_files, refuse_foreign
from shardflow.dataset.write_lock import WriteLock, acquire_to_extend
from shardflow.errors import StoreError
from shardflow.formats.quarantine import Quarantined
from shardflow.formats.receipt import Receipt
from shardflow.formats.shard import Shard
from shardflow.formats.statistics import PixelSums, Statistics
from shardflow.storage.interface import Writer

from .executors import Executor
from .jobs import Job, Outcome, content_of
from .pack_plan import PackPlan
from .progress import Progress, ProgressLike, showing

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Totals:
    """The sum of receipts, added in any order, without the paths of packed inputs, which make up most of a receipt."""

    shards: dict[str, Shard] = field(default_factory=dict)  # by the names of their jobs
    statistics: defaultdict[str, Statistics] = field(default_factory=lambda: defaultdict(Statistics))  # by split
    pixels: PixelSums = field(default_factory=PixelSums)
    quarantined: list[Quarantined] = field(default_factory=list)
    contents: bytearray = field(default_factory=bytearray)  # 8 bytes for each input, see `InputRecord`

    def add(self, name: str, receipt: Receipt) -> None:
        """Add the receipt of a job, given its name."""
        if receipt.shard is not None:
            self.shards[name] = receipt.shard
        self.statistics[name.partition("/")[0]] += receipt.statistics
        self.pixels += receipt.pixels
        self.quarantined += receipt.quarantined
        self.contents += bytes.fromhex(receipt.contents)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackResults:
    """The results of a run: the lock, held until the commit, the sum of all receipts, and the number of inputs that
    earlier attempts have done."""

    lock: WriteLock
    totals: Totals
    resumed: int


def run(plan: PackPlan, writer: Writer, executor: Executor, progress: ProgressLike = None) -> PackResults:
    """Do the unfinished jobs of a plan; may be repeated until the results are committed.

    Leftovers of killed processes in the staging directory are removed.

    Raises:
        ConfigError: The destination has other files, or other work has begun there.
        DatasetExistsError: The destination holds a dataset, or another version of it.
        PackIncompleteError: Workers kept dying.
        StoreError: The destination cannot be written.
    """
    ledger, totals = plan.ledger, Totals()
    if plan.base is None:
        lock = ledger.begin(plan.jobs, writer)
    else:
        version = plan.base.manifest.fingerprint
        lock = acquire_to_extend(ledger.storage, lambda: content_of(plan.jobs), version, writer)
    unfinished = []
    for job in plan.jobs:
        if (receipt := ledger.finished(job)) is None:
            unfinished.append(replace(job, staging=writer.staging, lock=None if lock.blob is None else lock))
        else:
            totals.add(job.name, receipt)
    if plan.base is not None:
        files = (name for job in unfinished for name in job_files(job.name))
        refuse_foreign(ledger.storage, [name for name in files if name in ledger.listing])
    if again := sum(f"{job.name}.json" in ledger.listing for job in unfinished):
        why = "their inputs or settings have changed, or a file is damaged"
        logger.warning("%s of %s packed again: %s", plural(again, "finished shard"), ledger.storage, why)
    inputs = sum(len(job.items) for job in plan.jobs)
    resumed = inputs - sum(len(job.items) for job in unfinished)
    so_far = Progress(inputs=inputs, resumed=resumed, done=resumed)

    def done(job: Job, outcome: Outcome) -> None:
        nonlocal so_far
        if isinstance(outcome, Receipt):
            totals.add(job.name, outcome)
            return
        so_far = replace(
            so_far,
            done=so_far.done + len(outcome.inputs),
            bytes_in=so_far.bytes_in + outcome.statistics.counts["bytes_before"],
            bytes_out=so_far.bytes_out + outcome.partial.size,
        )
        show(so_far)

    with showing(progress) as show:
        show(so_far)
        try:
            executor.run(unfinished, done, inherited=(writer.lock,))
        finally:
            with contextlib.suppress(StoreError):  # an error of the run matters more
                remove_leftovers(writer.staging)
    return PackResults(lock=lock, totals=totals, resumed=resumed)
