"""`shardflow columns add`, `shardflow columns list` and `shardflow columns drop`."""

from __future__ import annotations

from typing import Any

import click

import shardflow
from shardflow._wording import plural
from shardflow.dataset.columns import ALLOWED

from .info import column_lines, describe_columns
from .options import PathOrUrl, json_option, names_option
from .output import print_json, print_lines, resumable
from .progress_bars import shard_bar
from .terminal import say


@click.group()
def columns() -> None:
    """Add captions, scores, embeddings or other values to the samples of a dataset, without rewriting tars.

    Values are stored in one Parquet file per shard. The dataset gets a new version, as by `shardflow extend`.

    \b
    Examples:
      shardflow columns add photos256/ scores.parquet --key key
      shardflow columns list photos256/
      shardflow columns drop photos256/ score
    """


@columns.command()
@click.argument("url", metavar="DATASET", type=PathOrUrl())
@click.argument("table", type=PathOrUrl())
@click.option("--key", metavar="COLUMN", help="Column with the samples' keys, such as train:000000042.")
@click.option("--path", metavar="COLUMN", help="Instead of --key: column with the paths of the packed images.")
@names_option("--only", help="Columns to add, separated by commas.  [default: all others]")
@click.option("--split", help="Add values to the samples of this split only; others keep theirs.")
@click.option(
    "--allow",
    multiple=True,
    type=click.Choice(ALLOWED),
    help="Leave out rows that belong to no sample, or that repeat a key.",
)
@click.option(
    "--replace",
    is_flag=True,
    help="Replace the values of samples with a row; others keep theirs, as do earlier versions.",
)
@click.option("--to", metavar="DST", type=PathOrUrl(), help="Make a virtual dataset with the columns at DST instead.")
def add(url: str, table: str, only: list[str] | None, to: str | None, **settings: Any) -> None:
    """Add columns of TABLE, a Parquet, CSV, TSV or JSON lines file or its URL, to DATASET.

    Values are numbers, texts, or lists of numbers of one length. Samples without a row have no value. With --to,
    DATASET, for example another team's, does not change. After an interruption, run the same command again.

    \b
    Examples:
      shardflow columns add photos256/ scores.parquet --key key
      shardflow columns add photos256/ captions.csv --path file --only caption
      shardflow columns add s3://bucket/photos256 scores.parquet --key key --to scored256/
    """
    with resumable(), shard_bar(shardflow.open(url).shards, "adding") as progress:
        report = shardflow.columns.add(url, table, only=only, to=to, progress=progress, **settings)
    lines = {
        "columns": ", ".join(f"{name} {kind}" for name, kind in report.columns.items()),
        **{
            split: f"{count:,} of {plural(report.samples[split], 'sample')} have a row"
            for split, count in report.matched.items()
        },
        "unmatched": report.unmatched and f"{plural(report.unmatched, 'row')} left out",
        "repeated": report.repeated and f"{plural(report.repeated, 'row')} left out",
        "fingerprint": report.fingerprint,
    }
    print_lines(lines.items(), 13)


@columns.command("list")
@click.argument("url", metavar="DATASET", type=PathOrUrl())
@json_option
def list_columns(url: str, as_json: bool) -> None:
    """List the columns of DATASET, their types, and how many samples have no value."""
    described = describe_columns(shardflow.open(url))
    if as_json:
        print_json(described)
    elif described:
        print_lines(column_lines(described), 8)
    else:
        say("no columns")


@columns.command()
@click.argument("url", metavar="DATASET", type=PathOrUrl())
@click.argument("names", nargs=-1, required=True)
def drop(url: str, names: tuple[str, ...]) -> None:
    """Make a version of DATASET without some columns. Their files stay, because earlier versions have them."""
    print_lines([("dropped", ", ".join(names)), ("fingerprint", shardflow.columns.drop(url, names))], 13)
