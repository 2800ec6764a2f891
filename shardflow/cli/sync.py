"""`shardflow sync SRC DST`."""

from __future__ import annotations

import time

import click

import shardflow

from .shown import megabytes, number_of, shard_bar


@click.command(short_help="Copy a dataset between disks and buckets, verified.")
@click.argument("src", type=click.Path())
@click.argument("dst", type=click.Path())
def sync(src: str, dst: str) -> None:
    """Copy the dataset at SRC to DST; each is a directory or a URL such as s3://bucket/photos256.

    Every shard is checked against the manifest on its way, and the manifest is written last. The same command goes on
    where one was stopped, and gives a copy back what it has lost; `verify` looks for damage inside of files.

    \b
    Examples:
      shardflow sync s3://bucket/photos256 /data/photos256
      shardflow sync photos256/ s3://bucket/photos256
    """
    started = time.perf_counter()
    shards = shardflow.open(src).shards
    with shard_bar(shards, "copying") as progress:
        report = shardflow.sync(src, dst, progress=progress)
    seconds = time.perf_counter() - started
    click.echo(f"copied {number_of(report.copied, 'shard')}, {megabytes(report.copied_bytes)}, in {seconds:.1f} s")
    if report.found:
        click.echo(f"{number_of(report.found, 'shard')}, {megabytes(report.found_bytes)}, there already")
