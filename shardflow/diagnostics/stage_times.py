"""Stage times: the CPU time of each stage of a worker's pipeline.

The pipeline runs in this process, with a clock between its stages. A worker does the same work in its own process; the
cost of sending batches to the training process is not included.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from shardflow.loading.loader import Loader

STAGES = ("plan", "read", "decode", "augment", "collate")


def stage_cpu_ms(loader: Loader, seconds: float) -> dict[str, float]:
    """Return the CPU milliseconds per image of each stage of a loader; the first of several batches does not count."""
    source, *rest = loader.data_loader.dataset.pipeline  # type: ignore[attr-defined] # a wds.DataPipeline
    clocks = [_TimedIterator(iter(source))]
    for stage in rest[:-2]:  # the last two forward errors and send batches, which does not happen here
        clocks.append(_TimedIterator(stage(clocks[-1])))
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
    own = {name: inclusive[number + 1] - inclusive[number] for number, name in enumerate(names[: len(clocks)])}
    return {name: 1000 * max(0.0, own.get(name, 0.0)) / images for name in STAGES}


class _TimedIterator:
    """Sums the CPU time that an iterator takes for its items, including the iterators that it reads from."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items
        self.cpu_s = 0.0

    def __iter__(self) -> _TimedIterator:
        return self

    def __next__(self) -> Any:
        begin = time.thread_time()
        try:
            return next(self._items)
        finally:
            self.cpu_s += time.thread_time() - begin

    def close(self) -> None:
        """Close the iterator."""
        if hasattr(self._items, "close"):
            self._items.close()
