"""The stages of a worker, one by one: a pipeline run in this process, with a clock between its stages.

A worker does the same in its own process; only what the hand-over costs it cannot be seen here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from shardflow.loading.loader import Loader

STAGES = ("plan", "read", "decode", "augment", "collate")


def stage_cpu_ms(loader: Loader, seconds: float) -> dict[str, float]:
    """Return the CPU milliseconds per image that each stage takes, in the order of `STAGES`.

    Args:
        loader: Has been iterated before, and is not meanwhile.
        seconds: For about so long, and for two batches at least where there are two, the first of which
            does not count.
    """
    source, *rest = loader.data_loader.dataset.pipeline  # type: ignore[attr-defined] # a wds.DataPipeline
    clocks = [_Clock(iter(source))]
    for stage in rest[:-2]:  # the last two guard errors and hand over; neither does anything here
        clocks.append(_Clock(stage(clocks[-1])))
    names = ["plan", *(type(stage).__name__.lower() for stage in rest)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker
    try:
        begin, batches = time.perf_counter(), 0
        for _ in clocks[-1]:
            batches += 1
            if batches == 1 and len(loader) > 1:
                for clock in clocks:
                    clock.cpu_s = 0.0
            elif time.perf_counter() - begin > seconds:
                break
    finally:
        torch.set_num_threads(threads)
        for clock in reversed(clocks):
            clock.close()
    images = max(1, batches - 1) * loader.batch_sampler.batch_size
    inclusive = [0.0, *(clock.cpu_s for clock in clocks)]
    own = {name: inclusive[at + 1] - inclusive[at] for at, name in enumerate(names[: len(clocks)])}
    return {name: 1000 * max(0.0, own.get(name, 0.0)) / images for name in STAGES}


class _Clock:
    """Adds up the CPU time that an iterator takes for its items, that of the iterators it draws from included."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items
        self.cpu_s = 0.0

    def __iter__(self) -> _Clock:
        return self

    def __next__(self) -> Any:
        begin = time.thread_time()
        try:
            return next(self._items)
        finally:
            self.cpu_s += time.thread_time() - begin

    def close(self) -> None:
        """Let the iterator clean up."""
        if hasattr(self._items, "close"):
            self._items.close()
