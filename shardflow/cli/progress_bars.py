"""Progress bars of the commands: over shards, and of waiting."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from shardflow.formats.shard import Shard
from shardflow.packing.progress import DELAY_S, progress_bar

from .output import total_bytes

_TICK_S = 1.0


@contextlib.contextmanager
def shard_bar(shards: Sequence[Shard], doing: str, *, disable: bool = False) -> Iterator[Callable[[Shard], None]]:
    """Show a progress bar over the bytes of shards; call the yielded function with each finished shard.

    Without shards it only shows that the work continues, see `show_waiting`.
    """
    if not shards:
        with show_waiting(doing, disable=disable):
            yield lambda _: None
        return
    with (
        progress_bar(total=total_bytes(shards), desc=doing, unit="B", unit_scale=True, disable=disable) as bar,
        ticking(bar),
    ):
        yield lambda shard: bar.update(shard.bytes)


@contextlib.contextmanager
def show_waiting(doing: str, *, disable: bool = False) -> Iterator[None]:
    """Show a task and its duration in a terminal, if it takes longer than `DELAY_S`."""
    hidden = disable or not sys.stderr.isatty()
    shown = progress_bar(desc=doing, bar_format="{desc}: {elapsed}", delay=DELAY_S, leave=False, disable=hidden)
    with shown as bar, ticking(bar):
        yield


@contextlib.contextmanager
def ticking(bar: Any) -> Iterator[None]:
    """Keep the clock of a progress bar running in a terminal."""
    ended, begin = threading.Event(), time.monotonic()

    def tick() -> None:
        while not ended.wait(_TICK_S):
            if time.monotonic() >= begin + (bar.delay or 0):
                bar.refresh()

    with contextlib.ExitStack() as stack:
        if not bar.disable and sys.stderr.isatty():
            thread = threading.Thread(target=tick, daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(ended.set)
        yield
