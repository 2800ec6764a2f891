"""`shardflow extend SRC DST`."""

from __future__ import annotations

from typing import Any

import click

import shardflow

from .executor import executor_options
from .packing import Packing
from .shown import number_of
from .source import source_from, source_options


@click.command(short_help="Add what is new in a source to a dataset.")
@click.argument("src", type=click.Path())
@click.argument("dst", type=click.Path())
@source_options
@executor_options
@click.option("--max-bad", default=0, show_default=True, help="New inputs that may be quarantined.")
def extend(
    src: str, dst: str, workers: int | None, executor: str, ray_address: str | None, max_bad: int, **settings: Any
) -> None:
    """Add the images below SRC that the dataset DST was not made from yet, as new shards.

    They are packed as the dataset was. Inputs are told apart by their paths below SRC: give the source of the dataset,
    grown, or another with other names. DST becomes a new version in one step at the end; the old one can still be
    opened by its fingerprint. The same command goes on where one was stopped.

    \b
    Example:
      shardflow extend photos/ photos256/
    """
    with Packing() as shown:
        report = shardflow.extend(
            source_from(src, settings),
            dst,
            workers=workers,
            executor=executor,
            ray_address=ray_address,
            max_bad=max_bad,
            progress=shown.show,
        )
    if not report.inputs:
        click.echo(f"nothing new: the dataset was made from all {report.known} inputs")
        return
    click.echo(f"added        {report.packed} of {report.inputs} new inputs in {number_of(report.shards, 'shard')}")
    click.echo(f"known        {report.known} inputs were in the dataset already")
    if report.quarantined:
        click.echo(f"quarantined  {report.quarantined}, listed in quarantine.jsonl")
    if report.classes:
        click.echo(f"new classes  {', '.join(report.classes)}")
    click.echo(f"fingerprint  {report.fingerprint}")
    click.echo(f"before       {report.previous}")
