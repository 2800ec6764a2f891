"""`shardflow bench`: what a loader reaches on this machine, and whether a model would be fed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
from tqdm import tqdm

from .made import blamed, loader_options, make_loader_of
from .shown import file_to_write

if TYPE_CHECKING:
    from shardflow.diagnostics.bench import Bench


@click.command(short_help="Measure the loader against what this machine can decode.")
@loader_options
@click.option("--workers", type=click.IntRange(0), help="Worker processes.  [default: one per core]")
@click.option("--seconds", default=10.0, show_default=True, help="How long, about.")
@click.option("--step-ms", type=float, help="What your model takes for a batch: says whether it would be fed.")
@click.option("--plot", type=click.Path(), callback=file_to_write, metavar="FILE.png", help="Draw the result.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def bench(
    url: str | None,
    split: str,
    batch_size: int,
    size: int,
    made_by: str | None,
    workers: int | None,
    seconds: float,
    step_ms: float | None,
    plot: str | None,
    as_json: bool,
) -> int:
    """Stream the dataset at URL without training, and say what that reaches and where the time goes.

    The limit it is held against is measured beside it: processes that decode the same images, and do nothing else. With
    --step-ms the exit code is 1 when a model that takes so long for a batch would wait for data.

    \b
    Examples:
      shardflow bench photos256/
      shardflow bench photos256/ --batch-size 256 --step-ms 180 --plot bench.png
      shardflow bench --loader train.py:make_loader
    """
    from shardflow.diagnostics.bench import STEPS  # here, because torch takes seconds to import
    from shardflow.diagnostics.bench import bench as measure
    from shardflow.diagnostics.chart import draw_bench

    settings = {} if workers is None else {"num_workers": workers}
    make_loader, told = make_loader_of(url, split=split, batch_size=batch_size, size=size, made_by=made_by)
    with blamed(made_by):
        loader = make_loader(**settings)  # before there is a bar, so that an error stands alone
        with tqdm(total=STEPS, desc="measuring", bar_format="{desc} {bar} {elapsed}", disable=as_json) as bar:
            found = measure(loader, seconds=seconds, step_ms=step_ms, progress=bar.update)
    if plot is not None:
        draw_bench(found, plot, f"{told}: {found.workers} workers, batches of {found.batch_size}")
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1))
    else:
        for name, line in _lines(found):
            click.echo(f"{name:9}{line}")
        if plot is not None:
            click.echo(f"{'picture':9}{plot}")
    return 1 if found.fed is False else 0


def _lines(found: Bench) -> Iterator[tuple[str, str]]:
    window = found.window
    yield (
        "loader",
        f"{found.images_per_s:,.0f} images/s, {found.images_per_s * found.image_bytes / 1e6:,.0f} MB/s, "
        f"{window.cpu_ms_per_image:.2f} CPU-ms per image; {found.workers} workers, batches of {found.batch_size}",
    )
    yield "start", f"the first batch after {found.first_batch_s:.2f} s"
    yield (
        "limit",
        f"{found.limit.images_per_s:,.0f} images/s, {found.limit.cpu_ms_per_image:.2f} CPU-ms per image: {found.cores} "
        "processes that decode the same images, and nothing else",
    )
    if found.disturbed:
        of_cost = found.limit.cpu_ms_per_image / window.cpu_ms_per_image
        yield "", "other processes kept the cores busy meanwhile, so all rates are low and unsteady;"
        yield "", f"by CPU time, {min(1.0, of_cost):.0%} of what an image costs is its decoding"
    else:
        yield "", f"your loader runs at {found.of_limit:.0%} of what these cores can decode"
    yield "stages", "  ".join(f"{name} {share:.0%}" for name, share in found.shares().items())
    if found.step_ms is None:
        yield (
            "verdict",
            f"feeds a model whose step takes {found.batch_ms:.0f} ms or more; --step-ms tells of yours",
        )
    elif found.fed:
        yield "verdict", f"fed: a batch every {found.batch_ms:.0f} ms, and your step takes {found.step_ms:g} ms"
    else:
        yield (
            "verdict",
            f"starving: a batch every {found.batch_ms:.0f} ms, and your step takes {found.step_ms:g} ms: "
            f"{found.waiting:.0%} of the time it would wait; `shardflow tune` finds better settings if there are any",
        )
