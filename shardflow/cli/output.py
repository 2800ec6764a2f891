"""Output that several commands share."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

import shardflow
from shardflow._wording import STOPPED, first_few, plural
from shardflow.formats.quarantine import Quarantined
from shardflow.formats.shard import Shard
from shardflow.packing.sources.source import describe_skipped
from shardflow.storage.urls import shown_url

from .terminal import say

_MOST_CLASSES = 20

_OPERATIONS = {
    "again": "encoded again",
    "boxes_outside": "boxes outside of the packed image, which became zeros",
    "converted": "converted from their profile to sRGB",
    "dark_16_bits": "with 16 bits and values below a quarter of their range, nearly black in 8 bits",
    "enlarged": "enlarged",
    "first_frame": "reduced to the first frame",
    "kept": "kept as encoded",
    "on_white": "with transparency, composited on white",
    "profile_unusable": "with an unusable colour profile",
    "turned": "rotated upright",
}


@contextlib.contextmanager
def resumable() -> Iterator[None]:
    """Say how to resume if the body, which keeps its finished work, is stopped."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        say(STOPPED % "command", err=True)
        raise


def total_bytes(shards: Sequence[Shard]) -> int:
    """Return the size of all shards together."""
    return sum(shard.bytes for shard in shards)


def print_json(value: Any) -> None:
    """Print one JSON object."""
    click.echo(json.dumps(value, indent=1))


def print_lines(lines: Iterable[tuple[str, Any]], width: int) -> None:
    """Print a line per name and text, with names in a column of this width; lines with empty texts are left out."""
    for name, text in lines:
        if text:
            say(f"{name:{width}}{text}")


def print_result(value: Any, lines: Iterable[tuple[str, Any]], width: int, *, as_json: bool) -> None:
    """Print a result as one JSON object, or as lines."""
    if as_json:
        print_json(value)
    else:
        print_lines(lines, width)


def skipped_text(skipped: Sequence[Quarantined]) -> str:
    """Return the images of unsupported kinds, and the remedy; "" if there are none."""
    return f"{describe_skipped(skipped)}; to leave them out, use --max-errors {len(skipped)}" if skipped else ""


def operation_counts(counts: Mapping[str, int]) -> str:
    """Return the operations of packing with their numbers of images or boxes; "" if there are none."""
    again = counts.get("images", 0) - counts["kept"] if counts.get("kept") else 0
    shown = {**counts, "again": again}
    return "; ".join(f"{shown[name]:,} {words}" for name, words in _OPERATIONS.items() if shown.get(name))


def print_report(report: shardflow.reports.VirtualReport, dst: str) -> None:
    """Print the splits of a virtual dataset, with the sizes of its classes unless there are many."""
    splits = {}
    for split, samples in report.samples.items():
        splits[split] = f"{plural(samples, 'sample')} in {plural(report.shards[split], 'shard')}"
        if 0 < len(counts := report.classes.get(split, {})) <= _MOST_CLASSES:
            splits[split] += f": {', '.join(f'{first_few([name], 1)} {count:,}' for name, count in counts.items())}"
    place = f"{shown_url(dst)} (the tars stay where they are)"
    print_lines([("dataset", place), *splits.items(), ("fingerprint", report.fingerprint)], 14)
