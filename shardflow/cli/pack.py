"""`shardflow pack SRC DST`."""

from __future__ import annotations

from typing import Any

import click

from shardflow.packing.dry_run import count_pack
from shardflow.packing.packing import PackReport
from shardflow.packing.packing import pack as run_pack

from .counted import said
from .dry_run import dry_run_lines
from .executor import executor_options
from .packing import Packing
from .recipe import PRESETS_HELP, recipe_options
from .shown import megabytes, number_of, skipped_line
from .source import source_from, source_options


@click.command(short_help="Pack images into a dataset.", epilog=PRESETS_HELP)
@click.argument("src", type=click.Path())
@click.argument("dst", type=click.Path())
@source_options
@recipe_options
@click.option("--no-shuffle", is_flag=True, help="Keep the order of the paths.")
@click.option("--seed", default=0, show_default=True, help="Of the shuffle.")
@click.option("--shard-samples", default=2048, show_default=True, help="Inputs per shard.")
@executor_options
@click.option("--dry-run", is_flag=True, help="Count inputs, classes and shards; write nothing.")
@click.option("--max-bad", default=0, show_default=True, help="Inputs that may be quarantined.")
def pack(
    src: str,
    dst: str,
    no_shuffle: bool,
    seed: int,
    shard_samples: int,
    workers: int | None,
    executor: str,
    ray_address: str | None,
    max_bad: int,
    dry_run: bool,
    **settings: Any,
) -> None:
    """Resize the images of SRC and write them to DST as a dataset.

    SRC is a directory or URL with CLASS/x.jpg, or train/CLASS/x.jpg with other splits beside it, or x.jpg without
    labels; a table (.csv, .tsv, .jsonl, .parquet) that names images; a dataset to be packed anew; or WebDataset tars,
    also as a pattern. A pack that was stopped goes on when the same command is run again.

    \b
    Examples:
      shardflow pack photos/ photos256/ --short-side 256 --quality 90
      shardflow pack photos.csv photos256/ --image-column file --label-column species
      shardflow pack "s3://bucket/laion/{00000..00099}.tar" s3://bucket/laion256
    """
    source = source_from(src, settings)
    given = {name: value for name, value in settings.items() if value is not None}
    if dry_run:
        counts = count_pack(source, dst, shuffle=not no_shuffle, seed=seed, shard_samples=shard_samples, **given)
        click.echo("\n".join(dry_run_lines(counts, dst)))
        return
    with Packing() as shown:
        report = run_pack(
            source,
            dst,
            shuffle=not no_shuffle,
            seed=seed,
            shard_samples=shard_samples,
            max_bad=max_bad,
            workers=workers,
            executor=executor,
            ray_address=ray_address,
            progress=shown.show,
            **given,
        )
    click.echo(_summary(report, dst))


def _summary(report: PackReport, dst: str) -> str:
    fresh = report.inputs - report.resumed
    lines = [
        f"packed       {report.packed} of {report.inputs} inputs into {number_of(report.shards, 'shard')} below {dst}",
        f"bytes        {megabytes(report.bytes_in)} -> {megabytes(report.bytes_out)}",
        f"time         {report.seconds:.1f} s, {fresh / report.seconds:.0f} images/s",
        f"fingerprint  {report.fingerprint}",
    ]
    if report.resumed:
        lines.insert(1, f"resumed      {report.resumed} inputs had been done before")
    if done := said(report.counts):
        lines.append(f"done         {'; '.join(done)}")
    if report.quarantined:
        lines.append(f"quarantined  {report.quarantined}, listed in quarantine.jsonl")
        lines += [
            f"  {count:6d}  {reason}" for reason, count in sorted(report.reasons.items(), key=lambda entry: -entry[1])
        ]
    if report.skipped:
        lines.append(skipped_line(report.skipped))
    return "\n".join([*lines, f"next         shardflow verify {dst}"])
