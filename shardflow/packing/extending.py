"""Extend: new inputs become new shards of a dataset that is there, and a new version of its manifest.

No file of the dataset is touched but the manifest, which is replaced in one step at the very end. What it was is kept
as `manifests/DIGEST.json`, so that whoever holds the old fingerprint can go on with what it stands for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardflow.dataset.dataset import open_dataset
from shardflow.errors import ConfigError
from shardflow.formats.manifest import Manifest
from shardflow.formats.sharding import Sharding
from shardflow.storage.resolve import open_storage
from shardflow.storage.write_lock import acquire_to_extend, clean_up

from .append import new_jobs, receipts_of, recipe_of, refuse_other, renumbered, without
from .commit import commit
from .executors import executor_maker
from .jobs import content_of, layout_of
from .ledger import Ledger
from .report import Progress
from .run import run_jobs
from .sources import listed, shared_options


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendReport:
    """What an extension did. `inputs` is always the sum of `packed` and `quarantined`.

    Attributes:
        fingerprint, previous: Of the dataset now, and before; they are the same when nothing was new.
        known: Inputs of the source that the dataset had been made from already; they were left alone.
        inputs, packed, quarantined: Numbers of new images.
        shards: Number of new shards.
        classes: Names of the new classes, in the order of their labels.
        resumed: New inputs that an earlier attempt had done.
        seconds: Duration of this attempt.
    """

    fingerprint: str
    previous: str
    known: int
    inputs: int = 0
    packed: int = 0
    quarantined: int = 0
    shards: int = 0
    classes: tuple[str, ...] = ()
    resumed: int = 0
    seconds: float = 0.0


def extend(
    src: Any,
    dst: str | os.PathLike[str],
    *,
    max_bad: int = 0,
    workers: int | None = None,
    executor: str = "processes",
    ray_address: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> ExtendReport:
    """Add what is new in `src` to the dataset at `dst`, as it was packed: recipe, shard size and shuffling are its own.

    New are the inputs whose split and path below `src` no receipt of the dataset names; a file that was changed but
    kept its path is not. New classes get the numbers after the old ones. An attempt that was stopped is no harm: until
    its end the dataset is what it was, and the same call goes on.

    Args:
        src: What `pack` takes: the source of the dataset, grown, or another with other names.
        dst: A dataset that this machine has packed or a copy with its receipts, a directory or a URL.
        max_bad: New inputs that may be quarantined before nothing is committed.
        workers, executor, ray_address, storage_options, progress: As for `pack`.

    Raises:
        NotFoundError: There is no dataset, or a receipt of it is missing.
        ConfigError: An argument is wrong, the dataset does not say how it was packed, only one of the two has labels,
            `src` is another dataset of ours than the one it was packed from, or another extension has been begun there.
        DatasetExistsError: Somebody else extended it meanwhile.
        PackIncompleteError: More than `max_bad` inputs were quarantined, or workers kept dying.
        StoreError: `dst` cannot be written, or another process is writing to it.
    """
    make_executor = executor_maker(executor, workers, ray_address)
    if max_bad < 0:
        raise ConfigError(f"max_bad is {max_bad}; 0 is the least")
    started = time.monotonic()
    storage = open_storage(dst, storage_options)
    open_dataset(dst, storage_options=storage_options)  # before a directory is made for what is not there
    options = shared_options(src, dst, storage_options)
    with listed(src, options) as source, storage.exclusive_writer() as writer:
        old = open_dataset(dst, storage_options=storage_options).manifest
        layout = _layout(old, str(storage))
        recipe = recipe_of(old)
        classes, source = renumbered(source, old.classes)
        ledger = Ledger(storage)
        receipts = receipts_of(ledger, layout)
        refuse_other(source, receipts)
        fresh = without(source, receipts)
        report = ExtendReport(fingerprint=old.fingerprint, previous=old.fingerprint, known=source.inputs - fresh.inputs)
        if not fresh.inputs:
            clean_up(storage)
            return replace(report, seconds=time.monotonic() - started)
        jobs = new_jobs(
            fresh, layout, dst=os.fspath(dst), recipe=recipe, spool=writer.staging, storage_options=storage_options
        )
        acquire_to_extend(storage, content_of(jobs), old.fingerprint, writer)
        resumed = run_jobs(ledger, jobs, make_executor(writer.lock), progress)
        new = layout_of(jobs, shard_samples=layout.shard_samples, shuffle=layout.shuffle, seed=layout.seed)
        whole = commit(
            ledger,
            layout.extended(new.jobs, new.inputs),
            classes=classes,
            recipe=recipe,
            max_bad=max_bad,
            ignored=fresh.ignored,
            replacing=old,
            before=receipts,
        )
    packed = whole.packed - old.samples
    return replace(
        report,
        fingerprint=whole.fingerprint,
        inputs=fresh.inputs,
        packed=packed,
        quarantined=fresh.inputs - packed,
        shards=whole.shards - sum(map(len, old.splits.values())),
        classes=(classes or ())[len(old.classes or ()) :],
        resumed=resumed,
        seconds=time.monotonic() - started,
    )


def _layout(made: Manifest, place: str) -> Sharding:
    if made.sharding is None:
        raise ConfigError(f"{place} does not say how its inputs were cut into shards, so nothing is added; pack anew")
    return made.sharding
