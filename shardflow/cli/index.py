"""`shardflow index URL...`."""

from __future__ import annotations

from typing import Any

import click

import shardflow
from shardflow._wording import plural
from shardflow.formats.quarantine import version_name
from shardflow.packing.progress import DELAY_S, progress_bar

from .options import PathOrUrl, annotation_options, annotations_of
from .output import print_lines, print_report
from .progress_bars import ticking
from .terminal import say

_NAMED = 20


@click.command()
@click.argument("urls", type=PathOrUrl(), nargs=-1, required=True, metavar="URL...")
@click.option("--to", type=PathOrUrl(), help="Directory for manifest and indexes.  [default: next to the tars]")
@click.option("--classes", type=PathOrUrl(exists=True, dir_okay=False), help="File with the class names, one per line.")
@annotation_options
@click.option("--max-errors", default=0, show_default=True, help="Bad samples to allow.")
def index(urls: tuple[str, ...], to: str | None, classes: str | None, max_errors: int, **declared: Any) -> None:
    """Index existing WebDataset tars, so that the loader can read them where they are.

    URL is a directory, a tar, or a quoted pattern with braces or wildcards, on a disk, in a bucket or on a web server.
    Each tar is read once, to find its samples and compute checksums. Samples that are incomplete, scattered or repeated
    in a tar are reported and left out, up to --max-errors of them. Tars in folders like `val`, or with names like
    photos-val-000.tar, belong to that split. To include new tars, index all of them into another place.

    \b
    Examples:
      shardflow index laion/
      shardflow index 's3://bucket/laion/{00000..00099}.tar' --to laion-index/
    """
    annotations = annotations_of(declared)
    with progress_bar(desc="reading", unit=" tars", delay=DELAY_S) as bar, ticking(bar):

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        report = shardflow.index(
            urls, to, classes=classes, annotations=annotations, max_errors=max_errors, progress=progress
        )
    for bad in report.bad[:_NAMED]:
        say(f"left out: {bad.path}: {bad.reason}")
    if len(report.bad) > _NAMED:
        listed = version_name(report.fingerprint)
        say(f"left out: {plural(len(report.bad) - _NAMED, 'more sample')}; all are listed in {listed}")
    if report.lost:
        say(f"left out: about {plural(report.lost, 'sample')} after the damage of tars")
    print_report(report, report.url)
    if shardflow.open(report.url).classes is None:
        print_lines([("labels", "none")], 14)
