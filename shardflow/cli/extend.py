"""`shardflow extend SRC DST`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

import shardflow
from shardflow._wording import first_few, plural
from shardflow.formats.quarantine import version_name
from shardflow.packing.extending import ON_CONFLICT, preview_extension
from shardflow.packing.pack_plan import PackPlan

from .options import PathOrUrl, executor_options, source_of, source_options
from .output import print_lines, resumable, skipped_text
from .terminal import say


@click.command()
@click.argument("src", type=PathOrUrl())
@click.argument("dst", type=PathOrUrl())
@source_options
@click.option(
    "--on-conflict",
    type=click.Choice(ON_CONFLICT),
    default="error",
    show_default=True,
    help="A known path with new content: stop, add it as a further sample, or skip it.",
)
@executor_options
@click.option("--dry-run", is_flag=True, help="Count known, new and conflicting inputs; write nothing.")
@click.option("--max-errors", default=0, show_default=True, help="Bad inputs to allow.")
def extend(src: str, dst: str, dry_run: bool, on_conflict: str, **settings: Any) -> int:
    """Add the new images of SRC to the dataset at DST, as new shards.

    They are packed like the rest of the dataset. An input is new if its path below SRC is new. If the path is known but
    the content differs, --on-conflict applies; `--on-conflict add` also adds inputs that are mostly known under other
    names. At the end DST becomes a new version in one step; the old version can still be opened by its fingerprint.
    After an interruption, run the same command again.

    \b
    Example:
      shardflow extend photos/ photos256/
    """
    source = source_of(src, settings)
    if dry_run:
        plan = preview_extension(source, dst, on_conflict=on_conflict)
        print_lines(_plan_lines(plan, on_conflict), 13)
        return 1 if plan.conflicting and on_conflict == "error" else 0
    with resumable():
        report = shardflow.extend(source, dst, on_conflict=on_conflict, progress=True, **settings)
    if not report.inputs:
        skipped = f"; skipped: {_conflicting(report.conflicting)}" if report.conflicting else ""
        say(f"nothing new: the dataset already has {plural(report.known, 'input')} of this source{skipped}")
        return 0
    done = "added" if on_conflict == "add" else "skipped"
    new = plural(report.inputs, "new input")
    lines = {
        "added": f"{report.packed:,} of {new} in {plural(report.shards, 'shard')}",
        "known": f"{plural(report.known, 'input')} of the dataset",
        "conflicting": report.conflicting and f"{_conflicting(report.conflicting)}: {done}",
        "quarantined": report.quarantined
        and f"{plural(report.quarantined, 'input')}, listed in {version_name(report.fingerprint)}",
        "skipped": report.skipped and f"{plural(report.skipped, 'image')} of unsupported kinds",
        "new classes": first_few(report.new_classes, len(report.new_classes)),
        "fingerprint": report.fingerprint,
        "previous": report.previous,
    }
    print_lines(lines.items(), 13)
    return 0


def _conflicting(count: int) -> str:
    return f"{plural(count, 'input')} with a path of the dataset but another image, label, split or column"


def _plan_lines(plan: PackPlan, on_conflict: str) -> Iterator[tuple[str, Any]]:
    conflicting, classes = plan.conflicting, plan.new_classes
    yield "known", f"{plural(plan.known, 'input')} of the dataset"
    for split, inputs in plan.inputs.items():
        yield split, plural(inputs, "new input")
    paths = ", ".join(map(repr, conflicting[:3])) + ", ..." * (len(conflicting) > 3)
    yield "conflicting", paths and f"{_conflicting(len(conflicting))}: {paths}"
    yield "skipped", skipped_text(plan.source.skipped)
    yield "new classes", first_few(classes, len(classes))
    refused = bool(conflicting) and on_conflict == "error"
    nothing = "nothing, because of the conflicts, which `verify --source` names; see --on-conflict"
    yield "would write", nothing if refused else plural(len(plan.jobs), "shard")
