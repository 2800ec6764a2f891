"""The parts of the page, each from what it is about to HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from shardflow.dataset.dataset import Dataset
from shardflow.dataset.verifying import Finding
from shardflow.formats.statistics import Statistics

from . import charts
from .dataset_counts import Counted
from .markup import data_url, section, table
from .mixing import Mixing
from .quarantine import quarantined, reasons

_BARS = 40
_LISTED = 20
_LARGEST = 8
_NOT_DONE = ("images", "bytes_before", "bytes_after")


def head(dataset: Dataset, counted: Statistics) -> str:
    """Return the facts that come first."""
    facts = [
        *((f"samples in {name}", f"{len(split):,}") for name, split in dataset.items()),
        ("shards", f"{len(dataset.shards):,}"),
        ("size", f"{sum(shard.bytes for shard in dataset.shards) / 1e6:,.1f} MB"),
        ("classes", "none" if dataset.classes is None else f"{len(dataset.classes):,}"),
    ]
    if images := counted.counts["images"]:
        facts.append(("per image", f"{counted.counts['bytes_after'] / images / 1000:,.1f} kB"))
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return f'<dl class="facts">{cells}</dl>'


def classes(dataset: Dataset, counted: Statistics) -> str:
    """Return how many samples each class has."""
    names = dataset.classes
    if names is None:
        return section("Classes", "<p>The samples have no labels.</p>")
    if not counted.classes:
        return section("Classes", f"<p>{len(names):,} classes; how many samples each has is not known.</p>")
    numbers = [counted.classes[label] for label in range(len(names))]
    if len(names) <= _BARS:
        return section("Classes", charts.bars(list(zip(names, numbers, strict=True))))
    label = f"samples of {len(names):,} classes: {max(numbers):,} at most, {min(numbers):,} at least"
    empty = sum(not number for number in numbers)
    note = f"<p>{escape(label)}{f'; {empty:,} have none' if empty else ''}.</p>"
    largest = sorted(zip(names, numbers, strict=True), key=lambda row: -row[1])[:_LARGEST]
    return section("Classes", charts.curve(numbers, label) + note + "<h3>The largest</h3>" + charts.bars(largest))


def sizes(counted: Counted) -> str:
    """Return the sizes of the images, before and after."""
    known = counted.statistics
    if not known.widths_after:
        return section("Sizes", "<p>Not known.</p>")
    key = '<p><span class="key after"></span>packed'
    key += ' &ensp; <span class="key before"></span>before</p>' if known.widths_before else "</p>"
    parts = []
    for name, before, after in (
        ("width", known.widths_before, known.widths_after),
        ("height", known.heights_before, known.heights_after),
    ):
        label = f"{name}s packed: {_range(after)}" + (f"; before: {_range(before)}" if before else "")
        parts.append(f"<h3>{name.capitalize()}, pixels</h3>{charts.sizes(before, after, label)}")
        parts.append(f'<p class="faint">{escape(label)}</p>')
    return section("Sizes", key + "".join(parts) + _sampled(counted))


def _range(sides: Mapping[int, int]) -> str:
    return f"{min(sides):,} to {max(sides):,}" if len(sides) > 1 else f"{min(sides):,}"


def image_bytes(counted: Counted) -> str:
    """Return what an image takes, before and after."""
    counts = counted.statistics.counts
    if not counts["images"]:
        return section("Bytes per image", "<p>Not known.</p>")
    before, after = (counts[name] / counts["images"] for name in ("bytes_before", "bytes_after"))
    rows = [("packed", round(after))]
    note = ""
    if before and after:
        rows.insert(0, ("before", round(before)))
        times, change = (after / before, "larger") if before < after else (before / after, "smaller")
        note = f"<p>Packing made them {times:,.1f} times {change}.</p>"
    return section("Bytes per image", charts.bars(rows) + note + _sampled(counted))


def _sampled(counted: Counted) -> str:
    images = counted.statistics.counts["images"]
    return "" if counted.whole else f'<p class="faint">Counted over {images:,} images of a few shards.</p>'


def mixing(found: Mixing | None) -> str:
    """Return how well the split mixes."""
    if found is None:
        return section("Mixing", "<p>Too few samples to say anything.</p>")
    strip = data_url(found.strip(), "PNG")
    alt = f"a row for each of {found.batches} batches, its samples coloured by where they lie in the split"
    noise = (
        "<p>Class noise was not measured: it needs labels, and shards that are at hand.</p>"
        if found.noise is None
        else f"<p>Class noise of a batch: <strong>{found.noise:.1f}</strong>, where a full shuffle has 1.</p>"
    )
    return section(
        "Mixing",
        f"{noise}<p>A batch of {found.batch_size} draws from {found.shards:.1f} shards; under a full shuffle from "
        f"{found.shuffled_shards:.1f}.</p>"
        f'<img class="strip" src="{strip}" alt="{escape(alt)}">'
        '<p class="faint">A row is a batch of an epoch, from the first to the last; its samples stand in the order in '
        "which they lie in the split, the first blue, the last yellow. A row of all colours is mixed well.</p>",
    )


def recipe(dataset: Dataset, counted: Statistics) -> str:
    """Return how the images were made."""
    manifest = dataset.manifest
    rows = [(name.replace("_", " "), _plain(value)) for name, value in manifest.recipe.items()]
    for name, values in (("mean (RGB)", manifest.mean), ("deviation (RGB)", manifest.std)):
        if values is not None:
            rows.append((name, ", ".join(f"{value:.3f}" for value in values)))
    done = {name: number for name, number in counted.counts.items() if number and name not in _NOT_DONE}
    rows += [(f"{name.replace('_', ' ')} while packing", f"{number:,}") for name, number in done.items()]
    return section("Recipe", table(rows) if rows else "<p>The manifest does not say.</p>")


def state(dataset: Dataset, findings: Sequence[Finding] | None, versions: Mapping[str, str]) -> str:
    """Return verification, quarantine and identity."""
    if findings is None:
        verified = "<p>Not asked for; <code>--verify</code> reads everything and says what is wrong.</p>"
    elif not findings:
        verified = '<p class="good">Sound: every shard, index and member is what was packed.</p>'
    else:
        listed = table([(each.where, each.problem) for each in findings[:_LISTED]])
        verified = f'<p class="bad">{len(findings):,} findings, of which the first:</p>{listed}'
    refused = quarantined(dataset)
    quarantine = "<p>No input was refused.</p>"
    if refused:
        rows = [(f"{number:,}", reason) for reason, number in reasons(refused)[:_LISTED]]
        quarantine = (
            f"<p>{len(refused):,} of {dataset.manifest.inputs:,} inputs were refused:</p>{table(rows, 'counts')}"
        )
    made = table([(f"packed with {name}", version) for name, version in dataset.manifest.tools.items()])
    now = table([(f"this page by {name}", version) for name, version in versions.items()])
    return (
        section("Verification", verified)
        + section("Quarantine", quarantine)
        + section("Identity", f"<p><code>{escape(dataset.fingerprint)}</code></p>{made}{now}")
    )


def _plain(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else "not set" if value is None else str(value)
