"""The page: one HTML file about a dataset that needs nothing but itself, neither network nor scripts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from shardflow.dataset.dataset import Dataset
from shardflow.dataset.verifying import Finding
from shardflow.storage.local_files import map_os_errors

from . import sections
from .choice import spread
from .dataset_counts import count_images
from .markup import note, section, sheet
from .mixing import measure_mixing
from .sample_reader import SampleReader
from .tile import tiles_of

if TYPE_CHECKING:
    from .augmented import Augmented  # which imports torch


def write_page(
    dataset: Dataset,
    path: str | os.PathLike[str],
    *,
    split: str,
    count: int,
    findings: Sequence[Finding] | None,
    versions: Mapping[str, str],
    augmented: Augmented | None = None,
) -> None:
    """Write the page.

    Args:
        dataset: What it is about.
        path: The file to write.
        split: The split whose samples, classes and sizes are shown.
        count: Samples on the sheet.
        findings: What verification found; None when it was not asked for.
        versions: Of what is running now, by name.
        augmented: What a loader makes of a sample; None when it was not asked for.

    Raises:
        ConfigError: There is no such split.
        ShardflowError: The dataset is damaged or out of reach, or the file cannot be written.
    """
    peek = SampleReader(dataset, split)
    tiles = tiles_of(peek.samples(spread(peek.split, count)), dataset.classes)
    counted = count_images(dataset, peek)
    body = "".join(
        [
            sections.head(dataset, counted.statistics),
            section("Samples", sheet(tiles)),
            "" if augmented is None else section(augmented.title, note(augmented.subtitle) + sheet(augmented.tiles)),
            '<div class="columns">',
            sections.classes(dataset, counted.statistics),
            sections.sizes(counted),
            sections.image_bytes(counted),
            sections.mixing(measure_mixing(peek.split)),
            sections.recipe(dataset, counted.statistics),
            sections.state(dataset, findings, versions),
            "</div>",
        ]
    )
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    name = dataset.url.rstrip("/").rpartition("/")[2]
    place = f'<p class="faint">{escape(dataset.url)}</p>' if dataset.url != name else ""
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<link rel="icon" href="data:,">
<title>{escape(name)}, split {escape(split)}</title>
<style>
{style}</style>
</head>
<body>
<header><h1>{escape(name)} <span class="faint">{escape(split)}</span></h1>{place}</header>
<main>{body}</main>
</body>
</html>
"""
    with map_os_errors(Path(path)):
        Path(path).write_text(page, encoding="utf-8", errors="replace")
