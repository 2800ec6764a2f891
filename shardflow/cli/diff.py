"""`shardflow diff A B`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

import click

import shardflow

from .shown import shard_bar


@click.command(short_help="Say how two datasets differ.")
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def diff(a: str, b: str, as_json: bool) -> int:
    """Say how the datasets A and B differ: recipe, classes, splits, shards, samples. No shard is read, indexes alone.

    Samples are told by the paths of their inputs, where both datasets have their receipts, else by their images. The
    exit code is 0 when the datasets are the same, and 1 when they differ.

    \b
    Example:
      shardflow diff photos256/ s3://bucket/photos256
    """
    shards = shardflow.open(a).shards + shardflow.open(b).shards
    with shard_bar(shards, "comparing", disable=as_json) as progress:
        found = shardflow.diff(a, b, progress=progress)
    if as_json:
        click.echo(json.dumps({"same": found.same, **asdict(found)}, indent=1))
    else:
        for name, text in _lines(found):
            click.echo(f"{name:14}{text}")
    return 0 if found.same else 1


def _lines(found: shardflow.Diff) -> Iterator[tuple[str, str]]:
    if found.same:
        yield "same", found.fingerprints[0]
        return
    yield "fingerprint", f"{found.fingerprints[0]} | {found.fingerprints[1]}"
    for name, (ours, theirs) in found.recipe.items():
        yield "recipe", f"{name}: {ours} | {theirs}"
    for names, where in zip(found.classes_only, ("A", "B"), strict=True):
        if names:
            yield "classes", f"{len(names)} in {where} alone: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
    if found.renumbered:
        yield "classes", f"{len(found.renumbered)} have another number: {', '.join(found.renumbered[:5])}"
    for split, differing in found.splits.items():
        samples, shards = differing.samples, differing.shards
        yield split, f"{samples[0]:,} | {samples[1]:,} samples, {shards[0]:,} | {shards[1]:,} shards"
        yield "", f"{differing.same_shards:,} shards are the same"
        only = f"{differing.only[0]:,} | {differing.only[1]:,} in one alone"
        changed = f", {differing.changed:,} of them with another image" if differing.changed else ""
        yield "", f"by {differing.by}: {differing.both:,} samples in both{changed}, {only}"
        for examples, where in zip(differing.examples, ("A", "B"), strict=True):
            if examples:
                yield "", f"in {where} alone: {', '.join(examples)}{', ...' if len(examples) == 5 else ''}"
