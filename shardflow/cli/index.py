"""`shardflow index URL...`."""

from __future__ import annotations

import contextlib
from typing import NoReturn

import click
from tqdm import tqdm

import shardflow

from .viewed import show_view

_SHOWN = 20


@click.command(short_help="Make existing tars readable where they are.")
@click.argument("urls", type=click.Path(), nargs=-1, required=True, metavar="URL...")
@click.option("--to", type=click.Path(), help="Where the manifest and the indexes go.  [default: beside the tars]")
@click.option("--classes", type=click.Path(exists=True, dir_okay=False), help="File with the names of the classes.")
@click.option("--max-bad", default=0, show_default=True, help="Samples that may be left out.")
def index(urls: tuple[str, ...], to: str | None, classes: str | None, max_bad: int) -> None:
    """Make tars in the WebDataset convention, such as img2dataset's, readable for the loader as they are.

    URL is a directory, a tar, or a pattern with braces or wildcards (in quotes), on a disk, in a bucket or behind
    https. Each tar is read through once: samples are counted, indexed and sealed by checksums. Samples that are
    incomplete, there twice or torn apart are named and left out, if there are no more of them than --max-bad.

    \b
    Examples:
      shardflow index laion/
      shardflow index 's3://bucket/laion/{00000..00099}.tar' --to laion-index/
    """
    with contextlib.ExitStack() as stack:
        bars: list[tqdm[NoReturn]] = []

        def progress(done: int, of: int) -> None:
            if not bars:  # it appears when the tars are found
                bars.append(stack.enter_context(tqdm(total=of, desc="reading", unit=" tars")))
            bars[0].update(done - bars[0].n)

        report = shardflow.index(urls, to, classes=classes, max_bad=max_bad, progress=progress)
    for bad in report.bad[:_SHOWN]:
        click.echo(f"left out: {bad.path}: {bad.reason}")
    if len(report.bad) > _SHOWN:
        click.echo(f"left out: {len(report.bad) - _SHOWN} more, all listed in quarantine.jsonl")
    show_view(report, report.url)
