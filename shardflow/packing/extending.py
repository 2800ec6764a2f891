"""Extending: new inputs become new shards of an existing dataset, and a new version of its manifest.

No file of the dataset is changed but the manifest, which is replaced in one step at the end. The old one is kept as
`manifests/DIGEST.json`, so that a checkpoint or an experiment with the old fingerprint can go on. Before that step only
further files are written, which no reader looks at: shards of the next numbers, and the next version's quarantine.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow._validation import check_integer
from shardflow.dataset.dataset import Dataset, open_dataset
from shardflow.errors import ConfigError, FormatError, NotFoundError
from shardflow.formats.manifest import Manifest
from shardflow.formats.quarantine import SKIPPED, UNFINISHED_NAME, Quarantined
from shardflow.formats.receipt import Receipt, from_bytes
from shardflow.formats.sharding import Sharding, job_name
from shardflow.storage.resolve import open_storage
from shardflow.storage.storage import Storage
from shardflow.storage.urls import url_text
from shardflow.storage.write_lock import acquire_to_extend, clean_up

from .annotations import refuse_other_annotations
from .commit import Totals, commit
from .executors import executor_maker
from .jobs import Job, content_of, digest_of, plan_jobs, sharding_of
from .known_inputs import KnownInputs, State, compare_inputs
from .ledger import Ledger
from .progress import ProgressLike
from .recipe import Recipe, recipe_of
from .run import run_jobs
from .sources.items import Items
from .sources.labelling import append_classes
from .sources.resolve import list_source, shared_options
from .sources.source import Source

logger = logging.getLogger(__name__)

ON_CONFLICT = ("error", "add", "skip")

_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendReport:
    """The result of an extension. `inputs` is always the sum of `packed`, `quarantined` and `skipped`.

    Attributes:
        fingerprint, previous: The dataset's identity now, and before; they are the same when nothing was new.
        known: Inputs of the source that the dataset already has; they were not touched.
        conflicting: Inputs with the path of one that the dataset has, and another content; with `on_conflict="add"`
            they are among `inputs`, with "skip" they are not.
        inputs, packed, quarantined, skipped: Numbers of new images, as in `PackReport`.
        shards: Number of new shards.
        classes: Names of the new classes, in the order of their labels.
        resumed: New inputs that an earlier attempt had done.
        seconds: Duration of this attempt.
    """

    fingerprint: str
    previous: str
    known: int
    conflicting: int = 0
    inputs: int = 0
    packed: int = 0
    quarantined: int = 0
    skipped: int = 0
    shards: int = 0
    classes: tuple[str, ...] = ()
    resumed: int = 0
    seconds: float = 0.0


def extend(
    src: Any,
    dst: str | os.PathLike[str],
    *,
    on_conflict: str = "error",
    max_errors: int = 0,
    workers: int | None = None,
    executor: str = "processes",
    ray_address: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: ProgressLike = None,
) -> ExtendReport:
    """Add the new inputs of a source to a dataset, with the dataset's own recipe, annotations, sharding and shuffling.

    An input is new when the dataset has none with its split and its path below `src`. One that has both is compared by
    its content (image, label and other parts), which is read only where file system or server say that it may differ.
    If it differs, `on_conflict` decides; but in place of one that could not be packed it is new. New classes get the
    numbers after the old ones. After an error, or after the process was killed, the dataset is what it was, and the
    same call goes on.

    Args:
        src: As for `pack`: the source of the dataset, grown, or another with other names.
        dst: A dataset with its receipts, a directory or a URL.
        on_conflict: What to do with inputs that have the path of another one in the dataset: "error", "add" to pack
            them as further samples, or "skip" to leave them out.
        max_errors: How many new inputs may be left out, as for `pack`.
        workers, executor, ray_address, storage_options, progress: As for `pack`.

    Raises:
        NotFoundError: There is no dataset, or a receipt of it is missing.
        IntegrityError: A receipt of it is not that of its shard.
        ConfigError: An argument is wrong, the dataset does not record how it was packed, only one of the two has
            labels, `src` declares other annotations, is another shardflow dataset than the one it was packed from, or
            has inputs that conflict with those of the dataset, or another extension has begun.
        DatasetExistsError: Another process extended it meanwhile.
        PackIncompleteError: More than `max_errors` inputs cannot be packed, or workers kept dying.
        StoreError: `dst` cannot be written, another process is writing to it, or its storage has no conditional writes.
    """
    make_executor = executor_maker(executor, workers, ray_address)
    if on_conflict not in ON_CONFLICT:
        raise ConfigError(f"on_conflict is {on_conflict!r}; allowed are {', '.join(ON_CONFLICT)}")
    max_errors = check_integer("max_errors", max_errors, 0)
    started = time.monotonic()
    storage = open_storage(dst, storage_options, to_write=True)
    # Opened before a directory is made for a missing one.
    declared = open_dataset(dst, storage_options=storage_options).manifest.annotations
    options = shared_options(src, dst, storage_options)
    with list_source(src, options, parts=declared.parts) as source, storage.exclusive_writer() as writer:
        dataset = open_dataset(dst, storage_options=storage_options)
        old = dataset.manifest
        extension = plan_extension(source, dataset)
        if on_conflict == "error" and extension.conflicting:
            raise ConfigError(_refusal(extension))
        report = ExtendReport(
            fingerprint=old.fingerprint,
            previous=old.fingerprint,
            known=extension.known,
            conflicting=len(extension.conflicting),
        )
        fresh = extension.fresh(add_conflicting=on_conflict == "add")
        fresh.refuse_skipped(max_errors)
        if not fresh.inputs:
            clean_up(storage)
            storage.remove(UNFINISHED_NAME)
            return replace(report, seconds=time.monotonic() - started)
        extension.recipe.warn_without_tables()
        ledger, sharding = Ledger(storage), extension.sharding
        jobs = extension.jobs(fresh, dst=url_text(dst), staging=writer.staging, storage_options=storage_options)
        lock = acquire_to_extend(storage, lambda: content_of(jobs), old.fingerprint, writer)
        totals = Totals()
        resumed = run_jobs(
            ledger, jobs, make_executor(writer.lock), staging=writer.staging, on_receipt=totals.add, progress=progress
        )
        added = sharding_of(jobs, shard_samples=sharding.shard_samples, shuffle=sharding.shuffle, seed=sharding.seed)
        whole = commit(
            ledger,
            lock,
            jobs,
            totals,
            sharding.extended(added.jobs, added.inputs),
            classes=fresh.classes,
            recipe=extension.recipe,
            annotations=old.annotations,
            max_errors=max_errors,
            skipped=fresh.skipped,
            ignored=fresh.ignored,
            replacing=old,
            replaced_receipts=extension.receipts,
            replaced_skipped=extension.still_skipped(fresh),
        )
    packed = whole.packed - old.samples
    return replace(
        report,
        fingerprint=whole.fingerprint,
        inputs=fresh.inputs + len(fresh.skipped),
        packed=packed,
        quarantined=fresh.inputs - packed,
        skipped=len(fresh.skipped),
        shards=whole.shards - sum(map(len, old.splits.values())),
        classes=extension.new_classes,
        resumed=resumed,
        seconds=time.monotonic() - started,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """A source compared with a dataset.

    Attributes:
        old: The manifest of the dataset; `sharding`, `recipe` and `receipts` are the dataset's as well.
        skipped: Images that are not in the dataset because their kind was not read.
        source: All inputs of the source; its labels continue the numbering of the dataset.
        states: Split → the `State` of each of its inputs, int8 [inputs].
    """

    old: Manifest
    sharding: Sharding
    recipe: Recipe
    receipts: Mapping[str, Receipt]
    skipped: Sequence[Quarantined]
    source: Source
    states: Mapping[str, npt.NDArray[np.int8]]

    @property
    def known(self) -> int:
        """Number of inputs that the dataset has."""
        return sum(int(np.isin(states, (State.KNOWN, State.UNCHECKED)).sum()) for states in self.states.values())

    @property
    def conflicting(self) -> Sequence[str]:
        """Paths of the inputs that conflict with one of the dataset."""
        return [item.path for items in self._inputs(State.CHANGED).values() for item in items]

    @property
    def new_classes(self) -> tuple[str, ...]:
        """Names of the classes that the dataset does not have."""
        return (self.source.classes or ())[len(self.old.classes or ()) :]

    def fresh(self, *, add_conflicting: bool) -> Source:
        """Return the source of the inputs that have to be packed, and of the images that are skipped since."""
        fresh = self._inputs(State.NEW, *([State.CHANGED] if add_conflicting else []))
        before = {bad.path for bad in self.skipped}
        skipped = [bad for bad in self.source.skipped if bad.path not in before]
        return replace(self.source, splits={split: items for split, items in fresh.items() if items}, skipped=skipped)

    def still_skipped(self, fresh: Source) -> list[Quarantined]:
        """Return the images that were skipped before but those that are inputs now, because their kind is read now."""
        read = {item.path for items in fresh.splits.values() for item in items} if self.skipped else set()
        return [bad for bad in self.skipped if bad.path not in read]

    def jobs(self, fresh: Source, **place: Any) -> list[Job]:
        """Return the jobs of these inputs, numbered after the old ones."""
        sharding = self.sharding
        jobs = plan_jobs(
            fresh,
            recipe=self.recipe,
            annotations=self.old.annotations,
            shard_samples=sharding.shard_samples,
            seed=sharding.seed,
            shuffle=sharding.shuffle,
            **place,
        )
        renamed = []
        for job in jobs:
            split, _, number = job.name.partition("/")
            name = job_name(split, sharding.jobs.get(split, 0) + int(number))
            renamed.append(replace(job, name=name, first=sharding.inputs.get(split, 0) + job.first))
        return renamed

    def _inputs(self, *states: State) -> dict[str, Items]:
        return {split: items.take(np.isin(self.states[split], states)) for split, items in self.source.splits.items()}


def plan_extension(source: Source, dataset: Dataset) -> Extension:
    """Compare a source with a dataset; see `extend` for the errors."""
    storage, old = dataset.storage, dataset.manifest
    if old.roots:
        message = f"{storage} is made of tars that are elsewhere (`shardflow info {storage}` says where)"
        raise ConfigError(f"{message}: extend the dataset that they belong to, and make this one of it again")
    if (sharding := old.sharding) is None:
        message = f"{storage} does not record how its inputs were divided into shards, so it cannot be extended"
        raise ConfigError(f"{message}; pack it again")
    recipe = recipe_of(old)
    refuse_other_annotations(source, old.annotations)
    source = append_classes(source, old.classes)
    receipts = _receipts(storage, sharding)
    _refuse_other_dataset(source, receipts)
    states = {
        split: compare_inputs(items, KnownInputs(of for _, of in _of_split(receipts, split)), source.reader)
        for split, items in source.splits.items()
    }
    skipped = [bad for bad in dataset.quarantine() if bad.stage == SKIPPED]
    if len(skipped) != old.skipped:
        message = f"{storage} lacks its quarantine, which names the {old.skipped} images that were skipped"
        raise NotFoundError(f"{message}; restore it from where it was packed")
    if unchecked := sum(int((found == State.UNCHECKED).sum()) for found in states.values()):
        logger.warning(
            "%d inputs were packed by an older shardflow, which recorded their names alone: whether they have changed "
            "since could not be compared",
            unchecked,
        )
    return Extension(
        old=old,
        sharding=sharding,
        recipe=recipe,
        receipts=receipts,
        skipped=skipped,
        source=source,
        states=states,
    )


def _refusal(extension: Extension) -> str:
    paths = extension.conflicting
    named = ", ".join(map(repr, paths[:_NAMED])) + (f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else "")
    return (
        f"{len(paths)} of {extension.source.inputs} inputs have the path of one in the dataset and another content: "
        f"{named}. Pack them as further samples with --on-conflict add, leave them out with --on-conflict skip, "
        "rename them, or pack all into a new dataset to have them in place of the old ones"
    )


def _receipts(storage: Storage, sharding: Sharding) -> dict[str, Receipt]:
    """Return the receipts of all jobs by their names."""
    try:
        return {name: from_bytes(storage.read(f"{name}.json")) for name in sharding.names()}
    except (NotFoundError, FormatError) as error:
        message = f"extending needs the .json file beside each shard, the list of its inputs ({error})"
        raise NotFoundError(f"{message}; restore them from where it was packed") from error


def _refuse_other_dataset(source: Source, receipts: Mapping[str, Receipt]) -> None:
    """Refuse another shardflow dataset than the one in the receipts: samples of all datasets have the same names."""
    for split, items in source.splits.items() if source.is_dataset else ():
        rows = {item.path: row for row, item in enumerate(items)}
        for name, receipt in _of_split(receipts, split):
            paths = receipt.inputs()
            found = items.take(np.array([rows[path] for path in paths if path in rows], dtype=np.int64))
            if len(found) and (len(found) < len(paths) or digest_of(found, receipt.first) != receipt.items_sha256):
                raise ConfigError(
                    f"the source is another dataset than the one from which shard {name} was packed: its sample "
                    f"{found[0].path!r} has the same name there, so new samples cannot be told from old ones; pack it "
                    "by itself, and combine both with `shardflow merge`"
                )


def _of_split(receipts: Mapping[str, Receipt], split: str) -> Iterator[tuple[str, Receipt]]:
    return ((name, receipt) for name, receipt in receipts.items() if name.partition("/")[0] == split)
