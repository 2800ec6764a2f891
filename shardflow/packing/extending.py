"""Extending: new inputs become new shards of an existing dataset, and a new version of its manifest.

No file of the dataset is changed but the manifest, which is replaced in one step at the end. The old one is kept as
`manifests/DIGEST.json`, so that a checkpoint or an experiment with the old fingerprint can go on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardflow.dataset.dataset import open_dataset
from shardflow.errors import ConfigError, FormatError, NotFoundError
from shardflow.formats.receipt import Receipt, from_bytes
from shardflow.formats.sharding import Sharding, job_name
from shardflow.storage.resolve import open_storage
from shardflow.storage.storage import Storage
from shardflow.storage.write_lock import acquire_to_extend, clean_up

from .commit import Totals, commit
from .executors import executor_maker
from .jobs import Job, content_of, digest_of, plan_jobs, sharding_of
from .ledger import Ledger
from .recipe import recipe_of
from .run import Progress, run_jobs
from .sources.labelling import append_classes
from .sources.resolve import list_source, shared_options
from .sources.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendReport:
    """The result of an extension. `inputs` is always the sum of `packed` and `quarantined`.

    Attributes:
        fingerprint, previous: The dataset's identity now, and before; they are the same when nothing was new.
        known: Inputs of the source that the dataset already has; they were not touched.
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
    """Add the new inputs of a source to a dataset, with the dataset's own recipe, shard size and shuffling.

    An input is new when no receipt of the dataset names its split and its path below `src`; a file that was changed but
    kept its path is not new. New classes get the numbers after the old ones. After an error, or after the process was
    killed, the dataset is what it was, and the same call goes on.

    Args:
        src: As for `pack`: the source of the dataset, grown, or another with other names.
        dst: A dataset with its receipts, a directory or a URL.
        max_bad: New inputs that may be quarantined before nothing is committed.
        workers, executor, ray_address, storage_options, progress: As for `pack`.

    Raises:
        NotFoundError: There is no dataset, or a receipt of it is missing.
        ConfigError: An argument is wrong, the dataset does not record how it was packed, only one of the two has
            labels, `src` is another shardflow dataset than the one it was packed from, or another extension has begun.
        DatasetExistsError: Another process extended it meanwhile.
        PackIncompleteError: More than `max_bad` inputs were quarantined, or workers kept dying.
        StoreError: `dst` cannot be written, or another process is writing to it.
    """
    make_executor = executor_maker(executor, workers, ray_address)
    if max_bad < 0:
        raise ConfigError(f"max_bad is {max_bad}; 0 is the least")
    started = time.monotonic()
    storage = open_storage(dst, storage_options)
    open_dataset(dst, storage_options=storage_options)  # before a directory is made for a missing one
    options = shared_options(src, dst, storage_options)
    with list_source(src, options) as source, storage.exclusive_writer() as writer:
        old = open_dataset(dst, storage_options=storage_options).manifest
        if (sharding := old.sharding) is None:
            message = f"{storage} does not record how its inputs were divided into shards, so it cannot be extended"
            raise ConfigError(f"{message}; pack it again")
        recipe = recipe_of(old)
        source = append_classes(source, old.classes)
        ledger = Ledger(storage)
        receipts = _receipts(storage, sharding)
        _refuse_other_dataset(source, receipts)
        fresh = _without_known(source, receipts)
        report = ExtendReport(fingerprint=old.fingerprint, previous=old.fingerprint, known=source.inputs - fresh.inputs)
        if not fresh.inputs:
            clean_up(storage)
            return replace(report, seconds=time.monotonic() - started)
        jobs = _new_jobs(
            fresh, sharding, dst=os.fspath(dst), recipe=recipe, staging=writer.staging, storage_options=storage_options
        )
        acquire_to_extend(storage, content_of(jobs), old.fingerprint, writer)
        totals = Totals()
        resumed = run_jobs(
            ledger, jobs, make_executor(writer.lock), staging=writer.staging, on_receipt=totals.add, progress=progress
        )
        added = sharding_of(jobs, shard_samples=sharding.shard_samples, shuffle=sharding.shuffle, seed=sharding.seed)
        whole = commit(
            ledger,
            totals,
            sharding.extended(added.jobs, added.inputs),
            classes=source.classes,
            recipe=recipe,
            max_bad=max_bad,
            skipped=fresh.skipped,
            replacing=old,
            replaced_receipts=receipts,
        )
    packed = whole.packed - old.samples
    return replace(
        report,
        fingerprint=whole.fingerprint,
        inputs=fresh.inputs,
        packed=packed,
        quarantined=fresh.inputs - packed,
        shards=whole.shards - sum(map(len, old.splits.values())),
        classes=(source.classes or ())[len(old.classes or ()) :],
        resumed=resumed,
        seconds=time.monotonic() - started,
    )


def _receipts(storage: Storage, sharding: Sharding) -> dict[str, Receipt]:
    """Return the receipts of all jobs by their names."""
    try:
        return {name: from_bytes(storage.read(f"{name}.json")) for name in sharding.names()}
    except (NotFoundError, FormatError) as error:
        message = f"extending needs all receipts, which name the inputs of the dataset ({error})"
        raise NotFoundError(f"{message}; restore the .json files beside the shards from where it was packed") from error


def _without_known(source: Source, receipts: Mapping[str, Receipt]) -> Source:
    """Return the source without the inputs that receipts name, by their split and path."""
    fresh = {}
    for split, items in source.splits.items():
        known: set[str] = set()
        for _, receipt in _of_split(receipts, split):
            known.update(receipt.sources, (bad.path for bad in receipt.quarantined))
        fresh[split] = items.take(np.array([item.path not in known for item in items], dtype=bool))
    return replace(source, splits={split: items for split, items in fresh.items() if items})


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


def _new_jobs(fresh: Source, sharding: Sharding, **place: Any) -> list[Job]:
    """Return the jobs of the new inputs, numbered after the old ones."""
    jobs = plan_jobs(fresh, shard_samples=sharding.shard_samples, seed=sharding.seed, shuffle=sharding.shuffle, **place)
    renamed = []
    for job in jobs:
        split, _, number = job.name.partition("/")
        name = job_name(split, sharding.jobs.get(split, 0) + int(number))
        renamed.append(replace(job, name=name, first=sharding.inputs.get(split, 0) + job.first))
    return renamed
