"""Packing: images become a dataset: source -> jobs -> executor(job) -> commit."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardflow._validation import check_integer
from shardflow.formats.annotations import Annotations
from shardflow.storage.resolve import open_storage
from shardflow.storage.urls import url_text

from .annotations import check_annotations, warn_of_undeclared
from .commit import PackReport, Totals, commit
from .executors import executor_maker
from .jobs import plan_jobs, sharding_of
from .ledger import Ledger
from .progress import Progress, ProgressLike
from .recipe import make_recipe
from .run import run_jobs
from .sources.resolve import list_source, shared_options

__all__ = ["PackReport", "Progress", "pack"]


def pack(
    src: Any,
    dst: str | os.PathLike[str],
    *,
    preset: str = "imagenet",
    annotations: Annotations | None = None,
    shuffle: bool = True,
    seed: int = 0,
    shard_samples: int = 2048,
    max_errors: int = 0,
    workers: int | None = None,
    executor: str = "processes",
    ray_address: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: ProgressLike = None,
    **settings: Any,
) -> PackReport:
    """Resize the images of a source and write them to `dst` as a dataset.

    The dataset's bytes depend on the inputs and on all arguments before `max_errors`, and on nothing else: not on the
    number of workers, the executor, or interruptions. After an error, or after the process was killed, the same call
    goes on where the last one stopped.

    Args:
        src: Path or URL of a directory with `CLASS/x.jpg`, `train/CLASS/x.jpg` (other splits beside it), or `x.jpg`;
            of a table (`.csv`, `.tsv`, `.jsonl`, `.parquet`); of a COCO set (`.json`); of a shardflow dataset; or of
            tars, also as a pattern ("s3://bucket/{00000..00099}.tar"). Or a Hugging Face dataset, a torchvision
            dataset, any sized, indexable collection or iterable of samples, or a mapping from splits to those. For more
            options, a `Folder`, `Table`, `Coco`, `Shards` or `Collection`.
        dst: Directory, or URL such as "s3://bucket/photos256", that is new, empty, or holds an unfinished pack.
        preset: "imagenet", "compact", "fine", "lossless" or "original"; see `packing.recipe.PRESETS`.
        annotations: Which parts beside the images are masks, and where boxes and keypoints stand, so that they move
            with the pixels; besides what the source declares itself: the mask column of a table, all of a COCO set or
            a dataset. Other parts are kept byte for byte.
        shuffle: Shuffle the inputs of each split before they are divided into shards; otherwise they keep the order of
            the source.
        seed: Shuffle seed.
        shard_samples: Inputs per shard; the last shard of a split may have fewer.
        max_errors: How many inputs may be left out: quarantined, or skipped because their kind of image is not read.
            With more there is no dataset.
        workers: Number of processes; None for one per core.
        executor: "processes"; "ray" for the nodes of a Ray cluster, which must reach `src` and `dst` by the same names;
            or "serial" for this process alone.
        ray_address: Address of the cluster, such as "auto" or "ray://head:10001"; None for one on this machine.
        storage_options: Options of fsspec's file system, when `dst` is a URL and its client does not find all that it
            needs in the environment; they are for `src` as well when that is a URL of the same scheme.
        progress: Called with the `Progress` now and then, in this thread; True for a progress bar, also in a notebook.
        settings: Settings of the recipe that differ from the preset: short_side=256, long_side=None, square=False,
            enlarge=False, filter="bicubic", format="jpeg", quality=90, subsampling="4:2:0",
            max_pixels=110_000_000; see `packing.recipe.Recipe`.

    Raises:
        ConfigError: An argument is wrong, `src` has no images or is not a source, or `dst` holds other files.
        DatasetExistsError: `dst` holds a dataset.
        PackIncompleteError: More than `max_errors` inputs cannot be packed, or workers kept dying.
        StoreError: `dst` cannot be written, or another process is writing to it.

    Example:
        >>> report = pack("photos/", "photos256/")              # doctest: +SKIP
        >>> report.inputs == report.packed + report.quarantined + report.skipped # doctest: +SKIP
        True
    """
    recipe = make_recipe(preset, **settings)
    make_executor = executor_maker(executor, workers, ray_address)
    shard_samples = check_integer("shard_samples", shard_samples, 1)
    seed, max_errors = check_integer("seed", seed), check_integer("max_errors", max_errors, 0)
    recipe.warn_without_tables()
    started = time.monotonic()
    storage = open_storage(dst, storage_options, to_write=True)
    ledger, totals = Ledger(storage), Totals()
    ledger.refuse_dataset()
    options = shared_options(src, dst, storage_options)
    declared = check_annotations(annotations)
    with list_source(src, options, parts=declared.parts) as source, storage.exclusive_writer() as writer:
        source.refuse_skipped(max_errors)
        declared = source.annotations.joined(declared)
        warn_of_undeclared(source, declared)
        jobs = plan_jobs(
            source,
            url_text(dst),
            recipe,
            annotations=declared,
            staging=writer.staging,
            shard_samples=shard_samples,
            seed=seed,
            shuffle=shuffle,
            storage_options=storage_options,
        )
        lock = ledger.begin(jobs, writer)
        resumed = run_jobs(
            ledger, jobs, make_executor(writer.lock), staging=writer.staging, on_receipt=totals.add, progress=progress
        )
        sharding = sharding_of(jobs, shard_samples=shard_samples, shuffle=shuffle, seed=seed)
        report = commit(
            ledger,
            lock,
            jobs,
            totals,
            sharding,
            classes=source.classes,
            recipe=recipe,
            annotations=declared,
            max_errors=max_errors,
            skipped=source.skipped,
            ignored=source.ignored,
        )
    return replace(report, resumed=resumed, seconds=time.monotonic() - started)
