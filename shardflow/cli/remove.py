"""`shardflow remove`: samples leave a dataset for good."""

from __future__ import annotations

from pathlib import Path

import click

import shardflow
from shardflow._wording import plural, size_text
from shardflow.storage.urls import is_remote

from .options import PathOrUrl, read_keys, where_option
from .output import print_lines, resumable
from .progress_bars import shard_bar


@click.command()
@click.argument("url", metavar="DATASET", type=PathOrUrl())
@click.option(
    "--keys",
    metavar="FILE",
    type=PathOrUrl(exists=True, dir_okay=False, path_type=Path),
    help="File with the samples' keys, one per line; train:000000042 for a key in several splits.",
)
@where_option
@click.option("--purge", is_flag=True, help="Delete all earlier versions, which still have the samples.")
def remove(url: str, keys: Path | None, where: str | None, purge: bool) -> None:
    """Remove samples from DATASET: rewrite the shards that hold them, as a new version.

    Other samples keep their keys, bytes and order. Only with --purge are the samples gone: earlier versions, their
    tars, indexes, columns and copies in this machine's cache are deleted. If stopped, run the same command again.

    \b
    Examples:
      shardflow remove photos256/ --keys withdrawn.txt --purge
      shardflow remove s3://bucket/photos256 --where "consent = 'no'" --purge
    """
    with resumable(), shard_bar(shardflow.open(url).shards, "removing") as progress:
        names = None if keys is None else read_keys(keys)
        report = shardflow.remove(url, keys=names, where=where, purge=purge, progress=progress)
    lines = {split: f"{plural(count, 'sample')} removed" for split, count in report.removed.items()}
    lines |= {} if report.removed else {"removed": "nothing more: these samples were removed before"}
    if report.receipt:
        lines |= {"shards": f"{report.shards:,} rewritten", "receipt": report.receipt}
    lines["fingerprint"] = report.fingerprint
    if purge:
        lines["purged"] = f"{plural(report.purged, 'file')} of earlier versions, {size_text(report.purged_bytes)}"
    else:
        lines["remains"] = "earlier versions still have the samples; the same command with --purge deletes them"
    if purge and is_remote(url):
        lines["remains"] = (
            "a bucket with versioning or soft delete keeps deleted objects: delete their old versions too, see "
            "https://docs.aws.amazon.com/AmazonS3/latest/userguide/DeletingObjectVersions.html"
        )
    print_lines(lines.items(), 13)
