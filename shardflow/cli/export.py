"""`shardflow export dali URL [DIRECTORY]`, and the same for `energon`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import click

import shardflow
from shardflow._wording import plural
from shardflow.interop.dali import write_dali_indexes
from shardflow.interop.energon import write_energon

from .options import PathOrUrl, option_group
from .output import shard_bar


@click.group()
def export() -> None:
    """Write the index files that other tools need to read a dataset. The shards are plain tars and stay as they are.

    \b
    Examples:
      shardflow export dali photos256/
      shardflow export energon photos256/
    """


_places = option_group(
    click.argument("url", type=PathOrUrl()),
    click.argument("directory", type=PathOrUrl(file_okay=False), required=False),
)


@export.command()
@_places
def dali(url: str, directory: str | None) -> None:
    """Write index files for the webdataset reader of NVIDIA DALI.

    There is one for each shard, train/000000.idx for train/000000.tar, in DIRECTORY or beside the shards of a local
    dataset. Without index files the reader scans every tar before it starts.

    \b
    Examples:
      shardflow export dali photos256/
      shardflow export dali s3://bucket/photos256 indexes/
    """
    click.echo(f"wrote {_write(write_dali_indexes, url, directory)}")


@export.command()
@_places
def energon(url: str, directory: str | None) -> None:
    """Write metadata and index files for Megatron Energon.

    They replace `energon prepare`, and no tar is read. Energon expects them beside the shards of a local dataset; for
    other datasets, write them to DIRECTORY and copy them there.

    \b
    Examples:
      shardflow export energon photos256/
    """
    click.echo(f"wrote .nv-meta and {_write(write_energon, url, directory)}")


def _write(write: Callable[..., Iterator[object]], url: str, directory: str | None) -> str:
    dataset = shardflow.open(url)
    with shard_bar(dataset.shards, "indexing") as progress:
        for shard, _ in itertools.zip_longest(dataset.shards, write(dataset, directory)):
            if shard is not None:  # Energon's last file describes the whole dataset
                progress(shard)
    return f"{plural(len(dataset.shards), 'index file')} to {directory or url}"
