"""`shardflow merge URL URL... DST`."""

from __future__ import annotations

import click

import shardflow

from .viewed import show_view


@click.command(short_help="Make one dataset of several, over the same tars.")
@click.argument("urls", type=click.Path(), nargs=-1, required=True)
@click.argument("dst", type=click.Path())
def merge(urls: tuple[str, ...], dst: str) -> None:
    """Make a dataset at DST of all samples of the datasets at URLS, split by split. No tar is copied.

    A sample that several of them have is there once. All must mean the same classes by their numbers, which are inside
    the tars.

    \b
    Example:
      shardflow merge photos256/ sketches256/ both256/
    """
    report = shardflow.merge(urls, dst)
    show_view(report, dst)
