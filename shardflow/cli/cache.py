"""`shardflow cache`, `shardflow cache prune` and `shardflow cache warm URL`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import shardflow
from shardflow._validation import size_in_bytes
from shardflow._wording import plural, size_text
from shardflow.dataset.warming import warm as warm_splits
from shardflow.errors import NotFoundError
from shardflow.packing.removing import contents_of
from shardflow.storage.cache import LIMIT, Cache
from shardflow.storage.cache_directory import CachedFile

from .options import PathOrUrl, json_option
from .output import print_result, total_bytes
from .progress_bars import shard_bar, show_waiting
from .terminal import say


def _size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:  # noqa: ARG001 - click's
    return None if value is None else size_in_bytes(int(value) if value.isdecimal() else value)


def _existing(cache_dir: str | None) -> Cache:
    if cache_dir is not None and not Path(cache_dir).is_dir():
        raise NotFoundError(f"{cache_dir} does not exist; check --cache-dir")
    return Cache(cache_dir)


def _files(files: Sequence[CachedFile]) -> str:
    return f"{plural(len(files), 'file')}, {size_text(sum(file.bytes for file in files))}"


_directory = click.option(
    "--cache-dir", type=PathOrUrl(), help="Directory of the cache.  [default: ~/.cache/shardflow]"
)


@click.group(invoke_without_command=True)
@_directory
@json_option
@click.pass_context
def cache(ctx: click.Context, cache_dir: str | None, as_json: bool) -> None:
    """Show the cache of remote shards and decoded images.

    \b
    Examples:
      shardflow cache
      shardflow cache prune --limit 10GB
      shardflow cache warm s3://bucket/photos256 --split train
    """
    if ctx.invoked_subcommand is not None:
        if cache_dir is not None or as_json:
            raise click.UsageError(f"give the options of {ctx.invoked_subcommand!r} after its name")
        return
    found = _existing(cache_dir)
    blobs, decoded = found.blobs(), found.decoded()
    described: dict[str, Any] = {
        "directory": str(found.directory),
        "files": len(blobs),
        "bytes": sum(blob.bytes for blob in blobs),
        "decoded_files": len(decoded),
        "decoded_bytes": sum(blob.bytes for blob in decoded),
        "default_limit_bytes": found.limit_bytes,
        "disk_free_bytes": shutil.disk_usage(found.directory).free,
    }
    lines = {
        "directory": found.directory,
        "shards": _files(blobs),
        "decoded": _files(decoded),
        "limit": f"{size_text(found.limit_bytes)}, unless a loader sets another limit",
        "disk": f"{size_text(described['disk_free_bytes'])} free",
    }
    print_result(described, lines.items(), 11, as_json=as_json)


@cache.command()
@click.option("--limit", callback=_size, metavar="SIZE", help="Size to keep at most, such as 10GB; 0 removes all.")
@click.option(
    "--dataset", metavar="URL", type=PathOrUrl(), help="Remove the files of a dataset's version, and removed samples."
)
@click.option("--damaged", is_flag=True, help="Read all files, and remove damaged ones.")
@_directory
def prune(limit: int | None, dataset: str | None, damaged: bool, cache_dir: str | None) -> None:
    """Remove files from the cache, the least recently used first.

    These are shards and decoded images. Processes that have a removed file open can still read it.

    \b
    Examples:
      shardflow cache prune --limit 10GB
      shardflow cache prune --limit 0
      shardflow cache prune --dataset s3://bucket/photos256
      shardflow cache prune --damaged
    """
    if (limit is not None) + damaged + (dataset is not None) != 1:
        raise click.UsageError("give one of --limit, --dataset and --damaged")
    found = _existing(cache_dir)
    contents = set() if dataset is None else contents_of(shardflow.open(dataset, cache=found))
    with show_waiting("reading all files" if damaged else "removing files"):
        if dataset is not None:
            removed = found.remove_contents(contents)
        else:
            removed = found.prune_damaged() if damaged else found.prune(limit or 0)
    say(f"removed {_files(removed)}")
    if dataset is not None and (others := found.blobs()):
        say(f"kept {_files(others)}, of other datasets or earlier versions of this one; --limit 0 removes all")


@cache.command()
@click.argument("url")
@click.option("--split", help="Split to fetch.  [default: all]")
@click.option(
    "--limit", callback=_size, metavar="SIZE", default=LIMIT, show_default=True, help="Maximum size of the cache."
)
@_directory
def warm(url: str, split: str | None, limit: int, cache_dir: str | None) -> None:
    """Fetch the shards of a dataset into the cache in advance.

    \b
    Example:
      shardflow cache warm s3://bucket/photos256 --split train
    """
    kept = Cache(cache_dir, limit)
    dataset = shardflow.open(url, cache=kept)
    splits = [dataset[split]] if split is not None else list(dataset.values())
    shards = [shard for each in splits for shard in each.shards]
    with shard_bar(shards, "warming") as progress:
        warm_splits(splits, progress=progress)
    say(f"in {kept.directory}: {plural(len(shards), 'shard')}, {size_text(total_bytes(shards))}")
