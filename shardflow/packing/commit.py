"""The commit: receipts become a manifest, and the manifest makes the dataset; the report says what came of the inputs.

All numbers come from receipts, so it does not matter which attempt did a job. The manifest is written last,
create-only; before that, the dataset does not exist. An extension keeps the old manifest, and replaces it in one step
if it is still that of the base version.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from shardflow._version import __version__
from shardflow._wording import STOPPED, add_note, first_few, plural
from shardflow.dataset.image_copies import warn_of_copies
from shardflow.dataset.open_dataset import Dataset
from shardflow.dataset.write_lock import WriteLock, abort_uploads
from shardflow.errors import PackIncompleteError
from shardflow.formats import manifest, quarantine
from shardflow.formats.manifest import FILE_NAME, Manifest
from shardflow.formats.quarantine import SKIPPED, Quarantined
from shardflow.formats.shard import Shard
from shardflow.formats.statistics import Statistics
from shardflow.storage.interface import Writer
from shardflow.storage.staging import temporary_staging

from .executors import Executor
from .pack_plan import PackPlan
from .progress import ProgressLike
from .recipe import codec_versions
from .run import PackResults, Totals, run

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport:
    """The result of a pack, or of the new inputs of an extension.

    `inputs` is always the sum of `packed`, `quarantined` and `skipped`.

    Attributes:
        fingerprint: The dataset's identity.
        previous: Its identity before the extension, equal to `fingerprint` if nothing was new; None for a new dataset.
        known: Number of inputs that the dataset had already.
        conflicting: Number of inputs with a path of the dataset but another content; with `on_conflict="add"` they are
            among `inputs`, with "skip" they are not.
        inputs, packed: Number of inputs, and of those that were packed.
        quarantined: Number of inputs that could not be read, decoded or encoded.
        skipped: Number of images of unsupported kinds.
        reasons: Reason why inputs were not packed → their number; reasons that differ only in digits count together.
        ignored: Extension → number of files that are not images.
        samples: Split → number of new samples.
        class_sizes: Class name → number of samples in the dataset, 0 or more; empty without labels.
        new_classes: Names of new classes, in the order of their labels.
        shards: Number of new shards.
        bytes_in, bytes_out: Size of the packed images before packing, and of the shards.
        counts: What was done → number of images: "turned", "converted", "first_frame", "enlarged", "on_white", ….
        resumed: Number of inputs that an earlier attempt had done.
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
        """Number of classes of the dataset; None without labels."""
        return len(self.class_sizes) or None


def carry_out(plan: PackPlan, writer: Writer, executor: Executor, progress: ProgressLike, started: float) -> PackReport:
    """Run a plan and commit the results; `started` is the monotonic time at which the attempt began."""
    plan.recipe.image.warn_without_tables()
    try:
        results = run(plan, writer, executor, progress)
    except KeyboardInterrupt as error:
        add_note(error, STOPPED % "call")
        raise
    _warn_of_boxes_beyond(plan, results.totals)
    made = commit(plan, results)
    is_remote = results.lock.blob is not None
    with temporary_staging() if is_remote else nullcontext((None, None)) as (cache, _):  # the user's is not needed
        warn_of_copies(Dataset(plan.ledger.storage, made, cache))
    _warn_of_untrained_classes(made)
    return report(plan, made, results.totals, resumed=results.resumed, started=started)


