"""The HTML page of a dataset: one file that needs no network."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from shardflow._wording import plural, size_text
from shardflow.dataset.open_dataset import Dataset
from shardflow.dataset.verifying import Finding
from shardflow.dataset.virtual_dataset import tar_bytes
from shardflow.formats.statistics import Statistics
from shardflow.loading.run_metadata import describe_versions
from shardflow.storage.local_files import map_os_errors

from .contact_sheet import ContactSheet, sample_tiles
from .markup import bar_chart, data_url, gallery, note, page, section, sheet, size_histogram, table
from .mixing import Mixing, measure_mixing
from .sample_reader import SampleReader

_VERSIONS = "shardflow", "pillow", "torch"
_MOST_BARS = 40
_MOST_ROWS = 20
_MOST_INPUTS = 1000
_LARGEST_CLASSES = 8
_NOT_OPERATIONS = ("images", "bytes_before", "bytes_after", "masks", "boxes", "keypoints")


def write_page(
    dataset: Dataset,
    path: str | os.PathLike[str],
    *,
    split: str,
    count: int,
    findings: Sequence[Finding] | None,
    augmented: ContactSheet | None = None,
    class_name: str | None = None,
) -> None:
    """Write the page of a split with about `count` of its samples, or of those of a class.

    `findings` is None if the dataset was not verified.
    """
    reader = SampleReader(dataset, split)
    numbers = reader.spread_samples(count) if class_name is None else reader.samples_of_class(class_name, count)
    shown = f"Samples{'' if class_name is None else f' of {class_name}'}: {len(numbers):,} of {len(reader.split):,}"
    tiles = sample_tiles(reader.samples(numbers), dataset.classes, dataset.manifest.annotations)
    statistics = (dataset.manifest.statistics or {}).get(split, Statistics())
    body = "".join(
        [
            _facts(dataset, statistics),
            section(shown, gallery(split, tiles, count)),
            "" if augmented is None else section(augmented.title, note(augmented.subtitle) + sheet(augmented.tiles)),
            '<div class="columns">',
            _classes(dataset, statistics),
            _sizes(statistics),
            _bytes_per_image(statistics.counts),
            _mixing(measure_mixing(reader.split, len(dataset.classes or ()))),
            _recipe(dataset, statistics),
            _verification(findings),
            _quarantine(dataset),
            _identity(dataset),
            "</div>",
        ]
    )
    name = dataset.url.rstrip("/").rpartition("/")[2]
    url = note(dataset.url) if dataset.url != name else ""
    header = f'<header><h1>{escape(name)} <span class="faint">{escape(split)}</span></h1>{url}</header>'
    html = page(f"{name}, split {split}", f"{header}\n<main>{body}</main>")
    with map_os_errors(Path(path)):
        Path(path).write_text(html, encoding="utf-8", errors="replace")


def _facts(dataset: Dataset, statistics: Statistics) -> str:
    facts = [
        *((f"samples in {name}", f"{len(split):,}") for name, split in dataset.items()),
        ("shards", f"{len(dataset.shards):,}"),
        ("size", size_text(tar_bytes(dataset, dataset.shards))),
        ("classes", "none" if dataset.classes is None else f"{len(dataset.classes):,}"),
    ]
    if images := statistics.counts["images"]:
        facts.append(("per image", f"{statistics.counts['bytes_after'] / images / 1000:,.1f} kB"))
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return f'<dl class="facts">{cells}</dl>'


def _classes(dataset: Dataset, statistics: Statistics) -> str:
    names = dataset.classes
    if names is None:
        return section("Classes", "<p>The samples have no labels.</p>")
    if not statistics.classes:
        return section(
            "Classes", f"<p>{plural(len(names), 'class')}; the number of samples per class is not known.</p>"
        )
    numbers = [statistics.classes[label] for label in range(len(names))]
    if len(names) <= _MOST_BARS:
        return section("Classes", bar_chart(list(zip(names, numbers, strict=True))))
    label = f"{plural(len(names), 'class')} of {min(numbers):,} to {max(numbers):,} samples"
    empty = sum(not number for number in numbers)
    text = f"<p>{escape(label)}{f'; {empty:,} without samples' if empty else ''}.</p>"
    largest = sorted(zip(names, numbers, strict=True), key=lambda row: -row[1])[:_LARGEST_CLASSES]
    return section("Classes", text + "<h3>Largest classes</h3>" + bar_chart(largest))


def _sizes(known: Statistics) -> str:
    if not known.widths_after:
        return section("Sizes", "<p>Not known.</p>")
    legend = '<p><span class="key after"></span>packed'
    legend += ' &ensp; <span class="key before"></span>before</p>' if known.widths_before else "</p>"
    parts = []
    for name, before, after in (
        ("width", known.widths_before, known.widths_after),
        ("height", known.heights_before, known.heights_after),
    ):
        label = f"{name}s packed: {_range(after)}" + (f"; before: {_range(before)}" if before else "")
        parts.append(f"<h3>{name.capitalize()}, pixels</h3>{size_histogram(before, after, label)}{note(label)}")
    return section("Sizes", legend + "".join(parts))


def _range(sides: Mapping[int, int]) -> str:
    return f"{min(sides):,} to {max(sides):,}" if len(sides) > 1 else f"{min(sides):,}"


def _bytes_per_image(numbers: Mapping[str, int]) -> str:
    if not numbers["images"]:
        return section("Bytes per image", "<p>Not known.</p>")
    before, after = (numbers[name] / numbers["images"] for name in ("bytes_before", "bytes_after"))
    rows, text = [("packed", round(after))], ""
    if before and after:
        rows.insert(0, ("before", round(before)))
        ratio, change = (after / before, "larger") if before < after else (before / after, "smaller")
        text = f"<p>Packing made the images {ratio:,.1f} times {change}.</p>"
    return section("Bytes per image", bar_chart(rows) + text)


def _mixing(mixing: Mixing | None) -> str:
    if mixing is None:
        return section("Mixing", "<p>Too few samples to measure.</p>")
    batches, batch_size = mixing.places.shape
    alt = f"{batches} batches, one per row, each sample coloured by its position in the split"
    noise = (
        "<p>Class noise was not measured: it needs labels, and shards that are local.</p>"
        if mixing.noise is None
        else f"<p>Class noise of a batch: <strong>{mixing.noise:.1f}</strong> (a full shuffle has 1).</p>"
    )
    return section(
        "Mixing",
        f"{noise}<p>A batch of {batch_size} contains samples of {mixing.shards:.1f} shards on average (a full "
        f"shuffle: {mixing.shuffled_shards:.1f}).</p>"
        f'<img class="strip" src="{data_url(mixing.strip(), "PNG")}" alt="{escape(alt)}">'
        '<p class="faint">Each row is a batch, from the first of an epoch to the last. Its samples are sorted by their '
        "position in the split: blue for the first sample, yellow for the last. A mixed batch has all colours.</p>",
    )


def _recipe(dataset: Dataset, statistics: Statistics) -> str:
    manifest = dataset.manifest
    words = {"None": "not set", "True": "yes", "False": "no"}
    rows = [(name.replace("_", " "), words.get(str(value), str(value))) for name, value in manifest.recipe.items()]
    for name, values in (("mean (RGB)", manifest.mean), ("std (RGB)", manifest.std)):
        if values is not None:
            rows.append((name, ", ".join(f"{value:.3f}" for value in values)))
    rows += manifest.annotations.describe(statistics.counts).items()
    operations = {name: number for name, number in statistics.counts.items() if number and name not in _NOT_OPERATIONS}
    rows += [(f"{name.replace('_', ' ')} while packing", f"{number:,}") for name, number in operations.items()]
    return section("Recipe", table(rows) if rows else "<p>The manifest has no recipe.</p>")


def _verification(findings: Sequence[Finding] | None) -> str:
    if findings is None:
        content = "<p>Not verified; <code>--verify</code> reads and checks the whole dataset.</p>"
    elif not findings:
        content = '<p class="good">No damage: every shard, index and member is as it was packed.</p>'
    else:
        rows = table([(each.where, each.problem) for each in findings[:_MOST_ROWS]])
        number = plural(len(findings), "finding")
        more = f", of which the first {_MOST_ROWS}" if len(findings) > _MOST_ROWS else ""
        content = f'<p class="bad">{number}{more}:</p>{rows}'
    return section("Verification", content)


def _quarantine(dataset: Dataset) -> str:
    inputs = dataset.quarantine()
    if not inputs:
        return section("Quarantine", "<p>Empty: every input was packed.</p>")
    reasons = Counter(f"{each.stage}: {each.reason}" for each in inputs).most_common(_MOST_ROWS)
    text = f"<p>{len(inputs):,} of {plural(dataset.manifest.inputs, 'input')} not packed:</p>"
    text += table([(f"{number:,}", reason) for reason, number in reasons], "counts")
    inputs_shown = table([(each.path, f"{each.stage}: {each.reason}") for each in inputs[:_MOST_INPUTS]])
    most = f"The first {_MOST_INPUTS:,} inputs" if len(inputs) > _MOST_INPUTS else "All inputs"
    return section("Quarantine", f"{text}<details><summary>{most} with their reasons</summary>{inputs_shown}</details>")


def _identity(dataset: Dataset) -> str:
    installed = describe_versions()
    packed = table([(f"packed with {name}", version) for name, version in dataset.manifest.tools.items()])
    written = table([(f"page written with {name}", installed[name]) for name in _VERSIONS])
    return section("Identity", f"<p><code>{escape(dataset.fingerprint)}</code></p>{packed}{written}")
