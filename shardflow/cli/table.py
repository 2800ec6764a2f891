"""`shardflow table DATASET OUT`."""

from __future__ import annotations

import click

import shardflow
from shardflow._wording import plural
from shardflow.storage.urls import shown_url

from .options import PathOrUrl, names_option
from .progress_bars import shard_bar
from .terminal import say


@click.command()
@click.argument("url", metavar="DATASET", type=PathOrUrl())
@click.argument("to", metavar="OUT", type=PathOrUrl())
@names_option("--only", help="Columns to write, separated by commas.  [default: all]")
def table(url: str, to: str, only: list[str] | None) -> None:
    """Write a table of the samples of DATASET to OUT, a new .parquet file or its URL.

    It has a row per sample: split, shard, number, key, class, classes, width, height, bytes, source (the path
    from which it was packed), and added columns. Keys in tars of other tools are read from the tars, unless --only
    leaves them out.

    \b
    Examples:
      shardflow table photos256/ photos256.parquet
      shardflow table s3://bucket/photos256 s3://bucket/photos256.parquet --only key,class,score
    """
    with shard_bar(shardflow.open(url).shards, "reading") as progress:
        rows = shardflow.columns.to_parquet(url, to, only=only, progress=progress)
    say(f"wrote {plural(rows, 'row')} to {shown_url(to)}")
