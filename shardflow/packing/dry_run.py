"""Dry run: the counts of a pack, without packing anything."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardflow.errors import ConfigError
from shardflow.formats import manifest
from shardflow.storage.resolve import open_storage

from .jobs import plan_jobs
from .ledger import Ledger
from .recipe import make_recipe
from .sources.items import Item
from .sources.resolve import list_source, shared_options


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """The counts of a pack.

    Attributes:
        destination: "free", "unfinished" (a pack would resume), "dataset" or "occupied" (a pack would be refused).
        inputs: Split → number of inputs.
        classes: Split → name of a class → number of inputs; empty without classes.
        skipped: Extension → number of files that are not inputs because of it.
        shards: Number of shards.
        finished: Shards that an earlier attempt has finished.
    """

    destination: str
    inputs: Mapping[str, int]
    classes: Mapping[str, Mapping[str, int]]
    skipped: Mapping[str, int]
    shards: int
    finished: int


def count_pack(
    src: Any,
    dst: str | os.PathLike[str],
    *,
    preset: str = "imagenet",
    shuffle: bool = True,
    seed: int = 0,
    shard_samples: int = 2048,
    storage_options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> DryRun:
    """Return the counts of a `pack` with the same arguments. Nothing is written, and no image is read.

    Raises:
        ConfigError, StoreError: As `pack`.
    """
    recipe = make_recipe(preset, **settings)
    if shard_samples < 1:
        raise ConfigError(f"shard_samples is {shard_samples}; 1 is the least")
    ledger = Ledger(open_storage(dst, storage_options))
    with list_source(src, shared_options(src, dst, storage_options)) as source:
        jobs = plan_jobs(
            source,
            os.fspath(dst),
            recipe,
            staging=Path(),  # no job is run
            shard_samples=shard_samples,
            seed=seed,
            shuffle=shuffle,
            storage_options=storage_options,
        )
        destination = _destination(ledger.listing)
        names = source.classes or ()
        return DryRun(
            destination=destination,
            inputs={split: len(items) for split, items in source.splits.items()},
            classes={split: _classes(items, names) for split, items in source.splits.items()} if names else {},
            skipped=source.skipped,
            shards=len(jobs),
            finished=sum(ledger.finished(job) is not None for job in jobs) if destination == "unfinished" else 0,
        )


def _destination(names: Collection[str]) -> str:
    if manifest.FILE_NAME in names:
        return "dataset"
    if manifest.QUARANTINE_NAME in names:
        return "unfinished"
    return "occupied" if names else "free"


def _classes(items: Sequence[Item], names: Sequence[str]) -> dict[str, int]:
    counts: Counter[int] = Counter()
    for item in items:
        counts.update(item.label if isinstance(item.label, tuple) else () if item.label is None else (item.label,))
    return {names[label]: counts[label] for label in sorted(counts)}
