"""`shardflow info [URL]`."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import click

import shardflow
from shardflow._wording import first_few, plural, size_text
from shardflow.dataset.own_files import has_our_form
from shardflow.dataset.purged_tars import purged_tars
from shardflow.dataset.shard_rows import read_index
from shardflow.dataset.virtual_dataset import tar_bytes, used_bytes
from shardflow.diagnostics.system_report import describe_system
from shardflow.errors import IntegrityError, NotFoundError, ShardflowError
from shardflow.formats.annotations import Annotations
from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.formats.shard_index import KEY_PART
from shardflow.formats.statistics import Statistics, median
from shardflow.storage.resolve import open_storage
from shardflow.storage.urls import join_name

from .options import PathOrUrl, json_option
from .output import operation_counts, print_result
from .progress_bars import show_waiting

_CLASSES_SHOWN = 20


@click.command()
@click.argument("url", type=PathOrUrl(), required=False)
@click.option("--system", is_flag=True, help="Show this installation instead: versions, cores, native kernel.")
@json_option
def info(url: str | None, system: bool, as_json: bool) -> None:
    """Show the contents of a dataset, its recipe, and how much of a remote one is in the cache.

    Reads the manifest and the index of one shard per split; for a virtual dataset, all indexes.

    \b
    Examples:
      shardflow info photos256/
      shardflow info --system
    """
    if system == (url is not None):
        raise click.UsageError("give either the URL of a dataset or --system")
    dataset = None if url is None else shardflow.open(url)
    with show_waiting("reading indexes"):
        described = describe_system() if dataset is None else _describe(dataset)
    lines = described.items() if dataset is None else _lines(described, dataset.manifest.statistics or {})
    print_result(described, lines, 14, as_json=as_json)


def _describe(dataset: shardflow.Dataset) -> dict[str, Any]:
    manifest, parts = dataset.manifest, {name: _parts(dataset, name) for name in dataset}
    splits = {
        name: {"samples": len(split), "shards": len(split.shards), "bytes": used_bytes(dataset, name)}
        for name, split in dataset.items()
    }
    totals = {count: sum(split[count] for split in splits.values()) for count in ("samples", "shards", "bytes")}
    return {
        "url": dataset.url,
        "splits": splits,
        **totals,
        "tar_bytes": tar_bytes(dataset, dataset.shards),
        "parts": {name: None if each is None else sorted(each) for name, each in parts.items()},
        "lacking": {name: {part: n for part, n in sorted((each or {}).items()) if n} for name, each in parts.items()},
        "bytes_per_image": round(totals["bytes"] / totals["samples"]) if totals["samples"] else 0,
        "classes": None if manifest.classes is None else list(manifest.classes),
        "annotations": manifest.annotations.to_json(),
        "columns": describe_columns(dataset),
        "recipe": dict(manifest.recipe),
        "mean": manifest.mean,
        "std": manifest.std,
        "statistics": {split: statistics.to_json() for split, statistics in (manifest.statistics or {}).items()},
        "inputs": manifest.inputs,
        "quarantined": manifest.quarantined,
        "skipped": manifest.skipped,
        "fingerprint": dataset.fingerprint,
        "earlier": earlier_versions(dataset),
        "tools": dict(manifest.tools),
        "roots": {name: root.to_json() for name, root in manifest.roots.items()},
        "purged": purged_tars(dataset.storage, [shard.name for shard in dataset.shards]),
        **_cached(dataset),
    }


def earlier_versions(dataset: shardflow.Dataset) -> dict[str, str]:
    """Return fingerprint → time at which it was replaced, of the other versions that are kept, the newest first."""
    versions: dict[str, str] = {}
    with contextlib.suppress(ShardflowError):
        listed = open_storage(join_name(dataset.url, "manifests")).listing()
        kept = {name: blob.modified_ns or 0 for name, blob in listed.items() if has_our_form(f"manifests/{name}")}
        for name, time_ns in sorted(kept.items(), key=lambda each: each[1], reverse=True):
            replaced = datetime.fromtimestamp(time_ns / 1e9, timezone.utc)
            versions[f"sha256:{name.removesuffix('.json')}"] = replaced.isoformat(" ", "seconds") if time_ns else ""
        versions.pop(dataset.fingerprint, None)
    return versions


def _parts(dataset: shardflow.Dataset, split: str) -> dict[str, int] | None:
    """Return part → number of samples of a split's first shard without it, 0 for images; None if the index is lost."""
    shard = dataset[split].shards[0]
    try:
        counts = Counter(part.decode() for part in read_index(dataset.storage, shard)["part"].tolist())
    except (NotFoundError, IntegrityError):
        return None
    del counts[KEY_PART.decode()]
    return {part: 0 if part in IMAGE_PARTS else shard.samples - count for part, count in counts.items()}


def describe_columns(dataset: shardflow.Dataset) -> dict[str, Any]:
    """Return the type of each column, and the number of samples without a value by split."""
    return {
        name: {"type": column.kind, "missing": {split: each.columns.missing(name) for split, each in dataset.items()}}
        for name, column in dataset.manifest.columns.items()
    }


def _cached(dataset: shardflow.Dataset) -> dict[str, Any]:
    readers = [split.reader for split in dataset.values()]
    directories = {str(reader.cache.directory) for reader in readers if reader.cache is not None}
    if not directories:
        return {}
    local = [shard for reader in readers for number, shard in enumerate(reader.shards) if reader.is_local(number)]
    return {"in_cache_bytes": tar_bytes(dataset, local), "cache": directories.pop()}


