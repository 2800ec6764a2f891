"""Output that several commands share: progress bars, numbers with units, and reports."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import click
from tqdm import tqdm

import shardflow
from shardflow._wording import plural
from shardflow.formats.manifest import Shard
from shardflow.packing.run import Progress

_OPERATIONS = {
    "converted": "converted from their profile to sRGB",
    "enlarged": "enlarged",
    "first_frame": "reduced to the first frame",
    "kept": "kept as encoded",
    "profile_unusable": "with an unusable colour profile",
    "turned": "rotated upright",
}


@contextlib.contextmanager
def shard_bar(shards: Sequence[Shard], doing: str, *, disable: bool = False) -> Iterator[Callable[[Shard], None]]:
    """Show a progress bar over the bytes of shards; call the yielded function with each finished shard."""
    with tqdm(total=total_bytes(shards), desc=doing, unit="B", unit_scale=True, disable=disable) as bar:

        def progress(shard: Shard) -> None:
            bar.update(shard.bytes)

        yield progress


class PackBar(contextlib.AbstractContextManager["PackBar"]):
    """The progress bar of a pack; it appears with the first progress. If the pack is stopped, it says how to resume."""

    def __init__(self) -> None:
        self._bar: tqdm[NoReturn] | None = None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
        if kind is not None and issubclass(kind, (KeyboardInterrupt, SystemExit)):
            click.echo("shardflow: stopped; finished work is kept: run the same command again to resume", err=True)

    def update(self, progress: Progress) -> None:
        """Show the current progress."""
        if self._bar is None:
            self._bar = tqdm(total=progress.inputs, initial=progress.resumed, desc="packing", unit=" images")
        self._bar.set_postfix_str(f"{megabytes(progress.bytes_in)} -> {megabytes(progress.bytes_out)}", refresh=False)
        self._bar.update(progress.done - self._bar.n)


def total_bytes(shards: Sequence[Shard]) -> int:
    """Return the size of all shards together."""
    return sum(shard.bytes for shard in shards)


def megabytes(count: int) -> str:
    """Return a number of bytes in megabytes, or in gigabytes from ten of them."""
    return f"{count / 1e6:,.1f} MB" if count < 10e9 else f"{count / 1e9:,.1f} GB"


def first_few(names: Sequence[str], most: int) -> str:
    """Return the first names of a list, with an ellipsis if there are more."""
    return f"{', '.join(names[:most])}{', ...' if len(names) > most else ''}"


def print_json(value: Any) -> None:
    """Print one JSON object."""
    click.echo(json.dumps(value, indent=1))


def print_lines(lines: Iterable[tuple[str, Any]], width: int) -> None:
    """Print a line for each name and text, with the names in a column of this width."""
    for name, text in lines:
        click.echo(f"{name:{width}}{text}")


def operation_counts(counts: Mapping[str, int]) -> str:
    """Return the operations that packing applied to images, each with its number of images; "" if there are none."""
    return "; ".join(f"{counts[name]:,} {words}" for name, words in _OPERATIONS.items() if counts.get(name))


def print_report(report: shardflow.VirtualReport | shardflow.IndexReport, dst: str) -> None:
    """Print what a virtual dataset consists of."""
    splits = {
        split: f"{plural(samples, 'sample')} in {plural(report.shards[split], 'shard')}"
        for split, samples in report.samples.items()
    }
    lines = [("dataset", f"{dst} (the tars stay where they are)"), *splits.items(), ("fingerprint", report.fingerprint)]
    print_lines(lines, 14)
