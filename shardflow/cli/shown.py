"""What several commands show in the same way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import click
from tqdm import tqdm

from shardflow.formats.manifest import Shard


@contextlib.contextmanager
def shard_bar(shards: Sequence[Shard], doing: str, *, disable: bool = False) -> Iterator[Callable[[Shard], None]]:
    """Show a bar over the bytes of shards; the body calls what it is lent with each shard that is done."""
    with tqdm(total=total_bytes(shards), desc=doing, unit="B", unit_scale=True, disable=disable) as bar:

        def progress(shard: Shard) -> None:
            bar.update(shard.bytes)

        yield progress


def file_to_write(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:  # noqa: ARG001 - click's
    """Refuse a file in a folder that does not exist before anything is done, and not after it."""
    if value is not None and not Path(value).parent.is_dir():
        raise click.BadParameter(f"the folder {str(Path(value).parent)!r} does not exist")
    return value


def total_bytes(shards: Sequence[Shard]) -> int:
    """Return the size of shards together."""
    return sum(shard.bytes for shard in shards)


def number_of(count: int, noun: str) -> str:
    """Return how many there are of something: "1 shard", "2,048 shards"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def skipped_line(skipped: Mapping[str, int]) -> str:
    """Return the line about files that are not images: how many there are by extension."""
    kinds = (f"{count} {extension or 'without extension'}" for extension, count in skipped.items())
    return f"skipped      {', '.join(kinds)}"


def megabytes(count: int) -> str:
    """Return a number of bytes as people read it."""
    return f"{count / 1e6:,.1f} MB"
