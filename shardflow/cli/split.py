"""`shardflow split URL DST`."""

from __future__ import annotations

import click

import shardflow

from .shown import shard_bar
from .viewed import show_view


@click.command(short_help="Hold out a validation part of a dataset, over the same tars.")
@click.argument("url", type=click.Path())
@click.argument("dst", type=click.Path())
@click.option("--val", default=0.1, show_default=True, help="Share of the training samples that is held out.")
@click.option("--seed", default=0, show_default=True, help="Another one holds out others.")
def split(url: str, dst: str, val: float, seed: int) -> None:
    """Make a dataset at DST with the splits train and val out of the split train at URL. No tar is copied.

    Every class gives the same share. Other splits are taken along as they are.

    \b
    Example:
      shardflow split photos256/ photos256-held-out/ --val 0.1
    """
    dataset = shardflow.open(url)
    with shard_bar(dataset["train"].shards, "reading", disable=dataset.classes is None) as progress:
        report = shardflow.split(url, dst, val=val, seed=seed, progress=progress)
    show_view(report, dst)
