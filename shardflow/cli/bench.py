"""`shardflow bench [URL]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from shardflow._wording import plural
from shardflow.packing.progress import progress_bar

from .loader_options import chosen_loader, loader_options
from .options import PathOrUrl, json_option, picture_file
from .output import print_result

if TYPE_CHECKING:
    from shardflow.diagnostics.bench import BenchReport


@click.command()
@loader_options
@click.option("--workers", type=click.IntRange(0), help="Number of worker processes.  [default: one per core]")
@click.option("--seconds", default=10.0, show_default=True, help="Approximate duration of the measurement.")
@click.option("--step-ms", type=float, help="Time of one training step; shows whether the model waits.")
@click.option("--plot", type=PathOrUrl(), callback=picture_file, metavar="FILE.png", help="File for a chart.")
@json_option
def bench(
    workers: int | None, seconds: float, step_ms: float | None, plot: str | None, as_json: bool, **chosen: Any
) -> int:
    """Measure the throughput of a loader, and compare it with the decode baseline of this machine.

    The decode baseline is the throughput of processes that only decode the same images, measured at the same time. With
    --step-ms the exit code is 1 if a model with this training step would wait for data.

    \b
    Examples:
      shardflow bench photos256/
      shardflow bench photos256/ --batch-size 256 --step-ms 180 --plot bench.png
      shardflow bench --loader train.py:make_loader
    """
    with chosen_loader(**chosen) as (make_loader, name):
        from shardflow.diagnostics import bench as benchmark  # here, because torch takes seconds to import
        from shardflow.diagnostics.chart import draw_bench

        # Before the progress bar, so that it does not mix with errors.
        loader = make_loader(**({} if workers is None else {"num_workers": workers}))
        with progress_bar(
            total=benchmark.STEPS, desc="measuring", bar_format="{desc} {bar} {elapsed}", disable=as_json
        ) as bar:
            report = benchmark.bench(loader, seconds=seconds, step_ms=step_ms, progress=bar.update)
    if plot is not None:
        draw_bench(report, plot, f"{name}: {plural(report.workers, 'worker')}, batches of {report.batch_size}")
    print_result(report.to_json(), [*_lines(report), ("chart", plot)], 13, as_json=as_json)
    return 1 if report.fed is False else 0


def _lines(report: BenchReport) -> Iterator[tuple[str, str]]:
    loader = report.loader
    yield (
        "loader",
        f"{loader.images_per_s:,.0f} images/s, {loader.images_per_s * report.image_bytes / 1e6:,.0f} MB/s, "
        f"{loader.cpu_ms_per_image:.2f} CPU-ms per image; {plural(report.workers, 'worker')}, batches of "
        f"{report.batch_size}",
    )
    yield "first batch", f"after {report.first_batch_s:.2f} s"
    yield (
        "baseline",
        f"{report.baseline.images_per_s:,.0f} images/s, {report.baseline.cpu_ms_per_image:.2f} CPU-ms per image; the "
        f"same images, only decoded, on {plural(report.cores, 'core')}",
    )
    if report.disturbed:
        share = min(1.0, report.baseline.cpu_ms_per_image / report.loader.cpu_ms_per_image)
        yield "", "other processes kept the cores busy, so no throughput here is reliable;"
        yield "", f"decoding is {share:.0%} of the CPU time per image"
    else:
        yield "", f"the loader reaches {report.share_of_baseline:.0%} of the decode baseline"
    yield "stages", "  ".join(f"{name} {share:.0%}" for name, share in report.shares().items())
    if report.step_ms is None:
        yield "verdict", f"feeds a model with a step of {report.batch_ms:.0f} ms or more; give yours with --step-ms"
    elif report.fed:
        yield "verdict", f"fed: a batch every {report.batch_ms:.0f} ms, a training step of {report.step_ms:g} ms"
    else:
        yield (
            "verdict",
            f"starving: a batch every {report.batch_ms:.0f} ms, a training step of {report.step_ms:g} ms: the model "
            f"waits {report.wait_share:.0%} of the time; `shardflow tune` looks for better settings",
        )
