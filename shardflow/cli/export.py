"""`shardflow export`: what other tools need to read a dataset; `dali`, `energon URL [DIR]`."""

from __future__ import annotations

import itertools

import click

import shardflow
from shardflow.interop.dali import write_dali_indexes
from shardflow.interop.energon import write_energon

from .shown import number_of, shard_bar


@click.group(short_help="Write what other tools need to read a dataset.")
def export() -> None:
    """Write what other tools need to read a dataset. The shards themselves are plain tars and need nothing.

    \b
    Examples:
      shardflow export dali photos256/
      shardflow export energon photos256/
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
    with shard_bar(dataset.shards, "indexing") as progress:
        for shard, _ in zip(dataset.shards, write_dali_indexes(dataset, directory), strict=True):
            progress(shard)
    click.echo(f"wrote {number_of(len(dataset.shards), 'index file')} below {directory or url}")


@export.command(short_help="Metadata and indexes for Megatron Energon.")
@click.argument("url", type=click.Path())
@click.argument("directory", type=click.Path(file_okay=False), required=False)
def energon(url: str, directory: str | None) -> None:
    """Write `.nv-meta` and the index files that Megatron Energon needs, in place of `energon prepare`. No tar is read.

    They go beside the shards of a local dataset, where Energon looks; for others into DIRECTORY, to be copied there.

    \b
    Examples:
      shardflow export energon photos256/
    """
    dataset = shardflow.open(url)
    with shard_bar(dataset.shards, "indexing") as progress:
        for shard, _ in itertools.zip_longest(dataset.shards, write_energon(dataset, directory)):
            if shard is not None:  # after them comes the description of the whole
                progress(shard)
    click.echo(f"wrote .nv-meta and {number_of(len(dataset.shards), 'index file')} below {directory or url}")
