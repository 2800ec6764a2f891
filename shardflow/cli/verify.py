"""`shardflow verify URL`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import click

import shardflow
from shardflow._wording import plural, size_text
from shardflow.dataset.shard_rows import LOST_INDEX
from shardflow.dataset.verifying import verify_dataset
from shardflow.dataset.virtual_dataset import root_urls, tar_bytes
from shardflow.packing.origin import NOT_IN_SOURCES, open_sources
from shardflow.packing.verifying import IMAGES, compare_with_sources
from shardflow.storage.urls import shown_url

from .options import PathOrUrl, column_options, json_option, with_columns
from .output import print_json
from .progress_bars import shard_bar, show_waiting
from .terminal import say

_SHOWN = 3
"""Number of findings that are shown per file, as a damaged header may cause one per sample."""


@click.command()
@click.argument("url", type=PathOrUrl(), required=False, metavar="URL")
@json_option
@click.option(
    "--repair",
    "source",
    is_flag=False,
    flag_value="",
    metavar="[FROM]",
    help="Repair files from a copy of the dataset, or by packing its source again; without FROM only indexes and the "
    "quarantine.",
)
@click.option(
    "--source",
    "sources",
    multiple=True,
    type=PathOrUrl(),
    metavar="SRC",
    help="Compare the labels and some images with their source; repeat it for each source of an extended dataset.",
)
@click.option("--images", type=click.IntRange(1), help=f"Images to compare with --source.  [default: {IMAGES}]")
@column_options
def verify(
    url: str | None, as_json: bool, source: str | None, sources: tuple[str, ...], images: int | None, **columns: Any
) -> int:
    """Read a whole dataset, and report or repair all damage.

    Checks the manifest, the size, SHA-256, tar structure and index of each shard, the CRC-32 and label of each member,
    columns, receipts and quarantine. Only --source shows whether images and labels are the intended ones; name a
    table's columns as for pack. The exit code is 1 if there is a finding, or with --repair, if one is left.

    \b
    Examples:
      shardflow verify photos256/
      shardflow verify photos256/ --repair s3://bucket/photos256
      shardflow verify photos256/ --repair photos/
      shardflow verify photos256/ --source photos/
      shardflow verify photos256/ --source photos.csv --label-column species
    """
    if url is None:
        if source:
            shown = shown_url(source)
            raise click.UsageError(f"--repair took {shown!r} as FROM; write `shardflow verify {shown} --repair`")
        raise click.UsageError("give the URL of a dataset")
    if images is not None and not sources:
        raise click.UsageError("--images needs --source, with which it compares")
    given = with_columns([*sources, *filter(None, [source])], columns)
    started = time.perf_counter()
    dataset = shardflow.open(url)
    shards, size = dataset.shards, tar_bytes(dataset, dataset.shards)
    tars = len({dataset.storage.url(shard.name) for shard in shards})  # splits of a virtual dataset share tars
    repairs: dict[str, object] = {}
    with (
        open_sources(dataset, given[: len(sources)]) as opened,
        shard_bar(shards, "verifying", disable=as_json) as progress,
    ):
        if source is None:
            findings: Sequence[shardflow.reports.Finding] = verify_dataset(dataset, progress=progress)
        else:
            report = shardflow.repair(url, given[-1] if source else None, progress=progress)
            findings = report.left
            repairs = {"repaired": report.repaired, "failed": report.failed, "found": list(map(asdict, report.found))}
        damaged = {finding.file for finding in findings}
        with show_waiting("comparing", disable=as_json):
            compared = compare_with_sources(dataset, opened, images=images or IMAGES, damaged=damaged)
    samples = sum(shard.samples for shard in shards)
    if as_json:
        checked = {
            "shards": tars,
            "samples": samples,
            "bytes": size,
            "compared": compared.images,
            "labels": compared.labels,
        }
        listed = list(map(asdict, [*findings, *compared.findings]))
        print_json({**checked, "ok": not listed, "findings": listed, **repairs})
        return 1 if listed else 0
    if source is not None:
        for name in report.repaired:
            say(f"repaired: {name}")
        for name, reason in report.failed.items():
            say(f"not repaired: {name}: {reason}")
    by_file: dict[str, list[shardflow.reports.Finding]] = {}
    for finding in (*findings, *compared.findings):
        # The tars of a virtual dataset are elsewhere.
        file = dataset.storage.url(finding.file) if dataset.manifest.roots else finding.file
        by_file.setdefault(file, []).append(replace(finding, file=file))
    for file, of_file in by_file.items():
        for finding in of_file[:_SHOWN]:
            say(str(finding))
        if (more := len(of_file) - _SHOWN) > 0:
            say(f"{file}: {plural(more, 'more finding')}; --json lists all")
    if sources:
        compared_with = ", ".join(map(shown_url, sources))
        how = f"{compared.images:,} of {plural(samples, 'image')} compared with {compared_with}"
        if compared.labels:
            how = f"{plural(compared.labels, 'label')} and {how}"
        differing = compared.findings and f"not as its source: {plural(len(compared.findings), 'finding')} in {how}"
        say(differing or f"as its source: {how}")
        absent = [finding for finding in compared.findings if finding.problem.startswith(NOT_IN_SOURCES)]
        if absent and len(absent) == samples:
            remedy = "--source takes the same SRC as `pack`, not a folder in or above it"
            say(f"none of them is in {compared_with}: {remedy}")
    seconds = time.perf_counter() - started
    kind = "tar" if dataset.manifest.roots else "shard"
    read = f"{plural(tars, kind)}, {plural(samples, 'sample')}, {size_text(size)} in {seconds:.1f} s"
    if not findings:
        say(read + "; but not as its source" * bool(compared.findings), label="no damage:", colour="green")
        if not sources and dataset.manifest.sharding is not None:
            say("not checked: whether images and labels are the intended ones; --source SRC compares some with SRC")
        if any(root.fingerprint is None for root in dataset.manifest.roots.values()):  # tars that were indexed
            remedy = "a Loader with max_errors= replaces damaged ones, and loader.replaced names them"
            say(f"not checked: whether images can be decoded; {remedy}")
        return 1 if compared.findings else 0
    files = {dataset.storage.url(finding.file) for finding in findings}
    found = f"{plural(len(findings), 'finding')} in {plural(len(files), 'file')}"
    remedy = "run again with --repair and a copy or the source of the dataset, or pack it again"
    if roots := dataset.manifest.roots:
        owners = [place for name, place in root_urls(dataset).items() if roots[name].fingerprint is not None]
        remedy = "restore the tars; if tars were rewritten, index them again (`shardflow index`)"
        if owners:
            remedy = f"repair {', '.join(owners)}, or create this dataset again"
        if files <= {dataset.storage.url(shard.index_name) for shard in shards}:
            remedy = "run again with --repair, which rebuilds indexes of whole tars" if source is None else LOST_INDEX
    say(f"{found}, of {read}; {remedy}", label="damaged:", colour="red")
    return 1
