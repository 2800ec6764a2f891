"""Packing: images become a dataset.

    source  ->  jobs  ->  executor(job)  ->  commit

`pack` is the whole of it; the modules are its stations, in this order. Nothing here needs torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from shardflow.errors import ConfigError
from shardflow.storage.resolve import open_storage

from .commit import commit
from .executors import executor_maker
from .jobs import layout_of, plan_jobs
from .ledger import Ledger
from .presets import make_recipe
from .report import PackReport, Progress
from .run import run_jobs
from .sources import Collection, Folder, Shards, Table, listed, shared_options

__all__ = ["Collection", "Folder", "PackReport", "Progress", "Shards", "Table", "pack"]


def pack(
    src: Any,
    dst: str | os.PathLike[str],
    *,
    preset: str = "imagenet",
    shuffle: bool = True,
    seed: int = 0,
    shard_samples: int = 2048,
    max_bad: int = 0,
    workers: int | None = None,
    executor: str = "processes",
    ray_address: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[Progress], None] | None = None,
    **settings: Any,
) -> PackReport:
    """Resize the images of a source and write them to `dst` as a dataset.

    The dataset's bytes depend on the inputs and on all arguments before `max_bad`, and on nothing else: the number of
    workers, the executor, and attempts that were stopped leave no trace. After an error, or after the process was
    killed, the same call goes on where the last one stopped.

    Args:
        src: Path or URL of a directory with `CLASS/x.jpg`, `train/CLASS/x.jpg` (other splits beside it), or `x.jpg`;
            of a table (`.csv`, `.tsv`, `.jsonl`, `.parquet`); of a dataset of ours; or of tars, also as a pattern
            ("s3://bucket/{00000..00099}.tar"). Or a Hugging Face dataset, a torchvision dataset, any sized, indexable
            collection or iterable of samples, or a mapping from splits to those. Where there is more to say, a
            `Folder`, `Table`, `Shards` or `Collection`, whose docstrings say what they take.
        dst: Directory, or URL such as "s3://bucket/photos256", that is new, empty, or holds an unfinished pack.
        preset: "imagenet", "compact", "fine", "lossless" or "original" (`pack.presets` says what they are).
        shuffle: Shuffle the inputs of each split before they are cut into shards; otherwise they are sorted by path.
        seed: Of the shuffle.
        shard_samples: Inputs per shard; the last shard of a split may have fewer.
        max_bad: Inputs that may be quarantined before the dataset is not committed.
        workers: Number of processes; None for one per core.
        executor: "processes"; "ray" for the nodes of a Ray cluster, which must reach `src` and `dst` by the same names;
            or "serial" for this process alone.
        ray_address: Of the cluster, such as "auto" or "ray://head:10001"; None for one on this machine.
        storage_options: What fsspec's file system takes, when `dst` is a URL and its client does not find all it needs
            in the environment; they are for `src` as well when that is a URL of the same scheme.
        progress: Called in this thread, now and then.
        settings: Of the recipe, where it is not to be as the preset has it: short_side=256, long_side=None,
            square=False, enlarge=False, filter="bicubic", format="jpeg", quality=90, subsampling="4:2:0"; see
            `pack.recipe.Recipe`.

    Raises:
        ConfigError: An argument is wrong, `src` has no images or is not what it should be, or `dst` holds other files.
        DatasetExistsError: `dst` holds a dataset.
        PackIncompleteError: More than `max_bad` inputs were quarantined, or workers kept dying.
        StoreError: `dst` cannot be written, or another process is writing to it.

    Example:
        >>> report = pack("photos/", "photos256/")              # doctest: +SKIP
        >>> report.inputs == report.packed + report.quarantined # doctest: +SKIP
        True
    """
    recipe = make_recipe(preset, **settings)
    make_executor = executor_maker(executor, workers, ray_address)
    for name, value, least in (("shard_samples", shard_samples, 1), ("max_bad", max_bad, 0)):
        if value < least:
            raise ConfigError(f"{name} is {value}; {least} is the least")
    started = time.monotonic()
    storage = open_storage(dst, storage_options)
    ledger = Ledger(storage)
    ledger.refuse_dataset()
    options = shared_options(src, dst, storage_options)
    with listed(src, options) as source, storage.exclusive_writer() as writer:
        jobs = plan_jobs(
            source,
            os.fspath(dst),
            recipe,
            spool=writer.staging,
            shard_samples=shard_samples,
            seed=seed,
            shuffle=shuffle,
            storage_options=storage_options,
        )
        ledger.begin(jobs, writer)
        resumed = run_jobs(ledger, jobs, make_executor(writer.lock), progress)
        layout = layout_of(jobs, shard_samples=shard_samples, shuffle=shuffle, seed=seed)
        report = commit(ledger, layout, classes=source.classes, recipe=recipe, max_bad=max_bad, ignored=source.ignored)
    return replace(report, resumed=resumed, seconds=time.monotonic() - started)
