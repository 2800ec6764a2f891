"""`shardflow split`: a validation split held out, or k folds, over the same tars."""

from __future__ import annotations

from typing import Any

import click

import shardflow

from .options import PathOrUrl
from .output import print_report, resumable, shard_bar


@click.command()
@click.argument("url", type=PathOrUrl())
@click.argument("dst", type=PathOrUrl())
@click.option("--val", type=float, help="Share of the training samples to hold out.  [default: 0.1]")
@click.option("--folds", type=click.IntRange(min=2), help="Make DST/fold0, DST/fold1, ...: a k-fold cross-validation.")
@click.option(
    "--group",
    metavar="FIELD",
    help="Keep samples with the same value of a field of their .json together, such as patient.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the selection.")
def split(url: str, dst: str, val: float | None, folds: int | None, group: str | None, seed: int) -> None:
    """Split the training samples of a dataset into train and val, without copying tars.

    The new dataset at DST holds out the same share of every class. With --folds, each training sample is held out in
    exactly one of the new datasets. Copies of one image stay together, and with --group all samples of one patient,
    place or video; packing a table makes a field of each of its other columns. Other splits stay as they are.

    \b
    Examples:
      shardflow split photos256/ photos256-split/ --val 0.1
      shardflow split photos256/ photos256-folds/ --folds 5
      shardflow split scans256/ scans256-split/ --group patient
    """
    if val is not None and folds is not None:
        raise click.UsageError("choose --val or --folds, not both")
    dataset = shardflow.open(url)
    passes = (dataset.classes is not None) + (group is not None)
    settings: dict[str, Any] = {"group": group, "seed": seed}
    made: tuple[shardflow.reports.VirtualReport, ...]
    with shard_bar(dataset["train"].shards[:] * passes, "splitting") as progress:
        if folds is None:
            made = (shardflow.split(url, dst, val=0.1 if val is None else val, progress=progress, **settings),)
            places = [dst]
        else:
            with resumable():
                made = shardflow.split_folds(url, dst, folds=folds, progress=progress, **settings)
            places = [f"{dst.rstrip('/')}/fold{fold}" for fold in range(folds)]
    for report, place in zip(made, places, strict=True):
        print_report(report, place)
