"""`shardflow verify URL`."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

import click

import shardflow
from shardflow.dataset.verifying import verify_dataset

from .shown import megabytes, number_of, shard_bar, total_bytes


@click.command(short_help="Read a whole dataset and name everything that is wrong with it.")
@click.argument("url", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--repair",
    "source",
    is_flag=False,
    flag_value="",
    metavar="[FROM]",
    help="Replace damaged files by those of a copy, or by packing them again from what they were packed from. "
    "Without FROM only indexes can be mended.",
)
def verify(url: str, as_json: bool, source: str | None) -> int:
    """Read the dataset at URL and name everything that is wrong with it.

    Checked are the manifest, each shard's size, SHA-256 and tar structure, its index, and each member's CRC-32 and
    label. The exit code is 1 when anything is wrong, or with --repair when anything still is afterwards.

    \b
    Examples:
      shardflow verify photos256/
      shardflow verify photos256/ --repair s3://bucket/photos256
      shardflow verify photos256/ --repair photos/
    """
    started = time.perf_counter()
    dataset = shardflow.open(url)
    shards, size = dataset.shards, total_bytes(dataset.shards)
    repairs: dict[str, object] = {}
    with shard_bar(shards, "verifying", disable=as_json) as progress:
        if source is None:
            findings: Sequence[shardflow.Finding] = verify_dataset(dataset, progress=progress)
        else:
            report = shardflow.repair(url, source or None, progress=progress)
            findings = report.left
            repairs = {"repaired": report.repaired, "failed": report.failed, "found": list(map(asdict, report.found))}
    samples = sum(shard.samples for shard in shards)
    if as_json:
        checked = {"shards": len(shards), "samples": samples, "bytes": size}
        listed = [asdict(entry) for entry in findings]
        click.echo(json.dumps({**checked, "sound": not findings, "findings": listed, **repairs}, indent=1))
        return 1 if findings else 0
    if source is not None:
        for name in report.repaired:
            click.echo(f"repaired: {name}")
        for name, reason in report.failed.items():
            click.echo(f"not repaired: {name}: {reason}")
    for finding in findings:
        click.echo(str(finding))
    took_s = time.perf_counter() - started
    read = f"{number_of(len(shards), 'shard')}, {number_of(samples, 'sample')}, {megabytes(size)} in {took_s:.1f} s"
    if not findings:
        click.echo(f"sound: {read}")
        return 0
    files = Counter(finding.file for finding in findings)
    found = f"{number_of(len(findings), 'finding')} in {number_of(len(files), 'file')}"
    remedy = "restore these, --repair them from a copy or from what was packed, or pack again"
    click.echo(f"damaged: {found}, among {read}; {remedy}")
    return 1
