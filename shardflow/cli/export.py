"""`shardflow export dali URL [DIRECTORY]`, and the same for `energon`."""

from __future__ import annotations

import itertools

import click

import shardflow
from shardflow.interop.dali import write_dali_indexes
from shardflow.interop.energon import write_energon

from .output import plural, shard_bar


@click.group()
def export() -> None:
    """Write the index files that other tools need to read a dataset. The shards are plain tars and stay as they are.

    \b
    Examples:
      shardflow export dali photos256/
      shardflow export energon photos256/
    """


@export.command()
@click.argument("url", type=click.Path())
@click.argument("directory", type=click.Path(file_okay=False), required=False)
def dali(url: str, directory: str | None) -> None:
    """Write index files for the webdataset reader of NVIDIA DALI.

    There is one for each shard, train/000000.idx for train/000000.tar, in DIRECTORY or beside the shards of a local
    dataset. Without index files the reader scans every tar before it starts.

    \b
    Examples:
      shardflow export dali photos256/
      shardflow export dali s3://bucket/photos256 indexes/
    """
    dataset = shardflow.open(url)
    with shard_bar(dataset.shards, "indexing") as progress:
        for shard, _ in zip(dataset.shards, write_dali_indexes(dataset, directory), strict=True):
            progress(shard)
    click.echo(f"wrote {plural(len(dataset.shards), 'index file')} to {directory or url}")


@export.command()
@click.argument("url", type=click.Path())
@click.argument("directory", type=click.Path(file_okay=False), required=False)
def energon(url: str, directory: str | None) -> None:
    """Write metadata and index files for Megatron Energon.

    They replace `energon prepare`, and no tar is read. Energon expects them beside the shards of a local dataset; for
    other datasets, write them to DIRECTORY and copy them there.

    \b
    Examples:
      shardflow export energon photos256/
    """
    dataset = shardflow.open(url)
    with shard_bar(dataset.shards, "indexing") as progress:
        for shard, _ in itertools.zip_longest(dataset.shards, write_energon(dataset, directory)):
            if shard is not None:  # the last file written describes the whole dataset
                progress(shard)
    click.echo(f"wrote .nv-meta and {plural(len(dataset.shards), 'index file')} to {directory or url}")
