"""`shardflow tune`: the settings that suit this machine."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import click
from tqdm import tqdm

from .made import blamed, loader_options, make_loader_of

if TYPE_CHECKING:
    from shardflow.diagnostics.tuning import Tuning


@click.command(short_help="Find the loader's settings that suit this machine.")
@loader_options
@click.option("--seconds", default=60.0, show_default=True, help="How long, about.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def tune(
    url: str | None, split: str, batch_size: int, size: int, made_by: str | None, seconds: float, as_json: bool
) -> None:
    """Try settings of the loader in turn, print what each reaches, the line to paste, and what limits it.

    Recommended are the fewest workers, and then the least prefetching, within 3 % of the fastest. What usually keeps
    loaders slow is looked for as well: shared memory, threads, forking, disks, the cache, pinning, the decoder, shards.

    \b
    Examples:
      shardflow tune photos256/
      shardflow tune s3://bucket/photos256 --batch-size 512 --seconds 120
      shardflow tune --loader train.py:make_loader
    """
    from shardflow.diagnostics.tuning import tune as find  # here, because torch takes seconds to import

    make_loader, _ = make_loader_of(url, split=split, batch_size=batch_size, size=size, made_by=made_by)
    with blamed(made_by):
        make_loader(num_workers=1, prefetch_factor=2)  # before there is a bar, so that an error stands alone
        begin = time.monotonic()
        with tqdm(total=seconds, desc="trying", bar_format="{desc} {bar} {elapsed}", disable=as_json) as bar:

            def progress() -> None:
                bar.update(min(time.monotonic() - begin, seconds) - bar.n)

            found = find(make_loader, seconds=seconds, progress=progress)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1))
        return
    _show(found)
    settings = ", ".join(f"{name}={value}" for name, value in found.settings.items())
    if url is None:
        click.echo(f"paste    {settings}")
    else:
        click.echo(f"paste    shardflow.Loader({url!r}, split={split!r}, batch_size={batch_size}, {settings})")
    for suspect in found.suspects:
        click.echo(f"look at  {suspect.line}")


def _show(found: Tuning) -> None:
    click.echo("workers  prefetch   images/s  CPU-ms/image  first batch  shared memory")
    for trial in found.trials:
        chosen = "   <- take this" if trial is found.best else ""
        click.echo(
            f"{trial.num_workers:7}  {trial.prefetch_factor:8}  {trial.images_per_s:9,.0f}  "
            f"{trial.total.cpu_ms_per_image:12.2f}  {trial.first_batch_s:9.2f} s  "
            f"{trial.shared_bytes / 1e6:10,.0f} MB{chosen}"
        )
    click.echo(f"limit    {found.limit}: {found.advice}")
