"""`shardflow verify URL`."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import asdict

import click

import shardflow

from .shown import shard_bar, total_bytes


@click.command(short_help="Read a whole dataset and name everything that is wrong with it.")
@click.argument("url", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(url: str, as_json: bool) -> int:
    """Read the dataset at URL and name everything that is wrong with it.

    Checked are the manifest, each shard's size, SHA-256 and tar structure, its index, and each member's CRC-32 and
    label. The exit code is 1 when anything is wrong.

    \b
    Example:
      shardflow verify photos256/
    """
    started = time.perf_counter()
    shards = [shard for split in shardflow.open(url).values() for shard in split.shards]
    size = total_bytes(shards)
    with shard_bar(shards, "verifying", disable=as_json) as progress:
        findings = shardflow.verify(url, progress=progress)
    samples = sum(shard.samples for shard in shards)
    if as_json:
        checked = {"shards": len(shards), "samples": samples, "bytes": size}
        click.echo(
            json.dumps({**checked, "sound": not findings, "findings": [asdict(entry) for entry in findings]}, indent=1)
        )
        return 1 if findings else 0
    for finding in findings:
        click.echo(str(finding))
    read = f"{len(shards)} shards, {samples} samples, {size / 1e6:.1f} MB in {time.perf_counter() - started:.1f} s"
    if not findings:
        click.echo(f"sound: {read}")
        return 0
    files = Counter(finding.file for finding in findings)
    click.echo(f"damaged: {len(findings)} findings in {len(files)} files, among {read}; restore these or pack again")
    return 1
