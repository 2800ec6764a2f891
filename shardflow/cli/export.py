"""`shardflow export dali URL [DIRECTORY]`, and the same for `energon` and `card`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import click

import shardflow
from shardflow._wording import plural
from shardflow.interop.dali import write_dali_indexes
from shardflow.interop.dataset_card import write_card
from shardflow.interop.energon import write_energon
from shardflow.storage.urls import shown_url

from .options import PathOrUrl, option_group
from .progress_bars import shard_bar
from .terminal import say


@click.group()
def export() -> None:
    """Write index files for other tools, or a dataset card. The shards are plain tars and stay unchanged.

    \b
    Examples:
      shardflow export dali photos256/
      shardflow export energon photos256/
      shardflow export card photos256/ --license cc-by-4.0
    """


_places = option_group(
    click.argument("url", type=PathOrUrl()),
    click.argument("directory", type=PathOrUrl(file_okay=False), required=False),
)


@export.command()
@_places
def dali(url: str, directory: str | None) -> None:
    """Write index files for the webdataset reader of NVIDIA DALI.

    Each shard gets one (train/000000.idx for train/000000.tar), in DIRECTORY or next to the shards of a local dataset.
    Without index files, the reader scans every tar before it starts.

    \b
    Examples:
      shardflow export dali photos256/
      shardflow export dali s3://bucket/photos256 indexes/
    """
    say(f"wrote {_write(write_dali_indexes, url, directory)}")


@export.command()
@_places
def energon(url: str, directory: str | None) -> None:
    """Write metadata and index files for Megatron Energon.

    They replace `energon prepare`; no tar is read. Energon expects them next to the shards: for a remote dataset, write
    them to DIRECTORY and copy them next to the shards.

    \b
    Examples:
      shardflow export energon photos256/
    """
    say(f"wrote .nv-meta and {_write(write_energon, url, directory)}")


@export.command()
@_places
@click.option("--name", help="Name of the dataset.  [default: the last part of URL]")
@click.option("--license", "license_id", help="Licence: an identifier of the Hub, such as cc-by-4.0, or a URL.")
def card(url: str, directory: str | None, name: str | None, license_id: str | None) -> None:
    """Write a dataset card: README.md with metadata for the Hugging Face Hub, and croissant.json.

    Splits, classes, sizes and settings come from the manifest; no shard is read. The files go to DIRECTORY or next to
    the shards of a local dataset, and replace only files that this command wrote. A virtual dataset gets no
    croissant.json, which would describe whole tars.

    \b
    Examples:
      shardflow export card photos256/ --license cc-by-4.0
      shardflow export card s3://bucket/photos256 card/
    """
    for path in write_card(shardflow.open(url), directory, name=name, license=license_id):
        say(f"wrote {path}")


def _write(write: Callable[..., Iterator[object]], url: str, directory: str | None) -> str:
    dataset = shardflow.open(url)
    with shard_bar(dataset.shards, "indexing") as progress:
        for shard, _ in itertools.zip_longest(dataset.shards, write(dataset, directory)):
            if shard is not None:  # Energon's last file describes the whole dataset
                progress(shard)
    return f"{plural(len(dataset.shards), 'index file')} to {shown_url(directory or url)}"
