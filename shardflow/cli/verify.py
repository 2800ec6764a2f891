"""`shardflow verify URL`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import click

import shardflow
from shardflow._wording import plural, size_text
from shardflow.dataset.open_dataset import Dataset
from shardflow.dataset.shard_rows import LOST_INDEX
from shardflow.dataset.verifying import Finding, verify_dataset
from shardflow.dataset.virtual_dataset import root_urls, tar_bytes
from shardflow.packing.origin import NOT_IN_SOURCES, open_sources
from shardflow.packing.repairing import RepairReport
from shardflow.packing.verifying import IMAGES, OTHER_LABEL, Comparison, compare_with_sources
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
    report = None
    with (
        open_sources(dataset, given[: len(sources)]) as opened,
        shard_bar(dataset.shards, "verifying", disable=as_json) as progress,
    ):
        if source is None:
            findings: Sequence[Finding] = verify_dataset(dataset, progress=progress)
        else:
            report = shardflow.repair(url, given[-1] if source else None, progress=progress)
            findings = report.left
        damaged = {finding.file for finding in findings}
        with show_waiting("comparing", disable=as_json):
            compared = compare_with_sources(dataset, opened, images=images or IMAGES, damaged=damaged)
    seconds = time.perf_counter() - started
    if as_json:
        print_json(_as_json(dataset, findings, compared, report))
    else:
        _say_findings(dataset, [*findings, *compared.findings], report)
        if sources:
            _say_comparison(dataset, compared, ", ".join(map(shown_url, sources)))
        _say_damage(dataset, findings, compared if sources else None, seconds, is_repair=report is not None)
    return 1 if findings or compared.findings else 0


def _as_json(
    dataset: Dataset, findings: Sequence[Finding], compared: Comparison, report: RepairReport | None
) -> dict[str, Any]:
    listed = list(map(asdict, [*findings, *compared.findings]))
    read = {
        "shards": _tars(dataset),
        "samples": dataset.manifest.samples,
        "bytes": tar_bytes(dataset, dataset.shards),
        "compared": compared.images,
        "labels": compared.labels,
        "inputs_without_sample": compared.inputs_without_sample,
        "ok": not listed,
        "findings": listed,
    }
    if report is None:
        return read
    return read | {"repaired": report.repaired, "failed": report.failed, "found": list(map(asdict, report.found))}


def _say_findings(dataset: Dataset, findings: Sequence[Finding], report: RepairReport | None) -> None:
    for name in report.repaired if report else ():
        say(f"repaired: {name}")
    for name, reason in report.failed.items() if report else ():
        say(f"not repaired: {name}: {reason}")
    by_file: dict[str, list[Finding]] = {}
    for finding in findings:
        # The tars of a virtual dataset are elsewhere.
        file = dataset.storage.url(finding.file) if dataset.manifest.roots else finding.file
        by_file.setdefault(file, []).append(replace(finding, file=file))
    for file, of_file in by_file.items():
        of_file.sort(key=_is_other_label, reverse=True)
        for finding in of_file[:_SHOWN]:
            say(str(finding))
        if (more := len(of_file) - _SHOWN) > 0:
            say(f"{file}: {plural(more, 'more finding')}; --json lists all")


def _say_comparison(dataset: Dataset, compared: Comparison, sources: str) -> None:
    samples = dataset.manifest.samples
    how = f"{compared.images:,} of {plural(samples, 'image')} compared with {sources}"
    if compared.labels:
        how = f"{plural(compared.labels, 'label')} and {how}"
    how += "; damaged shards are left out" if compared.left_out else ""
    found = plural(len(compared.findings), "finding")
    if labels := sum(map(_is_other_label, compared.findings)):
        found += f" ({plural(labels, 'other label')})"
    say(f"not as its source: {found} in {how}" if compared.findings else f"as its source: {how}")
    if absent := compared.inputs_without_sample:
        say(f"not in the dataset: {plural(len(absent), 'input')} of its source, such as {absent[0]!r}")
    gone = sum(finding.problem.startswith(NOT_IN_SOURCES) for finding in compared.findings)
    if gone and gone == samples:
        say(f"none of them is in {sources}: --source takes the same SRC as `pack`, not a folder in or above it")


def _is_other_label(finding: Finding) -> bool:
    return finding.problem.startswith(OTHER_LABEL)


def _say_damage(
    dataset: Dataset, findings: Sequence[Finding], compared: Comparison | None, seconds: float, *, is_repair: bool
) -> None:
    """Say how much was read, what is damaged and what was not checked, with the remedies."""
    roots, tars = dataset.manifest.roots, plural(_tars(dataset), "tar" if dataset.manifest.roots else "shard")
    size = size_text(tar_bytes(dataset, dataset.shards))
    read = f"{tars}, {plural(dataset.manifest.samples, 'sample')}, {size} in {seconds:.1f} s"
    if not findings:
        is_other = compared is not None and compared.findings
        say(f"{read}; but not as its source" if is_other else read, label="no damage:", colour="green")
        if compared is None and dataset.manifest.sharding is not None:
            say("not checked: whether images and labels are the intended ones; --source SRC compares some with SRC")
        if any(root.fingerprint is None for root in roots.values()):  # tars that were indexed
            remedy = "a Loader with max_errors= replaces damaged ones, and loader.replaced names them"
            say(f"not checked: whether images can be decoded; {remedy}")
        return
    files = {dataset.storage.url(finding.file) for finding in findings}
    remedy = "run again with --repair and a copy or the source of the dataset, or pack it again"
    if roots:
        owners = [place for name, place in root_urls(dataset).items() if roots[name].fingerprint is not None]
        remedy = "restore the tars; if tars were rewritten, index them again (`shardflow index`)"
        if owners:
            remedy = f"repair {', '.join(owners)}, or create this dataset again"
        if files <= {dataset.storage.url(shard.index_name) for shard in dataset.shards}:
            remedy = LOST_INDEX if is_repair else "run again with --repair, which rebuilds indexes of whole tars"
    found = f"{plural(len(findings), 'finding')} in {plural(len(files), 'file')}"
    say(f"{found}, of {read}; {remedy}", label="damaged:", colour="red")


def _tars(dataset: Dataset) -> int:
    """Return the number of tars; splits of a virtual dataset share them."""
    return len({dataset.storage.url(shard.name) for shard in dataset.shards})
