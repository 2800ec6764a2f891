"""`shardflow demo`."""

from __future__ import annotations

import time

import click

from .options import PathOrUrl


@click.command()
@click.option("--images", type=PathOrUrl(), metavar="DIR", help="Folder of images.  [default: pictures drawn now]")
@click.option("--output", type=PathOrUrl(), default="demo-output", show_default=True, help="Folder for the results.")
@click.option("--epochs", default=12, show_default=True, help="Training epochs; 0 skips the training.")
@click.option("--workers", type=int, help="Number of processes.  [default: one per core, at most 8]")
def demo(images: str | None, output: str, epochs: int, workers: int | None) -> int:
    """Show every step on a few hundred pictures: pack, verify, stream, resume, train, and draw a contact sheet.

    Nothing is overwritten: if the output folder is in use, a new folder in it is used.

    \b
    Example:
      shardflow demo --images photos/ --output demo-output/
    """
    click.echo("shardflow demo")
    started = time.perf_counter()

    from shardflow.demo.demo import run_demo  # here, because torch takes seconds to import

    result = run_demo(output, images=images, epochs=epochs, workers=workers, report=_report)
    for failure in result.failures:
        click.echo(f"shardflow: {failure}", err=True)
    _report("done", f"in {time.perf_counter() - started:.0f} s")
    return 1 if result.failures else 0


def _report(step: str, line: str) -> None:
    click.echo(f"  {step:9}{line}")
