"""`shardflow remove DATASET`."""

from __future__ import annotations

import click

import shardflow
from shardflow._wording import first_few, plural, size_text
from shardflow.storage.urls import is_remote, shown_url

from .options import PathOrUrl, keys_option, where_option
from .output import print_lines, resumable
from .progress_bars import shard_bar


@click.command()
@click.argument("url", metavar="DATASET", type=PathOrUrl())
@keys_option
@where_option
@click.option("--purge", is_flag=True, help="Delete all earlier versions, which still have the samples.")
def remove(url: str, keys: list[str] | None, where: str | None, purge: bool) -> int:
    """Remove samples from DATASET: rewrite their shards without them, as a new version.

    Other samples keep their keys, bytes and order. Earlier versions still have the samples, unless --purge deletes
    them: manifests, tars, indexes, columns and copies in this machine's cache. The purge keeps and names files that
    shardflow did not write; the exit code is then 1. --purge alone deletes earlier versions and removes no sample.
    After an interruption, run the same command again.

    \b
    Examples:
      shardflow remove photos256/ --keys withdrawn.txt --purge
      shardflow remove s3://bucket/photos256 --where "consent = 'no'" --purge
    """
    previous = shardflow.open(url)
    with resumable(), shard_bar(previous.shards, "removing") as progress:
        report = shardflow.remove(url, keys=keys, where=where, purge=purge, progress=progress)
    lines = {split: f"{plural(count, 'sample')} removed" for split, count in report.removed.items()}
    if not report.removed and (keys is not None or where is not None):
        lines["removed"] = "nothing: the samples with these keys were removed before"
    if report.receipt:
        lines |= {"shards": f"{report.shards:,} rewritten", "receipt": report.receipt}
    lines["fingerprint"] = report.fingerprint
    if purge:
        lines["purged"] = f"{plural(report.purged, 'file')} of earlier versions, {size_text(report.purged_bytes)}"
    else:
        lines["previous"] = previous.fingerprint if report.removed else ""
        lines["remains"] = f"in earlier versions; `shardflow remove {shown_url(url)} --purge` deletes those"
    if purge and is_remote(url):
        prune = f"shardflow cache prune --dataset {shown_url(url)} --cache-dir DIR"
        lines["caches"] = f"of other machines and directories still have the samples: run `{prune}`"
        kept = "a bucket with versioning or soft delete keeps deleted objects"
        lines["remains"] = f'{kept}: delete old versions too, see "Other copies" in docs/removing.md'
    if report.left:
        some = f"{plural(len(report.left), 'file')} that shardflow did not write, or that are damaged"
        lines["left"] = f"{some}: {first_few(report.left, 5)}; delete them if they hold removed samples"
    print_lines(lines.items(), 13)
    return 1 if report.left else 0
