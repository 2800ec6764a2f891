"""The report of a pack or an extension: the results of its inputs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardflow.dataset.image_copies import warn_of_copies
from shardflow.dataset.open_dataset import Dataset
from shardflow.formats.manifest import Manifest
from shardflow.formats.quarantine import SKIPPED, Quarantined
from shardflow.formats.statistics import Statistics
from shardflow.storage.interface import Writer

from .commit import commit
from .executors import Executor
from .pack_plan import PackPlan
from .progress import ProgressLike
from .run import Totals, run


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport:
    """The result of a pack, or of the new inputs of an extension.

    `inputs` is always the sum of `packed`, `quarantined` and `skipped`.

    Attributes:
        fingerprint: The dataset's identity.
        previous: Its identity before it was extended, the same when nothing was new; None for a new dataset.
        known: Inputs of the source that the dataset had already; they were not touched.
        conflicting: Inputs with the path of one that the dataset had, and another content; with `on_conflict="add"`
            they are among `inputs`, with "skip" they are not.
        inputs, packed: Numbers of images.
        quarantined: Number of images that could not be read, decoded or encoded.
        skipped: Number of images of kinds that are not read.
        reasons: Reason why images were not packed → their number; of reasons that differ only in figures, the first.
        ignored: Extension → number of files that are not images.
        samples: Split → number of samples.
        class_sizes: Name of each class of the dataset → number of its samples, 0 or more; empty without labels.
        new_classes: Names of those that it had not before, in the order of their labels.
        shards: Number of shards.
        bytes_in, bytes_out: Size of the packed inputs, and of the shards.
        counts: Number of images that were turned, converted, first frames, ..., by the names of `Statistics.counts`.
        resumed: Inputs that an earlier attempt had done.
        seconds: Duration of this attempt.
    """

    fingerprint: str
    previous: str | None
    known: int
    conflicting: int
    inputs: int
    packed: int
    quarantined: int
    skipped: int
    reasons: Mapping[str, int]
    ignored: Mapping[str, int]
    samples: Mapping[str, int]
    class_sizes: Mapping[str, int] = field(repr=False)
    new_classes: tuple[str, ...]
    shards: int
    bytes_in: int
    bytes_out: int
    counts: Mapping[str, int]
    resumed: int
    seconds: float

    @property
    def classes(self) -> int | None:
        """Number of classes of the dataset; None where the images have no labels."""
        return len(self.class_sizes) or None


def carry_out(plan: PackPlan, writer: Writer, executor: Executor, progress: ProgressLike, started: float) -> PackReport:
    """Run a plan and commit the results; `started` is when the attempt began, by the monotonic clock."""
    plan.recipe.image.warn_without_tables()
    results = run(plan, writer, executor, progress)
    made = commit(plan, results)
    warn_of_copies(Dataset(plan.ledger.storage, made, None))
    return report(plan, made, results.totals, resumed=results.resumed, started=started)


def report(plan: PackPlan, made: Manifest, totals: Totals, *, resumed: int = 0, started: float) -> PackReport:
    """Return the report of a plan whose jobs have the sum `totals` and made a version of a dataset."""
    source, base = plan.source, plan.base
    sizes = sum((made.statistics or {}).values(), Statistics()).classes
    samples, counts = dict.fromkeys(source.splits, 0), sum(totals.statistics.values(), Statistics()).counts
    for name, shard in totals.shards.items():
        samples[name.partition("/")[0]] += shard.samples
    return PackReport(
        fingerprint=made.fingerprint,
        previous=None if base is None else base.manifest.fingerprint,
        known=plan.known,
        conflicting=len(plan.conflicting),
        inputs=source.inputs + len(source.skipped),
        packed=sum(samples.values()),
        quarantined=len(totals.quarantined),
        skipped=len(source.skipped),
        reasons=_reasons(sorted([*totals.quarantined, *source.skipped])),
        ignored=source.ignored,
        samples=samples,
        class_sizes={name: sizes[label] for label, name in enumerate(made.classes or ())},
        new_classes=plan.new_classes,
        shards=len(totals.shards),
        bytes_in=counts["bytes_before"],
        bytes_out=sum(shard.bytes for shard in totals.shards.values()),
        counts=counts,
        resumed=resumed,
        seconds=time.monotonic() - started,
    )


def _reasons(quarantined: Sequence[Quarantined]) -> dict[str, int]:
    """Return the number of inputs of each reason. Reasons that differ only in figures count as the first of them."""
    alike: dict[str, list[str]] = {}
    for bad in quarantined:
        kind = os.path.splitext(bad.path)[1].lower() if bad.stage == SKIPPED else bad.stage
        reason = f"{kind or 'without extension'}: {bad.reason}"
        alike.setdefault(re.sub(r"\d+", "N", reason), []).append(reason)
    return {reasons[0]: len(reasons) for reasons in alike.values()}
