"""`shardflow merge URL URL... DST`."""

from __future__ import annotations

import click

import shardflow

from .options import PathOrUrl
from .output import print_report
from .progress_bars import show_waiting


@click.command()
@click.argument("urls", type=PathOrUrl(), nargs=-1, required=True, metavar="URL URL...")
@click.argument("dst", type=PathOrUrl())
def merge(urls: tuple[str, ...], dst: str) -> None:
    """Merge several datasets into one at DST, split by split, without copying tars.

    A sample of several datasets comes once. All datasets must number their classes equally, because the numbers are
    stored in the tars.

    \b
    Example:
      shardflow merge photos256/ sketches256/ both256/
    """
    with show_waiting("merging"):
        report = shardflow.merge(urls, dst)
    print_report(report, dst)
