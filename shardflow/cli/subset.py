"""`shardflow subset URL DST`."""

from __future__ import annotations

from pathlib import Path

import click

import shardflow

from .shown import shard_bar
from .viewed import show_view


@click.command(short_help="Make a dataset of some samples of another, over the same tars.")
@click.argument("url", type=click.Path())
@click.argument("dst", type=click.Path())
@click.option("--classes", metavar="NAMES", help="Take the samples of these classes, separated by commas.")
@click.option(
    "--samples",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Take the samples with the keys in this file, one a line; 'train:000000042' where a key is in several splits.",
)
@click.option("--fraction", type=float, help="Take this share, such as 0.1, of each split.")
@click.option("--limit", type=int, help="Take so many samples at most of each split.")
@click.option("--seed", default=0, show_default=True, help="Of --fraction and --limit: another one takes others.")
def subset(
    url: str,
    dst: str,
    classes: str | None,
    samples: Path | None,
    fraction: float | None,
    limit: int | None,
    seed: int,
) -> None:
    """Make a dataset at DST of some samples of the one at URL. The tars stay where they are, nothing of them is copied.

    DST has a manifest and indexes, and is read as any dataset, as long as the tars stay where they are. Classes keep
    their numbers. A smaller share is part of a larger one with the same seed.

    \b
    Examples:
      shardflow subset photos256/ cats256/ --classes cat,kitten
      shardflow subset s3://bucket/photos256 tenth256/ --fraction 0.1
      shardflow subset photos256/ good256/ --samples good.txt
    """
    keys = None if samples is None else [line.strip() for line in _lines(samples) if line.strip()]
    passes = (classes is not None) + (keys is not None)
    shards = shardflow.open(url).shards * passes if passes else ()
    with shard_bar(shards, "reading", disable=not passes) as progress:
        report = shardflow.subset(
            url,
            dst,
            classes=None if classes is None else classes.split(","),
            samples=keys,
            fraction=fraction,
            limit=limit,
            seed=seed,
            progress=progress,
        )
    show_view(report, dst)


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
