"""`shardflow extend SRC DST`."""

from __future__ import annotations

from typing import Any

import click

import shardflow

from .options import executor_options, source_of, source_options
from .output import PackBar, plural, print_lines


@click.command()
@click.argument("src", type=click.Path())
@click.argument("dst", type=click.Path())
@source_options
@executor_options
@click.option("--max-bad", default=0, show_default=True, help="Maximum number of new inputs that are quarantined.")
def extend(src: str, dst: str, **settings: Any) -> None:
    """Add the new images of SRC to the dataset at DST, as new shards.

    They are packed like the rest of the dataset. An input is new if the dataset has none with the same path below SRC:
    give the source of the dataset with new files in it, or another source whose paths differ. At the end DST becomes a
    new version in one step; the old version can still be opened by its fingerprint. Run the same command again to
    resume after a stop.

    \b
    Example:
      shardflow extend photos/ photos256/
    """
    source = source_of(src, settings)
    with PackBar() as bar:
        report = shardflow.extend(source, dst, progress=bar.update, **settings)
    if not report.inputs:
        click.echo(f"nothing new: the dataset already has {plural(report.known, 'input')} of this source")
        return
    new = plural(report.inputs, "new input")
    lines = {
        "added": f"{report.packed:,} of {new} in {plural(report.shards, 'shard')}",
        "known": f"{plural(report.known, 'input')} of the dataset",
        "quarantined": report.quarantined and f"{plural(report.quarantined, 'input')}, listed in quarantine.jsonl",
        "new classes": ", ".join(report.classes),
        "fingerprint": report.fingerprint,
        "previous": report.previous,
    }
    print_lines(((name, text) for name, text in lines.items() if text), 13)
