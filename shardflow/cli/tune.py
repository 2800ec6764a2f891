"""`shardflow tune [URL]`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from shardflow.packing.progress import progress_bar

from .loader_options import chosen_loader, loader_options
from .options import json_option
from .output import print_json, print_lines
from .terminal import say

if TYPE_CHECKING:
    from shardflow.diagnostics.tuning import TuneReport


@click.command()
@loader_options
@click.option("--seconds", default=60.0, show_default=True, help="Approximate duration.")
@json_option
def tune(seconds: float, as_json: bool, **chosen: Any) -> None:
    """Find the number of workers and the prefetch factor that suit a loader on this machine.

    Prints the throughput of each setting, the bottleneck of the recommended one, its arguments to paste, and failed
    checks: shared memory, threads, forking, disk, cache, pinning, native decoder, shard sizes. Of all settings within
    3 % of the fastest, the recommended one has the fewest workers, and then the smallest prefetch factor.

    \b
    Examples:
      shardflow tune photos256/
      shardflow tune s3://bucket/photos256 --batch-size 512 --seconds 120
      shardflow tune --loader train.py:make_loader
    """
    with chosen_loader(**chosen) as (make_loader, _):
        from shardflow.diagnostics.tuning import tune as find_settings  # here, because torch takes seconds to import
        from shardflow.loading.worker_settings import Workers

        make_loader(num_workers=Workers(1, prefetch_factor=2))  # before the progress bar, so that errors stand alone
        begin = time.monotonic()
        with progress_bar(total=seconds, desc="trying", bar_format="{desc} {bar} {elapsed}", disable=as_json) as bar:

            def progress() -> None:
                bar.update(min(time.monotonic() - begin, seconds) - bar.n)

            report = find_settings(make_loader, seconds=seconds, progress=progress)
    if as_json:
        print_json(report.to_json())
        return
    _print_trials(report)
    workers, factor = report.settings.values()
    settings = f"num_workers=shardflow.Workers({workers}, prefetch_factor={factor})"
    if chosen["url"] is not None:
        call = "shardflow.Loader({url!r}, split={split!r}, batch_size={batch_size}, {settings})"
        settings = call.format(settings=settings, **chosen)
    print_lines([("paste", settings), *(("check", check.message) for check in report.checks)], 12)


def _print_trials(report: TuneReport) -> None:
    say("workers  prefetch   images/s  CPU-ms/image  first batch  shared memory")
    for trial in report.trials:
        mark = "   <- recommended" if trial is report.best else ""
        say(
            f"{trial.workers.count:7}  {trial.workers.prefetch_factor:8}  {trial.images_per_s:9,.0f}  "
            f"{trial.total.cpu_ms_per_image:12.2f}  {trial.first_batch_s:9.2f} s  "
            f"{trial.shared_bytes / 1e6:10,.0f} MB{mark}"
        )
    say(f"bottleneck  {report.bottleneck}: {report.advice}")
