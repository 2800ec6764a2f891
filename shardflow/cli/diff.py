"""`shardflow diff A B`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import click

import shardflow
from shardflow._wording import first_few, plural

from .options import PathOrUrl, json_option
from .output import print_result
from .progress_bars import shard_bar

_NAMED = 5


@click.command()
@click.argument("a", type=PathOrUrl())
@click.argument("b", type=PathOrUrl())
@json_option
def diff(a: str, b: str, as_json: bool) -> int:
    """Compare two datasets: recipe, annotations, classes, splits, shards, samples.

    No shards are read. Samples are matched by the paths of their inputs if both datasets have receipts, otherwise by
    their images; their labels and other parts are compared too. The exit code is 0 if the datasets are equal, and 1 if
    they differ.

    \b
    Example:
      shardflow diff photos256/ s3://bucket/photos256
    """
    shards = shardflow.open(a).shards + shardflow.open(b).shards
    with shard_bar(shards, "comparing", disable=as_json) as progress:
        found = shardflow.diff(a, b, progress=progress)
    print_result({"same": found.same, **asdict(found)}, _lines(found), 14, as_json=as_json)
    return 0 if found.same else 1


def _lines(found: shardflow.reports.Diff) -> Iterator[tuple[str, str]]:
    if found.same:
        yield "same", found.fingerprints[0]
        return
    yield "fingerprint", f"{found.fingerprints[0]} | {found.fingerprints[1]}"
    for name, (ours, theirs) in found.recipe.items():
        yield "recipe", f"{name}: {ours} | {theirs}"
    for name, (ours, theirs) in found.annotations.items():
        yield name, f"{ours} | {theirs}"
    for name, (ours, theirs) in found.columns.items():
        yield "column", f"{name}: {ours} | {theirs}"
    for names, dataset in zip(found.classes_only, ("A", "B"), strict=True):
        if names:
            yield "classes", f"{len(names):,} only in {dataset}: {first_few(names, _NAMED)}"
    if found.renumbered:
        verb = "has" if len(found.renumbered) == 1 else "have"
        yield "classes", f"{len(found.renumbered):,} {verb} another number: {first_few(found.renumbered, _NAMED)}"
    for split, differing in found.splits.items():
        samples, shards = differing.samples, differing.shards
        yield split, f"samples {samples[0]:,} | {samples[1]:,}, shards {shards[0]:,} | {shards[1]:,}"
        yield "", f"{plural(differing.same_shards, 'shard')} {'is' if differing.same_shards == 1 else 'are'} the same"
        only = f"{differing.only[0]:,} only in A, {differing.only[1]:,} only in B"
        changed = {"image": differing.changed_images, "label or other part": differing.changed_parts}
        told = "".join(f", {count:,} of them with another {name}" for name, count in changed.items() if count)
        yield "", f"by {differing.by}: {plural(differing.both, 'sample')} in both{told}, {only}"
        for examples, dataset in zip(differing.examples, ("A", "B"), strict=True):
            if examples:
                more = ", ..." if len(examples) == _NAMED else ""
                yield "", f"only in {dataset}: {', '.join(examples)}{more}"