def commit(plan: PackPlan, results: PackResults) -> Manifest:
    """Write the quarantine and, if it has at most `max_errors` of the plan's inputs, the manifest.

    In a remote destination, which others may write too, the published files are checked first.

    Raises:
        PackIncompleteError: More inputs could not be packed, or none could. The quarantine names them.
        ManifestError: Readers would refuse the manifest, which is not written.
        DatasetExistsError: Another process committed the dataset, or another version of it, meanwhile.
        StoreError: The destination cannot be written, or another process replaced a shard.
    """
    ledger, lock, base, totals, before = plan.ledger, results.lock, plan.base, results.totals, Totals()
    if lock.blob is not None:
        lock.check()
        ledger.confirm(plan.jobs, totals.shards)
    skipped = [*plan.source.skipped]
    new_bad = sorted([*totals.quarantined, *skipped])
    if base is not None:
        for name, receipt in base.receipts.items():
            before.add(name, receipt)
        # A skipped image becomes an input once its kind is supported.
        read = {item.path for items in plan.source.splits.values() for item in items} if base.skipped else set()
        skipped += [bad for bad in base.skipped if bad.path not in read]
        base.check_contents(bytes(totals.contents))
    shards = {**before.shards, **totals.shards}
    if len(new_bad) > plan.max_errors or not shards:
        listed = quarantine.FILE_NAME if base is None else quarantine.UNFINISHED_NAME
        lock.put(listed, quarantine.to_bytes(new_bad))
        raise PackIncompleteError(_refusal(plan, lock, ledger.storage.url(listed), new_bad))
    if lock.blob is None:
        ledger.remove_others([*plan.sharding.names(), *plan.sharding.retired])  # earlier versions have the latter

    splits: dict[str, list[Shard]] = {split: [] for split in plan.sharding.jobs}
    before_names = base.shard_names() if base is not None else []
    for name in dict.fromkeys([*before_names, *plan.sharding.names()]):  # columns depend on the old order
        if name in shards:
            splits[name.partition("/")[0]].append(shards[name])
    pixels = before.pixels + totals.pixels
    new = replace(  # columns, removals and the like stay; the new shards, which come last, have no values in columns
        Manifest(splits=splits) if base is None else base.manifest,
        splits=splits,
        classes=plan.source.classes,
        recipe=plan.recipe.image.describe(),
        tools={"shardflow": __version__, **codec_versions()},
        inputs=plan.sharding.kept_inputs + len(skipped),
        skipped=len(skipped),
        mean=pixels.mean,
        std=pixels.std,
        statistics={split: before.statistics[split] + totals.statistics[split] for split in splits},
        sharding=plan.sharding,
        annotations=plan.recipe.annotations,
    )
    data = new.to_bytes()
    manifest.from_bytes(data)
    abort_uploads(ledger.storage, {shard.name for shard in shards.values()})
    bad = quarantine.to_bytes(sorted([*before.quarantined, *totals.quarantined, *skipped]))
    if base is None:
        lock.put(quarantine.FILE_NAME, bad)
        ledger.storage.put(FILE_NAME, data, new=True)
    else:
        lock.replace_version(new.fingerprint, data, bad)
        ledger.storage.remove(quarantine.UNFINISHED_NAME)
    lock.release()
    return new


def _warn_of_untrained_classes(made: Manifest) -> None:
    """Warn of classes that have images in other splits, but none in `train`."""
    statistics = made.statistics or {}
    if "train" in statistics:
        trained = statistics["train"].classes
        others = set().union(*(each.classes for each in statistics.values())) - trained.keys()
        if names := [name for label, name in enumerate(made.classes or ()) if label in others]:
            found = f"{plural(len(names), 'class')} {'has' if len(names) == 1 else 'have'}"
            _log.warning("%s images in other splits, but none in train: %s", found, first_few(names, 3))


def _warn_of_boxes_beyond(plan: PackPlan, totals: Totals) -> None:
    """Warn if many boxes reach beyond their images, as those do that have another format than is declared.

    Their count is taken out: the packed boxes do not tell it, so a removal could not subtract it.
    """
    declared, counts = plan.recipe.annotations.boxes, [each.counts for each in totals.statistics.values()]
    boxes, beyond = (sum(each[name] for each in counts) for name in ("boxes", "boxes_beyond"))
    for each in counts:
        del each["boxes_beyond"]
    if declared is not None and 10 * beyond > boxes:
        found = f"{beyond:,} of {plural(boxes, 'box')} reach beyond their image, and were cut at its border"
        _log.warning("%s: check that the boxes are %s, as declared", found, declared.format)


