"""`shardflow sync SRC DST`."""

from __future__ import annotations

import time

import click

import shardflow

from .shown import number_of, shard_bar


@click.command(short_help="Copy a dataset between disks and buckets, verified.")
@click.argument("src", type=click.Path())
@click.argument("dst", type=click.Path())
def sync(src: str, dst: str) -> None:
    """Copy the dataset at SRC to DST; each is a directory or a URL such as s3://bucket/photos256.

    Every shard is checked against the manifest on its way, and the manifest is written last. The same command goes on
    where one was stopped; a copy that is whole is left as it is.

    \b
    Examples:
      shardflow sync s3://bucket/photos256 /data/photos256
      shardflow sync photos256/ s3://bucket/photos256
    """
    started = time.perf_counter()
    shards = [shard for split in shardflow.open(src).values() for shard in split.shards]
    with shard_bar(shards, "copying") as progress:
        report = shardflow.sync(src, dst, progress=progress)
    seconds = time.perf_counter() - started
    click.echo(f"copied {number_of(report.copied, 'shard')}, {report.copied_bytes / 1e6:.1f} MB, in {seconds:.1f} s")
    if report.found:
        click.echo(f"{number_of(report.found, 'shard')}, {report.found_bytes / 1e6:.1f} MB, there already")
