"""`shardflow split URL DST`."""

from __future__ import annotations

from typing import Any

import click

import shardflow

from .options import PathOrUrl
from .output import print_report, resumable
from .progress_bars import shard_bar


@click.command()
@click.argument("url", type=PathOrUrl())
@click.argument("dst", type=PathOrUrl())
@click.option("--val", type=float, help="Share of the training samples for the split val.  [default: 0.1]")
@click.option("--test", type=float, help="Share of the training samples for the split test.")
@click.option(
    "--folds",
    metavar="NUMBER|FIELD",
    help="Make DST/fold0, DST/fold1, ... for cross-validation: a number, or the .json field with existing folds.",
)
@click.option(
    "--group",
    metavar="FIELD",
    help="Keep samples with the same value of a field of their .json together, such as patient.",
)
@click.option(
    "--keep",
    metavar="URL",
    type=PathOrUrl(),
    help="An earlier split of the dataset: its images keep their splits, and only new ones are split.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the selection.")
def split(
    url: str,
    dst: str,
    val: float | None,
    test: float | None,
    folds: str | None,
    group: str | None,
    keep: str | None,
    seed: int,
) -> None:
    """Split the training samples of a dataset into train and val or test, without copying tars.

    The new dataset at DST holds out the same share of every class. With --folds, each training sample is held out in
    exactly one of the new datasets. Copies of an image stay together, as do, with --group, all samples of a patient,
    place or video; `pack` adds the other columns of a table to the .json. Other splits do not change. After
    `extend`, --keep leaves the images of the earlier split where they are; without it, others are held out.

    \b
    Examples:
      shardflow split photos256/ photos256-split/ --val 0.1 --test 0.1
      shardflow split photos256/ photos256-folds/ --folds 5
      shardflow split table256/ table256-folds/ --folds fold
      shardflow split scans256/ scans256-split/ --group patient
      shardflow split scans256/ scans256-more/ --group patient --keep scans256-split/
    """
    if folds is not None and (val is not None or test is not None):
        raise click.UsageError("choose --folds, or --val and --test, not both")
    if folds is not None and keep is not None:
        raise click.UsageError(
            "--keep is for --val and --test; for folds, add a column with the old ones and give --folds its name"
        )
    given = int(folds) if folds is not None and folds.isdecimal() else folds
    dataset = shardflow.open(url)
    passes = (dataset.classes is not None) + (group is not None) + isinstance(given, str)
    settings: dict[str, Any] = {"group": group, "seed": seed}
    with shard_bar(dataset["train"].shards[:] * passes, "splitting") as progress:
        if given is None:
            made = {dst: shardflow.split(url, dst, val=val, test=test, keep=keep, progress=progress, **settings)}
        else:
            with resumable():
                folded = shardflow.split_folds(url, dst, folds=given, progress=progress, **settings)
            made = {f"{dst.rstrip('/')}/{name}": report for name, report in folded.items()}
    for place, report in made.items():
        print_report(report, place)
