"""`shardflow split`: a validation split held out, over the same tars."""

from __future__ import annotations

import click

import shardflow

from .output import print_report, shard_bar


@click.command()
@click.argument("url", type=click.Path())
@click.argument("dst", type=click.Path())
@click.option("--val", default=0.1, show_default=True, help="Share of the training samples to hold out.")
@click.option("--seed", default=0, show_default=True, help="Seed of the selection.")
def split(url: str, dst: str, val: float, seed: int) -> None:
    """Split the training samples of a dataset into train and val, without copying tars.

    The new dataset at DST holds out the same share of every class. Other splits stay as they are.

    \b
    Example:
      shardflow split photos256/ photos256-split/ --val 0.1
    """
    dataset = shardflow.open(url)
    with shard_bar(dataset["train"].shards, "reading", disable=dataset.classes is None) as progress:
        report = shardflow.split(url, dst, val=val, seed=seed, progress=progress)
    print_report(report, dst)
