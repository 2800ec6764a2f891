"""Output that several commands share: progress bars, numbers with units, and reports."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import click
from tqdm import tqdm

import shardflow
from shardflow._wording import plural
from shardflow.formats.shard import Shard
from shardflow.packing.progress import DELAY_S, PackBar
from shardflow.storage.urls import shown_url

from .terminal import say

_TICK_S = 1.0

_OPERATIONS = {
    "converted": "converted from their profile to sRGB",
    "enlarged": "enlarged",
    "first_frame": "reduced to the first frame",
    "kept": "kept as encoded",
    "on_white": "with transparency, composited on white",
    "profile_unusable": "with an unusable colour profile",
    "turned": "rotated upright",
}


@contextlib.contextmanager
def shard_bar(shards: Sequence[Shard], doing: str, *, disable: bool = False) -> Iterator[Callable[[Shard], None]]:
    """Show a progress bar over the bytes of shards; call the yielded function with each finished shard.

    Without shards it only shows that the work goes on, see `show_waiting`.
    """
    if not shards:
        with show_waiting(doing, disable=disable):
            yield lambda _: None
        return
    with tqdm(total=total_bytes(shards), desc=doing, unit="B", unit_scale=True, disable=disable) as bar, ticking(bar):

        def progress(shard: Shard) -> None:
            bar.update(shard.bytes)

        yield progress


@contextlib.contextmanager
def show_waiting(doing: str, *, disable: bool = False) -> Iterator[None]:
    """Show the running task in a terminal, and for how long, if it takes longer than `DELAY_S`."""
    hidden = disable or not sys.stderr.isatty()
    shown = tqdm(desc=doing, bar_format="{desc}: {elapsed}", delay=DELAY_S, leave=False, disable=hidden)
    with shown as bar, ticking(bar):
        yield


@contextlib.contextmanager
def ticking(bar: tqdm[NoReturn]) -> Iterator[None]:
    """Let the time of a bar advance in a terminal, also while nothing is finished."""
    ended, begin = threading.Event(), time.monotonic()

    def tick() -> None:
        while not ended.wait(_TICK_S):
            if time.monotonic() >= begin + (bar.delay or 0):
                bar.refresh()

    with contextlib.ExitStack() as stack:
        if not bar.disable and sys.stderr.isatty():
            thread = threading.Thread(target=tick, daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(ended.set)
        yield


@contextlib.contextmanager
def pack_bar() -> Iterator[PackBar]:
    """Show the progress bar of a pack. If the pack is stopped, say how to resume."""
    with resumable(), PackBar() as bar:
        yield bar


@contextlib.contextmanager
def resumable() -> Iterator[None]:
    """Say how to resume if the body, which keeps what it has finished, is stopped."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        say("shardflow: stopped; finished work is kept: run the same command again to resume", err=True)
        raise


def total_bytes(shards: Sequence[Shard]) -> int:
    """Return the size of all shards together."""
    return sum(shard.bytes for shard in shards)


def first_few(names: Sequence[str], most: int) -> str:
    """Return the first names of a list, with an ellipsis if there are more."""
    return f"{', '.join(names[:most])}{', ...' if len(names) > most else ''}"


def print_json(value: Any) -> None:
    """Print one JSON object."""
    click.echo(json.dumps(value, indent=1))


def print_lines(lines: Iterable[tuple[str, Any]], width: int) -> None:
    """Print a line for each name and text, with the names in a column of this width."""
    for name, text in lines:
        say(f"{name:{width}}{text}")


def operation_counts(counts: Mapping[str, int]) -> str:
    """Return the operations that packing applied to images, each with its number of images; "" if there are none."""
    return "; ".join(f"{counts[name]:,} {words}" for name, words in _OPERATIONS.items() if counts.get(name))


def print_report(report: shardflow.reports.VirtualReport | shardflow.reports.IndexReport, dst: str) -> None:
    """Print what a virtual dataset consists of."""
    splits = {
        split: f"{plural(samples, 'sample')} in {plural(report.shards[split], 'shard')}"
        for split, samples in report.samples.items()
    }
    place = f"{shown_url(dst)} (the tars stay where they are)"
    print_lines([("dataset", place), *splits.items(), ("fingerprint", report.fingerprint)], 14)
