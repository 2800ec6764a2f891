"""Extending: new inputs become new shards of an existing dataset, and a new version of its manifest.

The only file that changes is the manifest, which is replaced in one step at the end. The old one is kept as
`manifests/DIGEST.json`, so that the old fingerprint still works. Before that step only new files are written, which no
reader opens: shards with the next numbers, and the next version's quarantine.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shardflow._validation import check_integer
from shardflow._wording import plural
from shardflow.dataset.leftovers import remove_leftovers
from shardflow.dataset.open_dataset import Dataset, open_dataset
from shardflow.dataset.write_lock import clean_up
from shardflow.errors import ConfigError
from shardflow.formats.quarantine import UNFINISHED_NAME

from .base_version import BaseVersion, State
from .commit import PackReport, carry_out, report
from .executors import make_executor
from .ledger import Ledger
from .pack_plan import PackPlan
from .progress import ProgressLike
from .run import Totals
from .sample_recipe import SampleRecipe, refuse_other_annotations
from .sources.items import Items
from .sources.labelling import append_classes
from .sources.resolve import list_source, shared_options
from .sources.source import Source

logger = logging.getLogger(__name__)

ON_CONFLICT = ("error", "add", "skip")

_NAMED = 3


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
) -> PackReport:
    """Add the new inputs of a source to a dataset, with the dataset's recipe, annotations, sharding and shuffling.

    An input is new if the dataset has none with its split and its path below `src`. A known path is compared by content
    (image, label and other parts), which is read only if the metadata of the file or object changed. If it differs,
    `on_conflict` applies, unless the earlier input could not be packed: then the input is new. New classes are numbered
    after the old ones. After an error or a kill the dataset is unchanged, and the same call continues.

    >>> report = shardflow.extend("photos/", "photos256", max_errors=10)

    Args:
        src: As for `pack`: the dataset's source with more inputs, or another source with other names.
        dst: A dataset with its receipts, a directory or a URL.
        on_conflict: Rule for known paths with other content: "error", "add" to pack them as further samples, or "skip"
            to leave them out, as well as inputs that were removed from the dataset. If most new inputs are in the
            dataset under other names, or some were removed from it, only "add" packs them.
        max_errors: Number of new inputs that may be left out, as for `pack`.
        workers, executor, ray_address, storage_options, progress: As for `pack`.

    Raises:
        NotFoundError: The dataset or one of its receipts is missing.
        IntegrityError: A receipt does not belong to its shard.
        ConfigError: An argument is wrong, the dataset does not record its sharding, or another extension has begun.
            `src` differs from the dataset in labels or annotations, is another shardflow dataset, or has conflicting
            inputs. Most of its new inputs are in the dataset under other names, or some were removed from it.
        DatasetExistsError: Another process extended it meanwhile.
        PackIncompleteError: More than `max_errors` inputs cannot be packed, or workers kept dying.
        StoreError: `dst` cannot be written, another process is writing to it, or its storage has no conditional writes.
    """
    runner = make_executor(executor, workers, ray_address)
    _check_on_conflict(on_conflict)
    max_errors = check_integer("max_errors", max_errors, 0)
    started = time.monotonic()
    ledger = Ledger(dst, storage_options)
    # Opened before a directory is made for a missing one.
    with _list_new(src, ledger, _dataset(ledger)) as source, ledger.storage.exclusive_writer() as writer:
        base = BaseVersion.read(_dataset(ledger))  # again: another process may have extended it meanwhile
        plan = plan_extension(source, ledger, base, on_conflict, max_errors)
        if on_conflict == "error" and plan.conflicting:
            raise ConfigError(_refusal(plan.conflicting, source.inputs))
        plan.source.refuse_skipped(max_errors)
        if plan.source.inputs:
            if on_conflict == "error":
                base.check_removed(plan.source, refuse=True)
            _warn_of_columns(base, ledger)
            return carry_out(plan, writer, runner, progress, started)
        clean_up(ledger.storage)
        remove_leftovers(ledger.storage.local_path(""))
        ledger.storage.remove(UNFINISHED_NAME)
        return report(plan, base.manifest, Totals(), started=started)


def preview_extension(
    src: Any,
    dst: str | os.PathLike[str],
    *,
    on_conflict: str = "error",
    storage_options: Mapping[str, Any] | None = None,
) -> PackPlan:
    """Return the plan of an `extend` with the same arguments, for its counts; the source is closed.

    Nothing is written. Images are read only if their content must be compared, all new ones if samples were removed
    from the dataset before; conflicts are not an error.
    """
    _check_on_conflict(on_conflict)
    ledger = Ledger(dst, storage_options)
    dataset = _dataset(ledger)
    with _list_new(src, ledger, dataset) as source:
        base = BaseVersion.read(dataset)
        plan = plan_extension(source, ledger, base, on_conflict)
        if plan.source.inputs:
            _warn_of_columns(base, ledger)
            if on_conflict != "skip":
                base.check_removed(plan.source, refuse=False)
        return plan


def _warn_of_columns(base: BaseVersion, ledger: Ledger) -> None:
    if base.manifest.columns:
        names = ", ".join(base.manifest.columns)
        remedy = f"`shardflow columns add {ledger.storage} TABLE --replace` gives them values"
        logger.warning("the new samples have no values in the columns %s; %s", names, remedy)


def _check_on_conflict(on_conflict: str) -> None:
    if on_conflict not in ON_CONFLICT:
        raise ConfigError(f"on_conflict must be one of {', '.join(ON_CONFLICT)}, found {on_conflict!r}")


def _list_new(src: Any, ledger: Ledger, dataset: Dataset) -> Source:
    """List a source as the dataset that it extends was listed."""
    parts = dataset.manifest.annotations.parts
    return list_source(src, shared_options(src, ledger.url, ledger.storage_options), parts=parts or None)


def _dataset(ledger: Ledger) -> Dataset:
    return open_dataset(ledger.url, storage_options=ledger.storage_options)


def plan_extension(
    source: Source, ledger: Ledger, base: BaseVersion, on_conflict: str, max_errors: int = 0
) -> PackPlan:
    """Plan to pack the inputs of a source that a dataset lacks; see `extend` for the errors."""
    recipe = SampleRecipe.of(base.manifest)
    refuse_other_annotations(source, recipe.annotations)
    if source.classes and base.manifest.classes and set(source.classes).isdisjoint(base.manifest.classes):
        names = f"{source.classes[0]!r}, the dataset such as {base.manifest.classes[0]!r}"
        remedy = "if they are misspelt, correct them; for a table, repeat the label column"
        logger.warning("all classes of the source are new, such as %s; %s", names, remedy)
    source = append_classes(source, base.manifest.classes, base.labelled)
    for split in source.splits.keys() & base.labelled:
        _refuse_other_labelling(split, source.splits[split], base.labelled[split])
    states = base.compare(source)

    def inputs(*wanted: State) -> dict[str, Items]:
        chosen = {split: items.take(np.isin(states[split], wanted)) for split, items in source.splits.items()}
        return {split: items for split, items in chosen.items() if len(items)}

    before = {bad.path for bad in base.skipped}
    new = replace(
        source,
        splits=inputs(State.NEW, *([State.CHANGED] if on_conflict == "add" else [])),
        skipped=[bad for bad in source.skipped if bad.path not in before],
    )
    if on_conflict == "add":
        base.warn_of_same_images(replace(source, splits=inputs(State.CHANGED)))
    else:
        base.refuse_copies(new)
    if on_conflict == "skip":
        new = base.without_removed(new)
    return PackPlan.of(
        new,
        ledger,
        recipe,
        base.sharding,
        max_errors=max_errors,
        base=base,
        known=sum(map(len, inputs(State.KNOWN).values())),
        conflicting=[item.path for items in inputs(State.CHANGED).values() for item in items],
    )


def _refuse_other_labelling(split: str, new: Items, is_labelled: bool) -> None:
    if any(item.label is not None for item in new) != is_labelled:
        there, here = ("labels", "none") if is_labelled else ("no labels", "some")
        raise ConfigError(f"the dataset's split {split!r} has {there}, the source's has {here}; use another split")


def _refusal(paths: Sequence[str], inputs: int) -> str:
    named = ", ".join(map(repr, paths[:_NAMED])) + (f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else "")
    return (
        f"{len(paths)} of {plural(inputs, 'input')} with a path of the dataset but another image, label, split or "
        f"column, such as 1.0 for 1: {named}. `verify --source` names the differences. Pass on_conflict= or "
        "--on-conflict skip to leave them out, or add to pack them too, as for new samples that are named by their "
        "position, such as 'train#0'; rename them; or `shardflow remove` the earlier samples"
    )
