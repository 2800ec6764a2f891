"""`shardflow remove DATASET`."""

from __future__ import annotations

import shlex

import click

import shardflow
from shardflow._wording import first_few, plural, size_text
from shardflow.storage.urls import is_remote

from .options import PathOrUrl, keys_option, where_option
from .output import print_lines, resumable
from .progress_bars import shard_bar
from .terminal import say


@click.command()
@click.argument("url", metavar="DATASET", type=PathOrUrl())
@keys_option
@where_option
@click.option("--purge", is_flag=True, help="Delete all earlier versions, which still have the samples.")
def remove(url: str, keys: list[str] | None, where: str | None, purge: bool) -> int:
    """Remove samples from DATASET: rewrite their shards without them, as a new version.

    Other samples keep their keys, bytes and order. Earlier versions still have the samples, unless --purge deletes
    them: manifests, tars, indexes, columns and copies in this machine's cache. The purge keeps and names files that
    shardflow did not write; the exit code is then 1. After an interruption, run the same command again.

    \b
    Examples:
      shardflow remove photos256/ --keys withdrawn.txt --purge
      shardflow remove s3://bucket/photos256 --where "consent = 'no'" --purge
    """
    with resumable(), shard_bar(shardflow.open(url).shards, "removing") as progress:
        report = shardflow.remove(url, keys=keys, where=where, purge=purge, progress=progress)
    lines, command = {split: f"{plural(count, 'sample')} removed" for split, count in report.removed.items()}, ""
    lines |= {} if report.removed else {"removed": "nothing: these samples were removed before"}
    if report.receipt:
        lines |= {"shards": f"{report.shards:,} rewritten", "receipt": report.receipt}
    lines["fingerprint"] = report.fingerprint
    if purge:
        lines["purged"] = f"{plural(report.purged, 'file')} of earlier versions, {size_text(report.purged_bytes)}"
    else:
        lines["remains"] = "earlier versions still have the samples; the same command with --purge deletes them"
    if purge and is_remote(url):
        command = _delete_old_versions(url)
        remedy = "with the command below" if command else 'too, see "Other copies" in docs/removing.md'
        lines["remains"] = (
            f"a bucket with versioning or soft delete keeps deleted objects: delete old versions {remedy}"
        )
    if report.left:
        some = f"{plural(len(report.left), 'file')} that shardflow did not write, or that are damaged"
        lines["left"] = f"{some}: {first_few(report.left, 5)}; delete them if they hold removed samples"
    print_lines(lines.items(), 13)
    if command:
        say(command)
    return 1 if report.left else 0


def _delete_old_versions(url: str) -> str:
    """Return the command that deletes the old versions of the objects below a URL of S3; "" for another URL."""
    scheme, _, place = url.rstrip("/").partition("://")
    if scheme != "s3":
        return ""
    bucket, _, prefix = place.partition("/")
    where = f"--bucket {shlex.quote(bucket)}"
    # All are listed first, because deleting a delete marker before an object's last old version restores that version.
    query = "[Versions[?!IsLatest], DeleteMarkers[]][].[Key, VersionId]"
    listing = f"aws s3api list-object-versions {where} --prefix {shlex.quote(f'{prefix}/' if prefix else '')}"
    delete = f'aws s3api delete-object {where} --key "$key" --version-id "$version"'
    loop = f"while IFS=$'\\t' read -r key version; do {delete}; done < old-versions.txt"
    return f"{listing} --query '{query}' --output text > old-versions.txt && {loop}"
