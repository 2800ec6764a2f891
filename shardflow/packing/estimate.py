"""The estimate: what a pack would do, and about how many bytes it would write, without writing any of them."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shardflow.dataset.shard_rows import read_index
from shardflow.errors import ConfigError
from shardflow.formats import manifest, ustar
from shardflow.formats.receipt import Quarantined, from_bytes
from shardflow.storage.local import LocalStorage
from shardflow.storage.resolve import open_storage
from shardflow.storage.staging import temporary_staging

from .executors import ExecutorMaker, executor_maker
from .jobs import Job, PieceResult, plan_jobs
from .ledger import Ledger
from .presets import make_recipe
from .sources import listed, shared_options
from .sources.items import Item

SAMPLE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a pack would do.

    Attributes:
        destination: "free", "unfinished" (a pack would go on), "dataset" or "occupied" (a pack would be refused).
        inputs: Split → number of inputs.
        classes: Split → name of a class → number of inputs; empty without classes.
        ignored: Extension → number of files that are no inputs because of it.
        shards: Number of shards.
        finished: Of these, how many an earlier attempt has made.
        sampled: Inputs that were packed to estimate the rest, evenly spread.
        quarantined: Those of them that could not be.
        bytes: Size of all shards, estimated.
        plus_minus: The true size lies within so many bytes of that, in 19 of 20 cases.
    """

    destination: str
    inputs: Mapping[str, int]
    classes: Mapping[str, Mapping[str, int]]
    ignored: Mapping[str, int]
    shards: int
    finished: int
    sampled: int
    quarantined: Sequence[Quarantined]
    bytes: int
    plus_minus: int


def estimate(
    src: Any,
    dst: str | os.PathLike[str],
    *,
    preset: str = "imagenet",
    shuffle: bool = True,
    seed: int = 0,
    shard_samples: int = 2048,
    workers: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Estimate:
    """Return what `pack` with the same arguments would do; `dst` is looked at, and nothing is written there.

    Raises:
        ConfigError, StoreError: As `pack` would.
    """
    recipe = make_recipe(preset, **settings)
    make_executor = executor_maker("processes", workers)
    if shard_samples < 1:
        raise ConfigError(f"shard_samples is {shard_samples}; 1 is the least")
    storage = open_storage(dst, storage_options)
    with listed(src, shared_options(src, dst, storage_options)) as source:
        jobs = plan_jobs(
            source,
            os.fspath(dst),
            recipe,
            spool=Path(),  # no job is run as it is
            shard_samples=shard_samples,
            seed=seed,
            shuffle=shuffle,
            storage_options=storage_options,
        )
        ledger = Ledger(storage)
        destination = _destination(ledger.listing)
        chosen = [jobs[job].items[slot] for job, slot in _evenly([len(job.items) for job in jobs], SAMPLE)]
        sizes, quarantined = _try(jobs[0], chosen, make_executor)
        mean, spread = float(np.mean(sizes)), float(np.std(sizes))
        rest = source.inputs - len(sizes)
        names = source.classes or ()
        return Estimate(
            destination=destination,
            inputs={split: len(items) for split, items in source.splits.items()},
            classes={split: _classes(items, names) for split, items in source.splits.items()} if names else {},
            ignored=source.ignored,
            shards=len(jobs),
            finished=sum(ledger.finished(job) is not None for job in jobs) if destination == "unfinished" else 0,
            sampled=len(sizes),
            quarantined=quarantined,
            bytes=round(mean * source.inputs) + len(jobs) * len(ustar.END),
            plus_minus=round(2 * spread * math.sqrt(rest * source.inputs / len(sizes))),
        )


def _destination(names: Collection[str]) -> str:
    if manifest.FILE_NAME in names:
        return "dataset"
    if manifest.QUARANTINE_NAME in names:
        return "unfinished"
    return "occupied" if names else "free"


def _evenly(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Yield job and slot of some inputs at equal distances, given the numbers of inputs of the jobs."""
    ends = np.cumsum(sizes)
    number = min(most, int(ends[-1]))
    for at in range(number):
        place = (2 * at + 1) * int(ends[-1]) // (2 * number)
        job = int(np.searchsorted(ends, place, side="right"))
        yield job, place - int(ends[job]) + sizes[job]


def _try(job: Job, items: Sequence[Item], make_executor: ExecutorMaker) -> tuple[list[int], list[Quarantined]]:
    """Pack a few inputs for once; return the bytes that each takes in a shard, and which could not be packed."""
    results: list[PieceResult] = []
    with temporary_staging() as (folder, lock):
        trial = replace(job, items=tuple(items), dst=str(folder), spool=folder, storage_options=None)
        make_executor(lock).run([trial], results.append)
        storage = LocalStorage(folder)
        shard = from_bytes(storage.read(f"{job.name}.json")).shard
        sizes = [0] * len(items)
        if shard is not None:
            for record, size in read_index(storage, shard)[["record", "size"]].tolist():
                sizes[record] += ustar.BLOCK + size + ustar.padding(size)
    return sizes, [bad for result in results for bad in result.quarantined]


def _classes(items: Sequence[Item], names: Sequence[str]) -> dict[str, int]:
    counts: Counter[int] = Counter()
    for item in items:
        counts.update(item.label if isinstance(item.label, tuple) else () if item.label is None else (item.label,))
    return {names[label]: counts[label] for label in sorted(counts)}
