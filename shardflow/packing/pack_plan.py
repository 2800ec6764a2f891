"""The plan of a pack: all that is known before work begins, from the inputs to the names of the shards.

    plan     source, recipe and base version become jobs; a dry run ends here, with the counts of the plan
    run      the unfinished jobs are done (`run`)
    commit   the written shards become a dataset, or a new version of one (`commit`)

Packing, extending and the dry runs of both make a plan. A repair plans the jobs of damaged shards again, and runs them
elsewhere without a commit.
"""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow.formats import manifest, quarantine
from shardflow.formats.annotations import Annotations
from shardflow.formats.quarantine import Quarantined
from shardflow.formats.receipt import check_bytes, least_bytes
from shardflow.formats.shard_layout import Sharding, job_name
from shardflow.order import keyed_rng
from shardflow.order.shuffle_settings import TRAIN

from .base_version import BaseVersion
from .jobs import Job
from .ledger import Ledger
from .sample_recipe import SampleRecipe, no_image
from .sources.items import Item
from .sources.source import Source

_CHECKED_INPUTS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PackPlan:
    """The plan of a pack. A dry run shows its counts, and reads only inputs that an unfinished pack could not read."""

    ledger: Ledger  # the receipts in the destination
    source: Source  # the inputs to pack; its labels continue the numbering of the base version
    recipe: SampleRecipe  # how inputs become samples
    sharding: Sharding  # how all inputs, including those of the base version, are divided into shards
    jobs: Sequence[Job]  # the shards to make
    max_errors: int = 0  # how many inputs may be left out
    base: BaseVersion | None = None  # the version to extend; None for a new dataset
    known: int = 0  # number of the source's inputs that the base version has
    conflicting: Sequence[str] = ()  # paths of the inputs that conflict with an input of the base version

    @classmethod
    def of(cls, source: Source, ledger: Ledger, recipe: SampleRecipe, sharding: Sharding, **others: Any) -> PackPlan:
        """Return the plan to pack a source, numbered after the inputs in `sharding` and divided as it says."""
        inputs = {split: len(items) for split, items in source.splits.items()}
        numbers = {split: -(-count // sharding.shard_samples) for split, count in inputs.items()}
        return cls(
            ledger=ledger,
            source=source,
            recipe=recipe,
            sharding=sharding.extended(numbers, inputs),
            jobs=plan_jobs(source, recipe, sharding, ledger.url, ledger.storage_options),
            **others,
        )

    @property
    def new_classes(self) -> tuple[str, ...]:
        """Names of the classes that the base version does not have."""
        old = self.base.manifest.classes if self.base is not None else None
        return (self.source.classes or ())[len(old or ()) :]

    @property
    def inputs(self) -> dict[str, int]:
        """Split → number of inputs to be packed."""
        return {split: len(items) for split, items in self.source.splits.items()}

    @property
    def classes(self) -> dict[str, dict[str, int]]:
        """Split → name of each class → number of its inputs, 0 or more; empty without classes."""
        names, splits = self.source.classes or (), self.source.splits
        return {split: _classes(items, names) for split, items in splits.items()} if names else {}

    @property
    def bad(self) -> list[Quarantined]:
        """Inputs that the listing found unusable, such as rows whose file is missing, and inputs that an unfinished
        pack has quarantined in its finished shards; sorted."""
        found: list[Quarantined] = []
        for job in self.jobs:
            receipt = self.ledger.finished(job) if self.destination == "unfinished" else None
            found += _bad(job.items, self.recipe.annotations) if receipt is None else receipt.quarantined
        return sorted(found)

    @property
    def destination(self) -> str:
        """State of the destination: "free"; "unfinished", if a pack would be resumed; "dataset" or, with other files,
        "occupied", if a pack would be refused."""
        listing = self.ledger.listing
        files = {manifest.FILE_NAME: "dataset", quarantine.FILE_NAME: "unfinished"}
        return next((state for name, state in files.items() if name in listing), "occupied" if listing else "free")

    @property
    def finished(self) -> int:
        """Number of shards that an earlier attempt has finished."""
        return sum(self.ledger.finished(job) is not None for job in self.jobs)


def plan_jobs(
    source: Source,
    recipe: SampleRecipe,
    sharding: Sharding,
    dst: str,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Job]:
    """Divide the inputs of each split into jobs numbered after its jobs.

    Those of the training split are shuffled if the sharding says so. Others are read in order, without a shuffle, and
    their predictions are expected in the order of the source.
    """
    jobs: list[Job] = []
    for split, items in source.splits.items():
        if sharding.shuffle and split == TRAIN:
            key = keyed_rng.key(sharding.seed, "pack", split)
            items = items.take(_shuffled(key, len(items), source.reader.chunk_items))
        starts = range(0, len(items), sharding.shard_samples)
        jobs += [
            Job(
                name=job_name(split, number),
                first=sharding.inputs.get(split, 0) + start,
                items=items[start : start + sharding.shard_samples],
                reader=source.reader,
                dst=dst,
                recipe=recipe,
                storage_options=storage_options,
            )
            for number, start in enumerate(starts, sharding.jobs.get(split, 0))
        ]
    for job in jobs:
        if len(job.items) > _CHECKED_INPUTS:  # before hours of work; fewer inputs are checked after it
            check_bytes(least_bytes(item.path for item in job.items), len(job.items))
    return jobs


def _bad(items: Sequence[Item], annotations: Annotations) -> Iterator[Quarantined]:
    for item in items:
        if item.size == item.identity == 0:
            yield Quarantined(item.path, "read", os.strerror(errno.ENOENT))
        elif annotations or b'"bad"' in item.more or b'"image":false' in item.more:
            more = json.loads(item.more or b"{}")
            if reason := more.get("bad"):
                yield Quarantined(item.path, "read", reason)
            elif more.get("image") is False and not annotations.images:
                yield Quarantined(item.path, "read", no_image(more["parts"]))
            elif reason := annotations.missing(more.get("parts", ())):
                yield Quarantined(item.path, "decode", reason)


def _classes(items: Sequence[Item], names: Sequence[str]) -> dict[str, int]:
    counts: Counter[int] = Counter()
    for item in items:
        counts.update(item.label if isinstance(item.label, tuple) else () if item.label is None else (item.label,))
    return {name: counts[label] for label, name in enumerate(names)}


def _shuffled(key: int, length: int, chunk_items: int) -> npt.NDArray[np.int64]:
    """Return the input numbers in shuffled order; chunks of `chunk_items` neighbours stay together."""
    chunks = keyed_rng.permutation(key, -(-length // chunk_items))
    numbers = (chunks[:, None] * chunk_items + np.arange(chunk_items)).ravel()
    return numbers[numbers < length]
