"""Dry runs: the counts of a pack or an extension, without packing anything."""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardflow._validation import check_integer
from shardflow.dataset.dataset import open_dataset
from shardflow.errors import ConfigError
from shardflow.formats import manifest, quarantine
from shardflow.formats.annotations import Annotations
from shardflow.formats.quarantine import Quarantined
from shardflow.storage.resolve import open_storage
from shardflow.storage.urls import url_text

from .annotations import check_annotations
from .extending import ON_CONFLICT, plan_extension
from .jobs import plan_jobs
from .ledger import Ledger
from .recipe import make_recipe
from .sources.items import Item
from .sources.resolve import list_source, shared_options


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """The counts of a pack."""

    destination: str  # "free", "unfinished" (a pack would resume), "dataset" or "occupied" (a pack would be refused)
    inputs: Mapping[str, int]  # split → number
    classes: Mapping[str, Mapping[str, int]]  # split → class name → number of inputs; empty without classes
    skipped: Sequence[Quarantined]  # images of kinds that are not read
    bad: Sequence[Quarantined]  # inputs that the listing has found unusable, such as rows whose file is missing
    ignored: Mapping[str, int]  # extension → number of files that are no images
    shards: int
    finished: int  # shards that an earlier attempt has finished


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendDryRun:
    """The counts of an extension."""

    known: int  # inputs that the dataset has
    conflicting: Sequence[str]  # paths of the inputs that conflict with one of the dataset
    inputs: Mapping[str, int]  # split → number of inputs that would be packed
    skipped: Sequence[Quarantined]  # new images of kinds that are not read
    classes: tuple[str, ...]  # names of the new classes
    shards: int


def count_pack(
    src: Any,
    dst: str | os.PathLike[str],
    *,
    preset: str = "imagenet",
    annotations: Annotations | None = None,
    shuffle: bool = True,
    seed: int = 0,
    shard_samples: int = 2048,
    storage_options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> DryRun:
    """Return the counts of a `pack` with the same arguments. Nothing is written, and no image is read."""
    recipe = make_recipe(preset, **settings)
    shard_samples, seed = check_integer("shard_samples", shard_samples, 1), check_integer("seed", seed)
    ledger = Ledger(open_storage(dst, storage_options, to_write=True))
    declared = check_annotations(annotations)
    with list_source(src, shared_options(src, dst, storage_options), parts=declared.parts) as source:
        declared = source.annotations.joined(declared)
        jobs = plan_jobs(
            source,
            url_text(dst),
            recipe,
            annotations=declared,
            staging=Path(),  # no job is run
            shard_samples=shard_samples,
            seed=seed,
            shuffle=shuffle,
            storage_options=storage_options,
        )
        files = {manifest.FILE_NAME: "dataset", quarantine.FILE_NAME: "unfinished"}
        otherwise = "occupied" if ledger.listing else "free"
        destination = next((state for name, state in files.items() if name in ledger.listing), otherwise)
        names = source.classes or ()
        return DryRun(
            destination=destination,
            inputs={split: len(items) for split, items in source.splits.items()},
            classes={split: _classes(items, names) for split, items in source.splits.items()} if names else {},
            skipped=source.skipped,
            bad=[bad for items in source.splits.values() for bad in _bad(items, declared)],
            ignored=source.ignored,
            shards=len(jobs),
            finished=sum(ledger.finished(job) is not None for job in jobs) if destination == "unfinished" else 0,
        )


def count_extension(
    src: Any,
    dst: str | os.PathLike[str],
    *,
    on_conflict: str = "error",
    storage_options: Mapping[str, Any] | None = None,
) -> ExtendDryRun:
    """Return the counts of an `extend` with the same arguments.

    Nothing is written. Images are read only where their content has to be compared; conflicts are no error.
    """
    if on_conflict not in ON_CONFLICT:
        raise ConfigError(f"on_conflict is {on_conflict!r}; allowed are {', '.join(ON_CONFLICT)}")
    dataset = open_dataset(dst, storage_options=storage_options)
    parts = dataset.manifest.annotations.parts
    with list_source(src, shared_options(src, dst, storage_options), parts=parts) as source:
        extension = plan_extension(source, dataset)
        fresh = extension.fresh(add_conflicting=on_conflict == "add")
        return ExtendDryRun(
            known=extension.known,
            conflicting=extension.conflicting,
            inputs={split: len(items) for split, items in fresh.splits.items()},
            skipped=fresh.skipped,
            classes=extension.new_classes,
            shards=len(extension.jobs(fresh, dst=url_text(dst), staging=Path())),
        )


def _bad(items: Sequence[Item], annotations: Annotations) -> Iterator[Quarantined]:
    for item in items:
        if item.size == item.identity == 0:
            yield Quarantined(item.path, "read", os.strerror(errno.ENOENT))
        elif annotations or b'"bad"' in item.more:
            more = json.loads(item.more or b"{}")
            if reason := more.get("bad"):
                yield Quarantined(item.path, "read", reason)
            elif reason := annotations.missing(more.get("parts", ())):
                yield Quarantined(item.path, "decode", reason)


def _classes(items: Sequence[Item], names: Sequence[str]) -> dict[str, int]:
    counts: Counter[int] = Counter()
    for item in items:
        counts.update(item.label if isinstance(item.label, tuple) else () if item.label is None else (item.label,))
    return {names[label]: counts[label] for label in sorted(counts)}