def _lines(described: Mapping[str, Any], statistics: Mapping[str, Statistics]) -> Iterator[tuple[str, str]]:
    yield "dataset", described["url"]
    rows = [(name, *split.values()) for name, split in described["splits"].items()]
    if len(rows) > 1:
        rows.append(("all", described["samples"], described["shards"], described["bytes"]))
    width = max(len(name) for name, *_ in rows)
    digits = len(f"{described['samples']:,}")
    for number, (name, samples, shards, size) in enumerate(rows):
        nouns = "sample " if samples == 1 else "samples", "shard " if shards == 1 else "shards"
        line = f"{name:{width}}  {samples:{digits},} {nouns[0]}  {shards:6,} {nouns[1]}  {size_text(size):>12}"
        yield "" if number else "splits", line
    if described["roots"]:
        roots = ", ".join(root["url"] for root in described["roots"].values())
        share = min(1.0, described["bytes"] / max(described["tar_bytes"], 1))
        used = f" with headers, of which the samples take {share:.0%}"
        if purged := {*described["purged"].values()}:  # several splits can share a tar
            used = ", not all of which are left"
        yield "tars", f"{size_text(described['tar_bytes'])}{used}, where they are: {roots}"
        if purged:
            yield "missing", f"{plural(len(purged), 'tar')}: {min(purged)}"
    else:
        yield "images", f"{described['bytes_per_image'] / 1000:,.1f} kB each on average, with tar headers"
    yield from _part_lines(described["parts"])
    for split, lacking in described["lacking"].items():
        found = [f"{plural(samples, 'sample')} without {part}" for part, samples in lacking.items()]
        yield from [("lacking", f"{', '.join(found)} in the first shard of {split}")] * bool(found)
    counts = sum(statistics.values(), Statistics()).counts
    yield from Annotations.from_json(described["annotations"]).describe(counts).items()
    yield from column_lines(described["columns"])
    classes = described["classes"]
    has_json = any("json" in (each or ()) for each in described["parts"].values())
    no_labels = "none: the samples have no labels" + "; a table's other columns are in the part json" * has_json
    yield "classes", no_labels if classes is None else f"{len(classes):,}: {first_few(classes, _CLASSES_SHOWN)}"
    yield "recipe", _pairs(described["recipe"])
    yield "mean", _numbers(described["mean"])
    yield "std", _numbers(described["std"])
    yield from _statistics(statistics)
    yield (
        "inputs",
        "{inputs:,} = {samples:,} packed + {quarantined:,} quarantined + {skipped:,} skipped".format(**described),
    )
    yield "fingerprint", described["fingerprint"]
    for version, replaced in described["earlier"].items():
        yield "earlier", f"{version}, replaced {replaced}" if replaced else version
    yield "tools", _pairs(described["tools"])
    if "cache" in described:
        share = described["in_cache_bytes"] / max(described["tar_bytes"], 1)
        yield "in cache", f"{share:.0%} of {size_text(described['tar_bytes'])}, {described['cache']}"


def column_lines(columns: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a line for each column."""
    for name, column in columns.items():
        lacking = [f"{count:,} of {split}" for split, count in column["missing"].items() if count]
        yield "column", f"{name}: {column['type']}{', no value: ' * bool(lacking)}{', '.join(lacking)}"


def _part_lines(parts: Mapping[str, Sequence[str] | None]) -> Iterator[tuple[str, str]]:
    lines = {
        name: "not known: an index is missing" if each is None else ", ".join(each) for name, each in parts.items()
    }
    if len(set(lines.values())) == 1:
        yield "parts", next(iter(lines.values()))
    else:
        yield from (("parts", f"{name}: {line}") for name, line in lines.items())


def _statistics(statistics: Mapping[str, Statistics]) -> Iterator[tuple[str, str]]:
    total = sum(statistics.values(), Statistics())
    images = total.counts["images"]
    if not images:
        return
    yield "before", _sizes(total.widths_before, total.heights_before, total.counts["bytes_before"] / images)
    yield "after", _sizes(total.widths_after, total.heights_after, total.counts["bytes_after"] / images)
    yield "operations", operation_counts(total.counts)
    for split, counted in statistics.items():
        if counted.classes:
            yield "balance", f"{split}: {_balance(counted.classes.values())}"


def _balance(counts: Collection[int]) -> str:
    fewest, most = min(counts), max(counts)
    images = plural(most, "image") if fewest == most else f"{fewest:,} to {plural(most, 'image')}"
    return f"{images} in {f'each of {len(counts):,} classes' if len(counts) > 1 else 'one class'}"


def _sizes(widths: Mapping[int, int], heights: Mapping[int, int], size: float) -> str:
    middle = f"median about {median(widths)} x {median(heights)} pixels"
    ranges = f"{min(widths)} to {max(widths)} wide, {min(heights)} to {max(heights)} high"
    return f"{middle}, {ranges}, {size / 1000:,.1f} kB on average"


def _pairs(values: Mapping[str, Any]) -> str:
    words = {"None": "any", "True": "yes", "False": "no"}
    return ", ".join(f"{name} {words.get(str(value), value)}" for name, value in values.items()) or "not known"


def _numbers(values: Sequence[float] | None) -> str:
    return "not measured" if values is None else "  ".join(f"{value:.4f}" for value in values)
