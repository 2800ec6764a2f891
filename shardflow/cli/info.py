"""`shardflow info`: what a dataset's manifest says, or what there is to say about this installation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

import shardflow
from shardflow.diagnostics.system_report import describe_system
from shardflow.formats.statistics import Statistics

from .counted import counted_lines
from .residency import cached_bytes, in_memory_bytes
from .shown import megabytes

_CLASSES_SHOWN = 8


@click.command(short_help="Show what a dataset holds.")
@click.argument("url", type=click.Path(), required=False)
@click.option("--system", is_flag=True, help="Show this installation instead: versions, cores, native kernel.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def info(url: str | None, system: bool, as_json: bool) -> None:
    """Show what the dataset at URL holds, how it was made, and how much of it is at hand. Only its manifest is read.

    \b
    Examples:
      shardflow info photos256/
      shardflow info --system
    """
    if system == (url is not None):
        raise click.UsageError("give either the URL of a dataset or --system")
    dataset = None if url is None else shardflow.open(url)
    described = describe_system() if dataset is None else _describe(dataset)
    if as_json:
        click.echo(json.dumps(described, indent=1))
        return
    for name, value in described.items() if dataset is None else _lines(described, dataset.manifest.statistics or {}):
        click.echo(f"{name:14}{value}")


def _describe(dataset: shardflow.Dataset) -> dict[str, Any]:
    manifest = dataset.manifest
    splits = {
        name: {
            "samples": len(split),
            "shards": len(split.shards),
            "bytes": sum(shard.bytes for shard in split.shards),
        }
        for name, split in dataset.items()
    }
    totals = {count: sum(split[count] for split in splits.values()) for count in ("samples", "shards", "bytes")}
    return {
        "url": dataset.url,
        "splits": splits,
        **totals,
        "bytes_per_image": round(totals["bytes"] / totals["samples"]) if totals["samples"] else 0,
        "classes": None if manifest.classes is None else list(manifest.classes),
        "recipe": dict(manifest.recipe),
        "mean": manifest.mean,
        "std": manifest.std,
        "statistics": {split: counted.to_json() for split, counted in (manifest.statistics or {}).items()},
        "inputs": manifest.inputs,
        "quarantined": manifest.inputs - totals["samples"],
        "fingerprint": dataset.fingerprint,
        "tools": dict(manifest.tools),
        "bases": {name: base.to_json() for name, base in manifest.bases.items()},
        **_at_hand(dataset),
    }


def _at_hand(dataset: shardflow.Dataset) -> dict[str, Any]:
    """Return the bytes of the shards that need not come from disk or network: the one figure that applies, or None."""
    splits = dataset.values()
    caches = {str(split.reader.cache.directory) for split in splits if split.reader.cache is not None}
    if caches:
        return {"in_cache_bytes": sum(map(cached_bytes, splits)), "cache": caches.pop()}
    paths = (Path(split.reader.url(number)) for split in splits for number in range(len(split.shards)))
    return {"in_memory_bytes": in_memory_bytes(paths)}


def _lines(described: Mapping[str, Any], statistics: Mapping[str, Statistics]) -> Iterator[tuple[str, str]]:
    yield "dataset", described["url"]
    rows = [(name, *split.values()) for name, split in described["splits"].items()]
    if len(rows) > 1:
        rows.append(("all", described["samples"], described["shards"], described["bytes"]))
    width = max(len(name) for name, *_ in rows)
    digits = len(f"{described['samples']:,}")
    for number, (name, samples, shards, size) in enumerate(rows):
        noun = "shard " if shards == 1 else "shards"
        line = f"{name:{width}}  {samples:{digits},} samples  {shards:6,} {noun}  {megabytes(size):>12}"
        yield "" if number else "splits", line
    if described["bases"]:
        yield "tars", f"whole, where they are: {', '.join(base['url'] for base in described['bases'].values())}"
    else:
        yield "images", f"{described['bytes_per_image'] / 1000:,.1f} kB each on average, tar included"
    yield "classes", _classes(described["classes"])
    yield "recipe", _pairs(described["recipe"])
    yield "mean", _numbers(described["mean"])
    yield "std", _numbers(described["std"])
    yield from counted_lines(statistics)
    yield "inputs", f"{described['inputs']:,}, of which {described['quarantined']:,} quarantined"
    yield "fingerprint", described["fingerprint"]
    yield "tools", _pairs(described["tools"])
    if "cache" in described:
        yield "in cache", f"{_share(described['in_cache_bytes'], described['bytes'])}, {described['cache']}"
    else:
        yield "in memory", _share(described["in_memory_bytes"], described["bytes"])


def _classes(classes: Sequence[str] | None) -> str:
    if classes is None:
        return "none: the samples have no labels"
    more = ", ..." if len(classes) > _CLASSES_SHOWN else ""
    return f"{len(classes):,}: {', '.join(classes[:_CLASSES_SHOWN])}{more}"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_plain(value)}" for name, value in values.items()) or "not known"


def _plain(value: Any) -> str:
    return "any" if value is None else ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _numbers(values: Sequence[float] | None) -> str:
    return "not measured" if values is None else "  ".join(f"{value:.4f}" for value in values)


def _share(part: int | None, whole: int) -> str:
    if part is None:
        return "not known: the files are another user's"
    return f"{part / max(whole, 1):.0%} of {megabytes(whole)}"
