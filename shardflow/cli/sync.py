"""`shardflow sync SRC DST`."""

from __future__ import annotations

import time

import click

import shardflow
from shardflow._wording import plural, size_text
from shardflow.dataset.virtual_dataset import tar_bytes, used_bytes
from shardflow.storage.urls import shown_url

from .info import earlier_versions
from .options import PathOrUrl
from .output import resumable
from .progress_bars import shard_bar
from .terminal import say

_MOST_IS_USED = 0.9


@click.command()
@click.argument("src", type=PathOrUrl())
@click.argument("dst", type=PathOrUrl())
@click.option("--version", metavar="FINGERPRINT", help="Copy this version instead of the newest.")
def sync(src: str, dst: str, version: str | None) -> None:
    """Copy a dataset from SRC to DST, with checksums; each is a directory or a URL such as s3://bucket/photos256.

    Each shard is checked against the manifest while it is copied, and the manifest is written last. Run the same
    command again to resume a copy, or to restore missing shards, indexes and columns of a finished copy. Damage inside
    files is found only by `shardflow verify`.

    One version of an extended dataset is copied; `shardflow info` lists the earlier ones.

    The tars of a virtual dataset, made by `subset` or `split`, are copied whole. To copy only its samples, pack them
    again: `shardflow pack SRC DST --preset original`.

    \b
    Examples:
      shardflow sync s3://bucket/photos256 /data/photos256
      shardflow sync photos256/ s3://bucket/photos256
    """
    started = time.perf_counter()
    dataset = shardflow.open(src, version=version)
    shards = dataset.shards
    if dataset.manifest.roots:
        used, whole = sum(used_bytes(dataset, split) for split in dataset), tar_bytes(dataset, shards)
        if used < _MOST_IS_USED * whole:
            remedy = f"`shardflow pack {shown_url(src)} {shown_url(dst)} --preset original` copies only the samples"
            note = f"the tars are copied whole: {size_text(whole)}, of which the samples take {size_text(used)}"
            say(f"{note}; {remedy}", err=True)
    with resumable(), shard_bar(shards, "copying") as progress:
        report = shardflow.sync(src, dst, version=version, progress=progress)
    seconds = time.perf_counter() - started
    say(f"copied {plural(report.copied, 'shard')}, {size_text(report.copied_bytes)}, in {seconds:.1f} s")
    if report.found:
        say(f"{plural(report.found, 'shard')}, {size_text(report.found_bytes)}, already at {shown_url(dst)}")
    if version is None and (earlier := earlier_versions(dataset)):
        newest = next(iter(earlier))
        say(f"not copied: {plural(len(earlier), 'earlier version')}, such as {newest}; --version copies one")
