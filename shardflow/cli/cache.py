"""`shardflow cache`: what the cache of remote shards holds, and `prune` and `warm` to change it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import click

import shardflow
from shardflow.dataset.warming import warm as warm_splits
from shardflow.errors import NotFoundError
from shardflow.storage.cache import LIMIT, Blob, Cache, size_in_bytes

from .shown import megabytes, number_of, shard_bar, total_bytes


def _size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:  # noqa: ARG001 - click's
    return None if value is None else size_in_bytes(value)


def _existing(cache_dir: str | None) -> Cache:
    if cache_dir is not None and not Path(cache_dir).is_dir():
        raise NotFoundError(f"{cache_dir} does not exist; check --cache-dir")
    return Cache(cache_dir)


_directory = click.option(
    "--cache-dir", type=click.Path(), help="The cache's directory; by default the user's, as for reading."
)


@click.group(
    short_help="Show what the cache of remote shards holds, prune it, or warm it.", invoke_without_command=True
)
@_directory
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def cache(ctx: click.Context, cache_dir: str | None, as_json: bool) -> None:
    """Show what the cache of remote shards and of decoded images holds.

    \b
    Examples:
      shardflow cache
      shardflow cache prune --limit 10GB
      shardflow cache warm s3://bucket/photos256 --split train
    """
    if ctx.invoked_subcommand is not None:
        if cache_dir is not None or as_json:
            raise click.UsageError(f"options of {ctx.invoked_subcommand!r} come after its name")
        return
    here = _existing(cache_dir)
    blobs, decoded = here.blobs(), here.decoded()
    disk = shutil.disk_usage(here.directory)
    described = {
        "directory": str(here.directory),
        "files": len(blobs),
        "bytes": sum(blob.bytes for blob in blobs),
        "decoded_files": len(decoded),
        "decoded_bytes": sum(blob.bytes for blob in decoded),
        "default_limit_bytes": here.limit_bytes,
        "disk_free_bytes": disk.free,
    }
    if as_json:
        click.echo(json.dumps(described, indent=1))
        return
    click.echo(f"directory  {here.directory}")
    click.echo(f"files      {len(blobs):,}, {megabytes(sum(blob.bytes for blob in blobs))}")
    click.echo(f"limit      {megabytes(here.limit_bytes)}, unless the reader says another")
    click.echo(f"decoded    {number_of(len(decoded), 'file')}, {megabytes(sum(blob.bytes for blob in decoded))}")
    click.echo(f"disk       {megabytes(disk.free)} free")


@cache.command(short_help="Remove the least recently used files.")
@click.option("--limit", callback=_size, metavar="SIZE", help="Keep at most so much: '10GB'.")
@click.option("--all", "everything", is_flag=True, help="Remove everything.")
@click.option("--damaged", is_flag=True, help="Read everything, and remove what is damaged.")
@_directory
def prune(limit: int | None, everything: bool, damaged: bool, cache_dir: str | None) -> None:
    """Remove files from the cache, those of decoded images too, the least recently used first.

    Who is reading them goes on reading.

    \b
    Examples:
      shardflow cache prune --limit 10GB
      shardflow cache prune --all
      shardflow cache prune --damaged
    """
    if (limit is not None) + everything + damaged != 1:
        raise click.UsageError("give one of --limit, --all and --damaged")
    here = _existing(cache_dir)
    gone: Sequence[Blob] = here.prune_damaged() if damaged else here.prune(limit or 0)
    click.echo(f"removed {number_of(len(gone), 'file')}, {megabytes(sum(blob.bytes for blob in gone))}")


@cache.command(short_help="Fetch a dataset into the cache before it is needed.")
@click.argument("url")
@click.option("--split", help="This split alone; by default all of them.")
@click.option(
    "--limit", callback=_size, metavar="SIZE", default=LIMIT, show_default=True, help="The most the cache may hold."
)
@_directory
def warm(url: str, split: str | None, limit: int, cache_dir: str | None) -> None:
    """Fetch all shards of the dataset at URL that are not in the cache yet.

    \b
    Example:
      shardflow cache warm s3://bucket/photos256 --split train
    """
    dataset = shardflow.open(url, cache=Cache(cache_dir, limit))
    splits = [dataset[split]] if split is not None else list(dataset.values())
    shards = [shard for each in splits for shard in each.shards]
    with shard_bar(shards, "warming") as progress:
        warm_splits(splits, progress=progress)
    click.echo(f"in the cache: {number_of(len(shards), 'shard')}, {megabytes(total_bytes(shards))}")
