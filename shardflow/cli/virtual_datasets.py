"""`shardflow index`, `subset`, `split` and `merge`: new datasets whose tars stay where they are."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, NoReturn

import click
from tqdm import tqdm

import shardflow

from .output import plural, print_lines, shard_bar

_NAMED = 20


@click.command()
@click.argument("urls", type=click.Path(), nargs=-1, required=True, metavar="URL...")
@click.option("--to", type=click.Path(), help="Destination of manifest and indexes.  [default: beside the tars]")
@click.option(
    "--classes", type=click.Path(exists=True, dir_okay=False), help="File with the class names, one per line."
)
@click.option("--max-bad", default=0, show_default=True, help="Maximum number of samples that are left out.")
def index(urls: tuple[str, ...], to: str | None, classes: str | None, max_bad: int) -> None:
    """Index existing WebDataset tars, so that the loader can read them where they are.

    URL is a directory, a tar, or a quoted pattern with braces or wildcards, on a disk, in a bucket or behind https.
    Each tar is read once, to find its samples and compute checksums. Samples that are incomplete, duplicate or not
    contiguous are reported and left out, up to --max-bad of them.

    \b
    Examples:
      shardflow index laion/
      shardflow index 's3://bucket/laion/{00000..00099}.tar' --to laion-index/
    """
    with contextlib.ExitStack() as stack:
        bars: list[tqdm[NoReturn]] = []

        def progress(done: int, total: int) -> None:
            if not bars:  # shown once the tars are found
                bars.append(stack.enter_context(tqdm(total=total, desc="reading", unit=" tars")))
            bars[0].update(done - bars[0].n)

        report = shardflow.index(urls, to, classes=classes, max_bad=max_bad, progress=progress)
    for bad in report.bad[:_NAMED]:
        click.echo(f"left out: {bad.path}: {bad.reason}")
    if len(report.bad) > _NAMED:
        click.echo(f"left out: {plural(len(report.bad) - _NAMED, 'more sample')}; all are listed in quarantine.jsonl")
    _print_report(report, report.url)


@click.command()
@click.argument("url", type=click.Path())
@click.argument("dst", type=click.Path())
@click.option("--classes", metavar="NAMES", help="Class names, separated by commas.")
@click.option(
    "--samples",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with sample keys, one per line; write train:000000042 for a key that is in several splits.",
)
@click.option("--fraction", type=float, help="Share of each split, such as 0.1.")
@click.option("--limit", type=int, help="Maximum number of samples per split.")
@click.option("--seed", default=0, show_default=True, help="Seed of --fraction and --limit.")
def subset(url: str, dst: str, classes: str | None, samples: Path | None, **settings: Any) -> None:
    """Select samples of a dataset as a new dataset at DST, without copying tars.

    DST holds a manifest and indexes. It can be read like any dataset, as long as the tars stay where they are. Classes
    keep their numbers. With the same seed, a smaller share is a part of a larger one.

    \b
    Examples:
      shardflow subset photos256/ cats256/ --classes cat,kitten
      shardflow subset s3://bucket/photos256 tenth256/ --fraction 0.1
      shardflow subset photos256/ good256/ --samples good.txt
    """
    names, keys = None if classes is None else classes.split(","), None
    if samples is not None:
        lines = samples.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        keys = [line.strip() for line in lines if line.strip()]
    passes = (names is not None) + (keys is not None)
    shards = shardflow.open(url).shards * passes if passes else ()
    with shard_bar(shards, "reading", disable=not passes) as progress:
        report = shardflow.subset(url, dst, classes=names, samples=keys, progress=progress, **settings)
    _print_report(report, dst)


@click.command()
@click.argument("url", type=click.Path())
@click.argument("dst", type=click.Path())
@click.option("--val", default=0.1, show_default=True, help="Share of the training samples to hold out.")
@click.option("--seed", default=0, show_default=True, help="Seed of the selection.")
def split(url: str, dst: str, val: float, seed: int) -> None:
    """Split the training samples of a dataset into train and val, without copying tars.

    The new dataset at DST holds out the same share of every class. Other splits stay as they are.

    \b
    Example:
      shardflow split photos256/ photos256-split/ --val 0.1
    """
    dataset = shardflow.open(url)
    with shard_bar(dataset["train"].shards, "reading", disable=dataset.classes is None) as progress:
        report = shardflow.split(url, dst, val=val, seed=seed, progress=progress)
    _print_report(report, dst)


@click.command()
@click.argument("urls", type=click.Path(), nargs=-1, required=True, metavar="URL URL...")
@click.argument("dst", type=click.Path())
def merge(urls: tuple[str, ...], dst: str) -> None:
    """Merge several datasets into one at DST, split by split, without copying tars.

    A sample that is in several datasets is taken once. All datasets must give the same number to the same class,
    because the numbers are stored in the tars.

    \b
    Example:
      shardflow merge photos256/ sketches256/ both256/
    """
    _print_report(shardflow.merge(urls, dst), dst)


def _print_report(report: shardflow.VirtualReport | shardflow.IndexReport, dst: str) -> None:
    splits = {
        split: f"{plural(samples, 'sample')} in {plural(report.shards[split], 'shard')}"
        for split, samples in report.samples.items()
    }
    lines = [("dataset", f"{dst} (the tars stay where they are)"), *splits.items(), ("fingerprint", report.fingerprint)]
    print_lines(lines, 14)
