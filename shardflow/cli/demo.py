"""`shardflow demo`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from shardflow._cores import allowed_cores
from shardflow.demo.pictures import make_pictures
from shardflow.demo.scenes import SCENES
from shardflow.errors import ConfigError
from shardflow.storage.local_files import map_os_errors

from .options import PathOrUrl
from .signals import ending_at_once
from .terminal import say

_TRAIN, _VAL = 10, 2  # pictures of each class that --draw makes


@click.command()
@click.option("--images", type=PathOrUrl(), metavar="DIR", help="Folder of images.  [default: pictures drawn now]")
@click.option("--output", type=PathOrUrl(), default="demo-output", show_default=True, help="Folder for the results.")
@click.option("--draw", type=PathOrUrl(), metavar="DIR", help="Only draw 96 pictures into this new folder.")
@click.option("--epochs", default=12, show_default=True, help="Training epochs; 0 skips the training.")
@click.option("--workers", type=int, help="Number of processes.  [default: one per core, at most 8]")
def demo(images: str | None, output: str, draw: str | None, epochs: int, workers: int | None) -> int:
    """Show every step on a few hundred pictures: pack, verify, stream, resume, train, and draw a contact sheet.

    Nothing is overwritten: in a used output folder, a new folder is made.

    \b
    Examples:
      shardflow demo --images photos/ --output demo-output/
      shardflow demo --draw photos/
    """
    if draw is not None:
        return _draw(draw)
    say("shardflow demo")
    started = time.perf_counter()

    with ending_at_once():
        from shardflow.demo.steps import run_demo  # here, because torch takes seconds to import

    result = run_demo(output, images=images, epochs=epochs, workers=workers, report=_report)
    for failure in result.failures:
        say(f"shardflow: {failure}", err=True)
    _report("done", f"in {time.perf_counter() - started:.0f} s")
    return 1 if result.failures else 0


def _draw(folder: str) -> int:
    path = Path(folder)
    if path.exists():
        raise ConfigError(f"{folder} exists already; choose a new folder")
    with map_os_errors(path):
        made = make_pictures(path, train=_TRAIN, val=_VAL, workers=allowed_cores())
    say(f"drew {made:,} pictures of {len(SCENES)} classes in {folder}: {', '.join(SCENES)}")
    return 0


def _report(step: str, line: str) -> None:
    say(f"  {step:9}{line}")
