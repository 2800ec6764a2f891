"""`shardflow export`: what other tools need to read a dataset; `dali URL [DIR]`."""

from __future__ import annotations

import click

import shardflow
from shardflow.dali import write_dali_indexes

from .shown import shard_bar


@click.group(short_help="Write what other tools need to read a dataset.")
def export() -> None:
    """Write what other tools need to read a dataset. The shards themselves are plain tars and need nothing.

    \b
    Examples:
      shardflow export dali photos256/
    """


@export.command(short_help="Index files for NVIDIA DALI's webdataset reader.")
@click.argument("url", type=click.Path())
@click.argument("directory", type=click.Path(file_okay=False), required=False)
def dali(url: str, directory: str | None) -> None:
    """Write the index files that NVIDIA DALI's webdataset reader takes, one for each shard of the dataset at URL.

    They go into DIRECTORY, or beside the shards of a local dataset: "train/000000.idx" for "train/000000.tar". Without
    them the reader walks through every tar before it starts.

    \b
    Examples:
      shardflow export dali photos256/
      shardflow export dali s3://bucket/photos256 indexes/
    """
    dataset = shardflow.open(url)
    shards = [shard for split in dataset.values() for shard in split.shards]
    with shard_bar(shards, "indexing") as progress:
        for shard, _ in zip(shards, write_dali_indexes(dataset, directory), strict=True):
            progress(shard)
    click.echo(f"wrote {len(shards)} index files below {directory or url}")
