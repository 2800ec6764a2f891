"""The commit: receipts become a manifest, and the manifest makes the dataset.

Everything is counted from receipts alone, so it does not matter which attempt did a job. The manifest is written last,
create-only: before it there is no dataset. An extension replaces it in one step, if it is still that of the version
which it extends, and keeps it beside the new one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardflow._version import __version__
from shardflow.errors import DatasetExistsError, IntegrityError, PackIncompleteError
from shardflow.formats import manifest, quarantine
from shardflow.formats.annotations import Annotations
from shardflow.formats.quarantine import SKIPPED, Quarantined
from shardflow.formats.receipt import Receipt
from shardflow.formats.shard import Shard
from shardflow.formats.sharding import Sharding
from shardflow.formats.statistics import PixelSums, Statistics
from shardflow.storage.write_lock import WriteLock, abort_uploads

from .image.encoding import codec_versions
from .jobs import Job
from .ledger import Ledger
from .recipe import Recipe

_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport:
    """The result of a pack. `inputs` is always the sum of `packed`, `quarantined` and `skipped`.

    Attributes:
        fingerprint: The dataset's identity.
        inputs, packed: Numbers of images.
        quarantined: Number of images that could not be read, decoded or encoded.
        skipped: Number of images of kinds that are not read.
        reasons: Reason why images were not packed → their number; of reasons that differ in figures alone, the first.
        ignored: Extension → number of files that are no images.
        samples: Split → number of samples.
        classes: Number of classes; None where the images have no labels.
        shards: Number of shards.
        bytes_in, bytes_out: Size of the packed inputs, and of the shards.
        counts: Number of images that were turned, converted, first frames, ..., by the names of `Statistics.counts`.
        resumed: Inputs that an earlier attempt had done.
        seconds: Duration of this attempt.
    """

    fingerprint: str
    inputs: int
    packed: int
    quarantined: int
    skipped: int
    reasons: Mapping[str, int]
    ignored: Mapping[str, int]
    samples: Mapping[str, int]
    classes: int | None
    shards: int
    bytes_in: int
    bytes_out: int
    counts: Mapping[str, int]
    resumed: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Totals:
    """Receipts added up, in any order. The paths of the packed inputs, most of a receipt, are not kept."""

    shards: dict[str, Shard] = field(default_factory=dict)  # by the names of their jobs
    statistics: defaultdict[str, Statistics] = field(default_factory=lambda: defaultdict(Statistics))  # by split
    pixels: PixelSums = field(default_factory=PixelSums)
    bytes_in: int = 0
    quarantined: list[Quarantined] = field(default_factory=list)

    def add(self, name: str, receipt: Receipt) -> None:
        """Add the receipt of the job of a name."""
        if receipt.shard is not None:
            self.shards[name] = receipt.shard
        self.statistics[name.partition("/")[0]] += receipt.statistics
        self.pixels += receipt.pixels
        self.bytes_in += receipt.bytes_in
        self.quarantined += receipt.quarantined


def commit(
    ledger: Ledger,
    lock: WriteLock,
    jobs: Sequence[Job],
    totals: Totals,
    sharding: Sharding,
    *,
    classes: tuple[str, ...] | None,
    recipe: Recipe,
    annotations: Annotations,
    max_errors: int,
    skipped: Sequence[Quarantined],
    ignored: Mapping[str, int],
    replacing: manifest.Manifest | None = None,
    replaced_receipts: Mapping[str, Receipt] | None = None,
    replaced_skipped: Sequence[Quarantined] = (),
) -> PackReport:
    """Write the quarantine and, when no more than `max_errors` new inputs are in it, the manifest.

    `sharding` divides all inputs that were read into jobs. `jobs` and `totals` have the new ones alone, `skipped` the
    new images that are not read; `replaced_receipts` and `replaced_skipped` have those of the version that is replaced,
    if any. Where others can write too, it is checked what the jobs have published.
    """
    if lock.blob is not None:
        lock.check()
        ledger.confirm(jobs, totals.shards)
    bad = sorted([*totals.quarantined, *skipped])
    old = {shard.name: shard for shards in (replacing.splits if replacing else {}).values() for shard in shards}
    for name, receipt in (replaced_receipts or {}).items():
        if receipt.shard != old.get(f"{name}.tar"):
            message = f"{ledger.storage.url(name)}.json is not the receipt of the shard beside it"
            raise IntegrityError(f"{message}; restore it from where the dataset was packed")
        totals.add(name, receipt)
    splits: dict[str, list[Shard]] = {split: [] for split in sharding.jobs}
    for name in sharding.names():
        if name in totals.shards:
            splits[name.partition("/")[0]].append(totals.shards[name])
    all_skipped = [*skipped, *replaced_skipped]
    all_bad = sorted([*totals.quarantined, *all_skipped])
    inputs = sum(sharding.inputs.values()) + len(all_skipped)
    if len(bad) > max_errors or not totals.shards:
        new_inputs = inputs - (replacing.inputs if replacing is not None else 0)
        listed = quarantine.FILE_NAME if replacing is None else quarantine.UNFINISHED_NAME
        lock.put(listed, quarantine.to_bytes(bad))
        raise PackIncompleteError(_refusal(ledger.storage.url(listed), bad, new_inputs, max_errors, annotations))
    if lock.blob is None:
        ledger.remove_leftovers(sharding.names())

    new = manifest.Manifest(
        splits={split: tuple(shards) for split, shards in splits.items()},
        classes=classes,
        recipe=recipe.describe(),
        tools={"shardflow": __version__, **codec_versions()},
        inputs=inputs,
        skipped=len(all_skipped),
        mean=totals.pixels.mean,
        std=totals.pixels.std,
        statistics={split: totals.statistics[split] for split in splits},
        sharding=sharding,
        annotations=annotations,
    )
    abort_uploads(ledger.storage, {shard.name for shard in totals.shards.values()})
    if replacing is None:
        lock.put(quarantine.FILE_NAME, quarantine.to_bytes(all_bad))
        ledger.storage.put_new(manifest.FILE_NAME, new.to_bytes())
    else:
        found, tag = lock.read_version()
        lock.put(quarantine.version_name(new.fingerprint), quarantine.to_bytes(all_bad))
        with contextlib.suppress(DatasetExistsError):  # an attempt that was killed here has kept it
            ledger.storage.put_new(manifest.kept_name(replacing.fingerprint), found)
        ledger.storage.replace(manifest.FILE_NAME, new.to_bytes(), tag)
        ledger.storage.remove(quarantine.UNFINISHED_NAME)
    lock.release()
    return PackReport(
        fingerprint=new.fingerprint,
        inputs=inputs,
        packed=new.samples,
        quarantined=len(totals.quarantined),
        skipped=new.skipped,
        reasons=_reasons(all_bad),
        ignored=ignored,
        samples={split: sum(shard.samples for shard in shards) for split, shards in splits.items()},
        classes=None if classes is None else len(classes),
        shards=len(totals.shards),
        bytes_in=totals.bytes_in,
        bytes_out=sum(shard.bytes for shard in totals.shards.values()),
        counts=sum(totals.statistics.values(), Statistics()).counts,
    )


def _reasons(quarantined: Sequence[Quarantined]) -> dict[str, int]:
    """Return the number of inputs of each reason. Reasons that differ in figures alone count as the first of them."""
    alike: dict[str, list[str]] = {}
    for bad in quarantined:
        kind = os.path.splitext(bad.path)[1].lower() if bad.stage == SKIPPED else bad.stage
        reason = f"{kind or 'without extension'}: {bad.reason}"
        alike.setdefault(re.sub(r"\d+", "N", reason), []).append(reason)
    return {reasons[0]: len(reasons) for reasons in alike.values()}


def _refusal(
    listed: str, quarantined: Sequence[Quarantined], inputs: int, max_errors: int, annotations: Annotations
) -> str:
    named = "; ".join(f"{bad.path!r} ({bad.stage}: {bad.reason})" for bad in quarantined[:_NAMED])
    more = f"; {len(quarantined) - _NAMED} more" if len(quarantined) > _NAMED else ""
    listed = f"{named}{more}, all listed in {listed}"
    if len(quarantined) == inputs:
        none = "the only input could not" if inputs == 1 else f"none of the {inputs} inputs could"
        absent = all(bad.reason.endswith(os.strerror(errno.ENOENT)) for bad in quarantined)
        declared = all(any(part in bad.reason for part in annotations.parts) for bad in quarantined)
        remedy = "is this the right directory?"
        if absent:
            remedy = "paths in a table are absolute, or relative to the table; those of a COCO set, to --image-folder"
        elif declared:
            remedy = "do --mask, --boxes and --keypoints name what is there?"
        return f"{none} be packed: {listed}; {remedy}"
    allowed = f"{max_errors} {'is' if max_errors == 1 else 'are'} allowed"
    return (
        f"{len(quarantined)} of {inputs} inputs could not be packed, {allowed}: {listed}. Repair or remove "
        f"them, or allow them with --max-errors {len(quarantined)}, then run the same command again: the packed ones "
        "stay"
    )
