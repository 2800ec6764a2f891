"""`shardflow subset URL DST`."""

from __future__ import annotations

from typing import Any

import click

import shardflow
from shardflow._wording import first_few
from shardflow.storage.urls import shown_url

from .options import PathOrUrl, keys_option, names_option, where_option
from .output import print_lines, print_report
from .progress_bars import shard_bar

_NAMED = 5


@click.command()
@click.argument("url", type=PathOrUrl())
@click.argument("dst", type=PathOrUrl())
@names_option("--classes", help="Class names, separated by commas; 'quote' a name that has a comma.")
@keys_option
@where_option
@click.option("--fraction", type=float, help="Share of each split, such as 0.1.")
@click.option("--limit", type=int, help="Maximum number of samples per split.")
@click.option("--seed", default=0, show_default=True, help="Seed of --fraction and --limit.")
def subset(
    url: str, dst: str, classes: list[str] | None, keys: list[str] | None, where: str | None, **settings: Any
) -> None:
    """Select samples of a dataset as a new dataset at DST, without copying tars.

    DST gets a manifest and indexes, and is read like any dataset as long as the tars are not moved. Classes keep their
    numbers. With the same seed, a smaller share is part of a larger one.

    \b
    Examples:
      shardflow subset photos256/ cats256/ --classes cat,kitten
      shardflow subset s3://bucket/photos256 tenth256/ --fraction 0.1
      shardflow subset photos256/ good256/ --keys good.txt
      shardflow subset photos256/ sharp256/ --where "score > 0.5 and width >= 512 and class in ('cat', 'dog')"
    """
    dataset = shardflow.open(url)
    passes = (classes is not None) + (keys is not None) + (where is not None)
    with shard_bar(dataset.shards * passes, "reading") as progress:
        report = shardflow.subset(url, dst, classes=classes, keys=keys, where=where, progress=progress, **settings)
    print_report(report, dst)
    if classes is not None and (known := dataset.classes):
        numbers = ", ".join(f"{first_few([name], 1)} {known.index(name)}" for name in classes[:_NAMED])
        numbers += ", ..." * (len(classes) > _NAMED)
        again = f"shardflow pack {shown_url(dst)} NEW --preset original --classes FILE"
        remedy = f"write their names into FILE and run `{again}`"
        print_lines([("labels", f"{numbers}, as before; to number them from 0, {remedy}")], 14)
