"""Additions: what a source has that a dataset was not made from yet, and the jobs that pack it as the rest was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from shardflow.errors import ConfigError, FormatError, NotFoundError
from shardflow.layout import Layout, job_name
from shardflow.manifest import Manifest

from .job import Job, plan_jobs
from .ledger import Ledger
from .recipe import Recipe
from .sources import Item, Label, Source
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


def known(ledger: Ledger, layout: Layout) -> dict[str, set[str]]:
    """Return the paths of all inputs that the receipts name, by split."""
    found: dict[str, set[str]] = {split: set() for split in layout.jobs}
    names = list(layout.names())
    try:
        for name, receipt in zip(names, ledger.receipts(names), strict=True):
            paths = found[name.partition("/")[0]]
            paths.update(receipt.sources)
            paths.update(bad.path for bad in receipt.quarantined)
    except (NotFoundError, FormatError) as error:
        message = f"without all receipts nobody knows what the dataset was made from ({error})"
        raise NotFoundError(f"{message}; restore the .json files beside the shards from where it was packed") from error
    return found


def without(source: Source, paths: Mapping[str, set[str]]) -> Source:
    """Return the source without the inputs of these paths, by split."""
    fresh = {split: _fresh(items, paths.get(split, set())) for split, items in source.splits.items()}
    return replace(source, splits={split: items for split, items in fresh.items() if items})


def _fresh(items: Sequence[Item], paths: set[str]) -> Sequence[Item]:
    listed = items if isinstance(items, Items) else Items.of(items)
    return listed.take(np.array([item.path not in paths for item in listed], dtype=bool))


def renumbered(source: Source, old: tuple[str, ...] | None) -> tuple[tuple[str, ...] | None, Source]:
    """Return the classes of both, the old ones first, and the source with the labels that follow from that."""
    if (source.classes is None) != (old is None):
        labelled, other = ("the dataset", "the source") if source.classes is None else ("the source", "the dataset")
        raise ConfigError(f"{labelled} has classes and {other} has none; both must have them, or neither")
    if source.classes is None or old is None:
        return None, source
    classes = (*old, *(name for name in source.classes if name not in set(old)))
    places = {name: number for number, name in enumerate(classes)}
    numbers = [places[name] for name in source.classes]
    splits = {split: _relabelled(items, numbers) for split, items in source.splits.items()}
    return classes, replace(source, splits=splits, classes=classes)


def _relabelled(items: Sequence[Item], numbers: Sequence[int]) -> Items:
    def relabel(label: Label) -> Label:
        if isinstance(label, tuple):
            return tuple(sorted(numbers[each] for each in label))
        return None if label is None else numbers[label]

    return (items if isinstance(items, Items) else Items.of(items)).relabelled(relabel)


def new_jobs(fresh: Source, layout: Layout, **place: Any) -> list[Job]:
    """Return the jobs for the new inputs, numbered after the old ones."""
    jobs = plan_jobs(fresh, shard_samples=layout.shard_samples, seed=layout.seed, shuffle=layout.shuffle, **place)
    renamed = []
    for job in jobs:
        split, _, number = job.name.partition("/")
        name = job_name(split, layout.jobs.get(split, 0) + int(number))
        renamed.append(replace(job, name=name, first=layout.inputs.get(split, 0) + job.first))
    return renamed
