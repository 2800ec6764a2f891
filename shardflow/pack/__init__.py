"""Packing: a folder of images becomes a dataset.

    source  ->  jobs  ->  executor(job)  ->  commit

`pack` is the whole of it; the modules are its stations, in this order. Nothing here needs torch.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from shardflow.errors import ConfigError, StoreError
from shardflow.spool import spool_for
from shardflow.store import open_store

from .commit import commit
from .executors import Executor, Processes, Serial
from .job import PieceResult, plan_jobs
from .ledger import Ledger
from .recipe import Recipe
from .report import PackReport, Progress
from .source import list_source

__all__ = ["PackReport", "Progress", "pack"]

EXECUTORS = ("processes", "serial")


def pack(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    short_side: int = 256,
    quality: int = 90,
    subsampling: str = "4:2:0",
    keep_small: bool = False,
    enlarge: bool = False,
    shuffle: bool = True,
    seed: int = 0,
    shard_samples: int = 2048,
    max_bad: int = 0,
    workers: int | None = None,
    executor: str = "processes",
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> PackReport:
    """Resize the images below `src` and write them to `dst` as a dataset.

    The dataset's bytes depend on the inputs and on all arguments before `max_bad`, and on nothing else: the number of
    workers, the executor, and attempts that were stopped leave no trace. After an error, or after the process was
    killed, the same call goes on where the last one stopped.

    Args:
        src: Directory with `CLASS/x.jpg`, `train/CLASS/x.jpg` (other splits beside it), or `x.jpg`.
        dst: Directory, or URL such as "s3://bucket/photos256", that is new, empty, or holds an unfinished pack.
        short_side: Pixels of the shorter side; smaller images keep their size.
        quality: JPEG quality, 1 … 100.
        subsampling: Chroma subsampling: "4:2:0", "4:2:2" or "4:4:4".
        keep_small: Copy the bytes of images that need no change instead of encoding them again.
        enlarge: Enlarge smaller images to `short_side`.
        shuffle: Shuffle the inputs of each split before they are cut into shards; otherwise they are sorted by path.
        seed: Of the shuffle.
        shard_samples: Inputs per shard; the last shard of a split may have fewer.
        max_bad: Inputs that may be quarantined before the dataset is not committed.
        workers: Number of processes; None for one per core.
        executor: "processes", or "serial" for this process alone.
        storage_options: What fsspec's file system takes, when `dst` is a URL and its client does not find all it needs
            in the environment.
        progress: Called in this thread, now and then.

    Raises:
        ConfigError: An argument is wrong, `src` has no images or mixes layouts, or `dst` holds other files.
        DatasetExistsError: `dst` holds a dataset.
        PackIncompleteError: More than `max_bad` inputs were quarantined, or workers kept dying.
        StoreError: `dst` cannot be written, or another process is writing to it.

    Example:
        >>> report = pack("photos/", "photos256/")              # doctest: +SKIP
        >>> report.inputs == report.packed + report.quarantined # doctest: +SKIP
        True
    """
    recipe = Recipe(
        short_side=short_side, quality=quality, subsampling=subsampling, keep_small=keep_small, enlarge=enlarge
    )
    if executor not in EXECUTORS:
        raise ConfigError(f"executor is {executor!r}; allowed are {', '.join(EXECUTORS)}")
    for name, value, least in (("workers", workers, 1), ("shard_samples", shard_samples, 1), ("max_bad", max_bad, 0)):
        if value is not None and value < least:
            raise ConfigError(f"{name} is {value}; {least} is the least")
    started = time.monotonic()
    store = open_store(dst, storage_options)
    ledger = Ledger(store)
    ledger.refuse_dataset()
    source = list_source(src)
    with spool_for(store) as (spool, lock):
        jobs = plan_jobs(
            source,
            os.fspath(dst),
            recipe,
            spool=spool,
            shard_samples=shard_samples,
            seed=seed,
            shuffle=shuffle,
            storage_options=storage_options,
        )
        ledger.begin(jobs)
        missing = [job for job in jobs if ledger.finished(job) is None]
        resumed = source.inputs - sum(len(job.items) for job in missing)
        so_far = Progress(inputs=source.inputs, resumed=resumed, done=resumed)

        def count(result: PieceResult | None) -> None:
            nonlocal so_far
            if result is not None:
                so_far = replace(
                    so_far,
                    done=so_far.done + len(result.sources) + len(result.quarantined),
                    bytes_in=so_far.bytes_in + result.bytes_in,
                    bytes_out=so_far.bytes_out + result.fragment.size,
                )
            if progress is not None:
                progress(so_far)

        count(None)
        chosen: Executor = Serial() if executor == "serial" else Processes(workers, (lock,))
        try:
            chosen.run(missing, count)
        finally:
            with contextlib.suppress(StoreError):  # what went wrong before matters more
                ledger.remove_temporaries()
        report = commit(ledger, source, jobs, recipe=recipe, max_bad=max_bad)
    return replace(report, resumed=resumed, seconds=time.monotonic() - started)
