"""`shardflow split`: a validation split held out, or k folds, over the same tars."""

from __future__ import annotations

import click

import shardflow

from .options import PathOrUrl
from .output import print_report, shard_bar


@click.command()
@click.argument("url", type=PathOrUrl())
@click.argument("dst", type=PathOrUrl())
@click.option("--val", type=float, help="Share of the training samples to hold out.  [default: 0.1]")
@click.option("--folds", type=click.IntRange(min=2), help="Make DST/fold0, DST/fold1, ...: a k-fold cross-validation.")
@click.option("--seed", default=0, show_default=True, help="Seed of the selection.")
def split(url: str, dst: str, val: float | None, folds: int | None, seed: int) -> None:
    """Split the training samples of a dataset into train and val, without copying tars.

    The new dataset at DST holds out the same share of every class. With --folds, each training sample is held out in
    exactly one of the new datasets. Other splits stay as they are.

    \b
    Examples:
      shardflow split photos256/ photos256-split/ --val 0.1
      shardflow split photos256/ photos256-folds/ --folds 5
    """
    if val is not None and folds is not None:
        raise click.UsageError("choose --val or --folds, not both")
    dataset = shardflow.open(url)
    with shard_bar(dataset["train"].shards, "reading", disable=dataset.classes is None) as progress:
        if folds is None:
            reports = [(shardflow.split(url, dst, val=0.1 if val is None else val, seed=seed, progress=progress), dst)]
        else:
            made = shardflow.split_folds(url, dst, folds=folds, seed=seed, progress=progress)
            reports = [(report, f"{dst.rstrip('/')}/fold{fold}") for fold, report in enumerate(made)]
    for report, place in reports:
        print_report(report, place)
