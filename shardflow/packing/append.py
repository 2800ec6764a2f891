"""Additions: what a source has that a dataset was not made from yet, and the jobs that pack it as the rest was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from shardflow.errors import ConfigError, FormatError, NotFoundError
from shardflow.formats.labels import Label
from shardflow.formats.manifest import Manifest
from shardflow.formats.receipt import Receipt
from shardflow.formats.sharding import Sharding, job_name

from .jobs import Job, digest_of, plan_jobs
from .ledger import Ledger
from .recipe import Recipe
from .sources import Source
from .sources.items import Items


def recipe_of(made: Manifest) -> Recipe:
    """Return the recipe that a dataset was packed with.

    Raises:
        ConfigError: This version of shardflow has no such recipe.
    """
    names = [setting.name for setting in fields(Recipe)]
    recipe = Recipe(**{name: made.recipe[name] for name in names if name in made.recipe})
    if recipe.describe() != made.recipe:
        raise ConfigError(
            f"the dataset was packed with {dict(made.recipe)}, which this shardflow does not do; use the version that "
            f"packed it: {made.tools.get('shardflow')}"
        )
    return recipe


def receipts_of(ledger: Ledger, layout: Sharding) -> dict[str, Receipt]:
    """Return the receipts of all jobs by their names.

    Raises:
        NotFoundError: One is missing or damaged.
    """
    try:
        return {name: ledger.receipt(name) for name in layout.names()}
    except (NotFoundError, FormatError) as error:
        message = f"without all receipts nobody knows what the dataset was made from ({error})"
        raise NotFoundError(f"{message}; restore the .json files beside the shards from where it was packed") from error


def without(source: Source, receipts: Mapping[str, Receipt]) -> Source:
    """Return the source without the inputs that receipts name, which are told apart by their split and path."""
    fresh = {}
    for split, items in source.splits.items():
        known: set[str] = set()
        for _, receipt in _of_split(receipts, split):
            known.update(receipt.sources, (bad.path for bad in receipt.quarantined))
        fresh[split] = items.take(np.array([item.path not in known for item in items], dtype=bool))
    return replace(source, splits={split: items for split, items in fresh.items() if items})


def refuse_other(source: Source, receipts: Mapping[str, Receipt]) -> None:
    """Refuse another dataset of ours than the one that receipts know: the names of all datasets' samples are alike.

    Raises:
        ConfigError: Samples that the receipts name are missing, or are others.
    """
    for split, items in source.splits.items() if source.sealed else ():
        rows = {item.path: row for row, item in enumerate(items)}
        for name, receipt in _of_split(receipts, split):
            paths = receipt.inputs()
            found = items.take(np.array([rows[path] for path in paths if path in rows], dtype=np.int64))
            if len(found) and (len(found) < len(paths) or digest_of(found, receipt.first) != receipt.items_sha256):
                raise ConfigError(
                    f"the source is another dataset than the one of which shard {name} was packed: its sample "
                    f"{found[0].path!r} has the same name there, so nobody could tell which is new; pack it by itself, "
                    "and put both together with `shardflow merge`"
                )


def _of_split(receipts: Mapping[str, Receipt], split: str) -> Iterator[tuple[str, Receipt]]:
    return ((name, receipt) for name, receipt in receipts.items() if name.partition("/")[0] == split)


def renumbered(source: Source, old: tuple[str, ...] | None) -> tuple[tuple[str, ...] | None, Source]:
    """Return the classes of both, the old ones first, and the source with the labels that follow from that."""
    if (source.classes is None) != (old is None):
        labelled, other = ("the dataset", "the source") if source.classes is None else ("the source", "the dataset")
        raise ConfigError(f"{labelled} has classes and {other} has none; both must have them, or neither")
    if source.classes is None or old is None:
        return None, source
    known = set(old)
    classes = (*old, *(name for name in source.classes if name not in known))
    places = {name: number for number, name in enumerate(classes)}
    numbers = [places[name] for name in source.classes]
    splits = {split: _relabelled(items, numbers) for split, items in source.splits.items()}
    return classes, replace(source, splits=splits, classes=classes)


def _relabelled(items: Items, numbers: Sequence[int]) -> Items:
    def relabel(label: Label) -> Label:
        if isinstance(label, tuple):
            return tuple(sorted(numbers[each] for each in label))
        return None if label is None else numbers[label]

    return items.relabelled(relabel)


def new_jobs(fresh: Source, layout: Sharding, **place: Any) -> list[Job]:
    """Return the jobs for the new inputs, numbered after the old ones."""
    jobs = plan_jobs(fresh, shard_samples=layout.shard_samples, seed=layout.seed, shuffle=layout.shuffle, **place)
    renamed = []
    for job in jobs:
        split, _, number = job.name.partition("/")
        name = job_name(split, layout.jobs.get(split, 0) + int(number))
        renamed.append(replace(job, name=name, first=layout.inputs.get(split, 0) + job.first))
    return renamed
