"""`shardflow demo`."""

from __future__ import annotations

import time

import click


@click.command(short_help="Show all of it on a few hundred pictures, in a minute.")
@click.option("--images", type=click.Path(), metavar="DIR", help="Use these images and not pictures made on the spot.")
@click.option("--output", type=click.Path(), default="demo-output", show_default=True, help="Folder for the results.")
@click.option("--epochs", default=12, show_default=True, help="Of the training; 0 leaves it out.")
@click.option("--workers", type=int, help="Processes.  [default: one per core, 8 at most]")
def demo(images: str | None, output: str, epochs: int, workers: int | None) -> int:
    """Pack pictures, verify them, stream them into a small net until it learns, and draw what happened to them.

    Nothing is overwritten: where the output folder is in use, a fresh folder in it is taken.

    \b
    Example:
      shardflow demo --images photos/ --output demo-output/
    """
    click.echo("shardflow demo")
    started = time.perf_counter()

    from shardflow.demo.tour import take_tour  # here, because torch takes seconds to import

    outcome = take_tour(output, images=images, epochs=epochs, workers=workers, say=_say)
    for complaint in outcome.complaints:
        click.echo(f"shardflow: {complaint}", err=True)
    _say("done", f"in {time.perf_counter() - started:.0f} s")
    return 1 if outcome.complaints else 0


def _say(step: str, line: str) -> None:
    click.echo(f"  {step:9}{line}")