def _refusal(plan: PackPlan, lock: WriteLock, listed: str, bad: Sequence[Quarantined]) -> str:
    inputs = plan.source.inputs + len(plan.source.skipped)
    listed = f"{quarantine.describe(bad)}, all listed in {listed}"
    if len(bad) == inputs:
        none = "the only input could not" if inputs == 1 else f"none of the {inputs} inputs could"
        absent = all(each.reason.endswith(os.strerror(errno.ENOENT)) for each in bad)
        parts = plan.recipe.annotations.parts
        remedy = "check that this is the right directory"
        if absent and not any(os.path.splitext(each.path)[1] for each in bad):
            remedy = "the paths have no extension: name the folder of the images with --image-folder, and write ids as "
            remedy += "in the names of the files, with leading zeros"
        elif absent and all("\\" in each.path for each in bad):
            remedy = "write / in place of \\ in the paths"
        elif absent:
            remedy = "paths in a table are absolute or relative to the table, or name their folder with --image-folder"
        elif all(any(part in each.reason for part in parts) for each in bad):
            remedy = "check the parts that --mask, --boxes and --keypoints name"
        return f"{none} be packed: {listed}; {remedy}"
    allowed = f"{plan.max_errors} {'is' if plan.max_errors == 1 else 'are'} allowed"
    repair = "Repair or remove them"
    if lock.blob is not None:  # which names these inputs
        free = f"all files below {lock.storage}" if lock.extends is None else lock.storage.url(lock.name)
        repair += f", remove {free} unless another process works there, and start again"
    return (
        f"{len(bad)} of {plural(inputs, 'input')} could not be packed, {allowed}: {listed}. {repair}, or allow them "
        f"with max_errors= or --max-errors {len(bad)}, then run the same command again, which keeps the packed ones"
    )


def report(plan: PackPlan, made: Manifest, totals: Totals, *, resumed: int = 0, started: float) -> PackReport:
    """Return the report of a plan, given the totals of its jobs and the manifest that they made."""
    source, base = plan.source, plan.base
    whole = sum((made.statistics or {}).values(), Statistics())
    samples, counts = dict.fromkeys(source.splits, 0), sum(totals.statistics.values(), Statistics()).counts
    for name, shard in totals.shards.items():
        samples[name.partition("/")[0]] += shard.samples
    _warn_of_several_kinds(whole.counts)
    if dark := counts["dark_16_bits"]:
        message = "%s of 16 bits with values below a quarter of their range, as of cameras with 12 bits: nearly black"
        message += " in 8 bits, with few levels left; scale the files to the whole range, or pack with --format npy"
        _log.warning(message, plural(dark, "image"))
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
        class_sizes={name: whole.classes[label] for label, name in enumerate(made.classes or ())},
        new_classes=plan.new_classes,
        shards=len(totals.shards),
        bytes_in=counts["bytes_before"],
        bytes_out=sum(shard.bytes for shard in totals.shards.values()),
        counts=counts,
        resumed=resumed,
        seconds=time.monotonic() - started,
    )


def _warn_of_several_kinds(counts: Mapping[str, int]) -> None:
    """Warn if arrays differ in bits or channels, since a loader cannot put them into one batch."""
    kinds = sorted(name for name, number in counts.items() if " bits in " in name and number)
    if len(kinds) > 1:
        described = ", ".join(f"{counts[kind]:,} of {kind}" for kind in kinds)
        message = "images differ in bits or channels: %s; they do not form batches: convert them to one kind, or pack"
        _log.warning(f"{message} each kind as a separate dataset", described)


def _reasons(quarantined: Sequence[Quarantined]) -> dict[str, int]:
    """Return reason → number of inputs. Reasons that differ only in digits count as the first of them."""
    alike: dict[str, list[str]] = {}
    for bad in quarantined:
        kind = os.path.splitext(bad.path)[1].lower() if bad.stage == SKIPPED else bad.stage
        reason = f"{kind or 'without extension'}: {bad.reason}"
        alike.setdefault(re.sub(r"\d+", "N", reason), []).append(reason)
    return {reasons[0]: len(reasons) for reasons in alike.values()}
