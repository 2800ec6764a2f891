"""`shardflow pack SRC DST`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import click

import shardflow
from shardflow._wording import first_few, plural, size_text
from shardflow.errors import DatasetExistsError
from shardflow.formats.labels import are_numbers
from shardflow.formats.quarantine import Quarantined
from shardflow.packing.creating import new_sharding, plan_pack
from shardflow.packing.ledger import Ledger
from shardflow.packing.pack_plan import PackPlan
from shardflow.packing.recipe import PRESETS, make_recipe, settings
from shardflow.storage.urls import shown_url

from .options import (
    PathOrUrl,
    annotation_options,
    annotations_of,
    executor_options,
    joined_files,
    recipe_options,
    source_of,
    source_options,
)
from .output import operation_counts, print_lines, resumable, skipped_text

_PRESETS_HELP = "\b\nPresets; the options above override their settings:\n" + "\n".join(
    f"  {name:10}{preset.purpose}" for name, preset in PRESETS.items()
)

_NAMED = 3

_GROWN = 1.2  # growth from which the report gives the reason


@click.command(epilog=_PRESETS_HELP)
@click.argument("src", type=PathOrUrl(), nargs=-1, required=True)
@click.argument("dst", type=PathOrUrl())
@source_options
@annotation_options
@click.option("--preset", type=click.Choice(list(PRESETS)), default="imagenet", show_default=True, help="See below.")
@recipe_options
@click.option("--no-shuffle", is_flag=True, help="Keep train in the order of the source too.")
@click.option("--seed", default=0, show_default=True, help="Shuffle seed.")
@click.option("--shard-samples", default=2048, show_default=True, help="Inputs per shard.")
@executor_options
@click.option(
    "--dry-run",
    is_flag=True,
    help="Count inputs, classes and shards, and check names and labels; write nothing.",
)
@click.option("--max-errors", default=0, show_default=True, help="Bad inputs to allow.")
def pack(src: tuple[str, ...], dst: str, preset: str, no_shuffle: bool, dry_run: bool, **given: Any) -> int:
    """Pack the images of SRC into shards, and write them to DST as a dataset.

    SRC is a directory or URL with CLASS/x.jpg, or train/CLASS/x.jpg and other splits, or x.jpg without labels (in
    folders of any depth with --classes none); a table (.csv, .tsv, .jsonl, .parquet) with paths or URLs of images;
    Parquet files that contain images; a COCO set (.json), YOLO set (.yaml) or VOC directory; a shardflow dataset; or
    WebDataset tars, also as a pattern. After an interruption, run the same command again.

    \b
    Examples:
      shardflow pack photos/ photos256/ --short-side 256 --quality 90
      shardflow pack photos.csv photos256/ --image-column file --label-column species
      shardflow pack photos/ photos256/ --mask mask.png --boxes json:boxes:xyxy --box-field labels=labels
      shardflow pack coco/annotations/instances_train2017.json coco512/ --preset fine
      shardflow pack "s3://bucket/laion/{00000..00099}.tar" s3://bucket/laion256
    """
    source, annotations = source_of(joined_files(src), given), annotations_of(given)
    sharding = {"shuffle": not no_shuffle, **{name: given.pop(name) for name in ("seed", "shard_samples")}}
    recipe = {name: value for name in settings() if (value := given.pop(name)) is not None}
    if dry_run:
        made = make_recipe(preset, **recipe)
        with plan_pack(source, Ledger(dst), made, new_sharding(**sharding), annotations) as plan:
            bad = plan.bad
            print_lines(_plan_lines(plan, bad, dst), 13)
            if plan.destination in ("dataset", "occupied"):
                return DatasetExistsError.exit_code
            return int(len(bad) + len(plan.source.skipped) > given["max_errors"])
    with resumable():
        report = shardflow.pack(
            source, dst, preset=preset, annotations=annotations, progress=True, **recipe, **sharding, **given
        )
    print_lines(_report_lines(report, dst), 13)
    return 0


def _report_lines(report: shardflow.reports.PackReport, dst: str) -> Iterator[tuple[str, Any]]:
    inputs, shards = plural(report.inputs, "input"), plural(report.shards, "shard")
    yield "packed", f"{report.packed:,} of {inputs} into {shards} in {shown_url(dst)}"
    splits = ", ".join(f"{split} {samples:,}" for split, samples in report.samples.items())
    yield "splits", splits if report.classes is None else f"{splits}; {plural(report.classes, 'class')}"
    yield "labels", report.classes is None and "none"
    yield from _small_classes(report.class_sizes)
    yield "resumed", report.resumed and f"{plural(report.resumed, 'input')} done by an earlier run"
    yield "bytes", f"{size_text(report.bytes_in)} of images -> {size_text(report.bytes_out)} of shards"
    if report.bytes_out > _GROWN * report.bytes_in > 0:
        grown = (
            f"{report.bytes_out / report.bytes_in:.1f} times the bytes of the images, by tar headers and other parts"
        )
        yield "grown", f"{grown}; if the images grew too (`info` has both sizes), --preset original keeps them"
    done = report.packed + report.quarantined - report.resumed
    yield "time", f"{report.seconds:.1f} s" + (f", {done / report.seconds:,.0f} images/s" if done else "")
    yield "fingerprint", report.fingerprint
    yield "operations", operation_counts(report.counts)
    listed = "listed in quarantine.jsonl"
    yield "quarantined", report.quarantined and f"{plural(report.quarantined, 'input')}, {listed}"
    yield "skipped", report.skipped and f"{plural(report.skipped, 'image')} of unsupported kinds, {listed}"
    for reason, count in sorted(report.reasons.items(), key=lambda entry: -entry[1]):
        yield f"{count:11,}", reason
    yield "left out", _extensions(report.ignored)
    yield "next", f"shardflow verify {shown_url(dst)}"


_DESTINATIONS = {
    "free": "is free",
    "unfinished": "has an unfinished pack, which would be resumed: {finished} of {shards} finished",
    "dataset": "is already a dataset, so a pack would be refused",
    "occupied": "has other files, so a pack would be refused",
}


def _plan_lines(plan: PackPlan, bad: Sequence[Quarantined], dst: str) -> Iterator[tuple[str, Any]]:
    classes, skipped = plan.classes, plan.source.skipped
    for split, inputs in plan.inputs.items():
        sizes = classes.get(split, {})
        is_labelled = any(sizes.values())  # a test set may have no labels
        counts = f" in {plural(len(sizes), 'class')} of {_range(sizes.values())}" if is_labelled else ""
        yield split, plural(inputs, "input") + counts
    yield "labels", not classes and "none"
    names = next(iter(classes.values()), ())
    yield from _small_classes({name: sum(sizes[name] for sizes in classes.values()) for name in names})
    yield "would write", plural(len(plan.jobs), "shard")
    yield "skipped", skipped_text(skipped)
    named = "; ".join(f"{each.path!r} ({each.reason})" for each in bad[:3])
    found = f"{plural(len(bad), 'input')} cannot be packed, such as {named}"
    yield "bad", named and f"{found}; repair them, or leave them out with --max-errors {len(bad) + len(skipped)}"
    yield "left out", _extensions(plan.source.ignored)
    state, shards = plan.destination, plural(len(plan.jobs), "shard")
    finished = plan.finished if state == "unfinished" else 0
    yield "destination", f"{shown_url(dst)} {_DESTINATIONS[state].format(finished=finished, shards=shards)}"


def _small_classes(sizes: Mapping[str, int]) -> Iterator[tuple[str, Any]]:
    """Yield a line for classes without images, and for those with one, whose label may be misspelt."""
    for size, words in enumerate(("no image", "one image, so the label may be misspelt")):
        names = [name for name, images in sizes.items() if images == size]
        has = "has" if len(names) == 1 else "have"
        are_sparse = not size and 2 * len(names) > len(sizes) and are_numbers([*sizes])
        remedy = "; if labels are ids, list these in a file for --classes" * are_sparse
        yield "classes", names and f"{plural(len(names), 'class')} {has} {words}: {first_few(names, _NAMED)}{remedy}"


def _range(numbers: Collection[int]) -> str:
    return f"{min(numbers):,}" if min(numbers) == max(numbers) else f"{min(numbers):,} to {max(numbers):,}"


def _extensions(ignored: Mapping[str, int]) -> str:
    counts = ", ".join(f"{count:,} {extension or 'without extension'}" for extension, count in ignored.items())
    return counts and f"files that are not images: {counts}"
