"""Stage times: the CPU time of each stage of a worker's pipeline.

The pipeline runs in this process, with a clock between its stages. A worker does the same work in a separate process;
the cost of sending batches to the training process is not included.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import webdataset as wds

from .fork_rng import one_thread

STAGES = ("plan", "read", "decode", "annotate", "augment", "collate")


def stage_cpu_ms(
    pipeline: wds.DataPipeline, seconds: float, *, clock: Callable[[], float] = time.thread_time
) -> dict[str, float]:
    """Return the CPU milliseconds per image of each stage; the first batch does not count if there are several.

    A stage that the pipeline lacks takes 0. `clock` returns the CPU seconds of this thread.
    """
    source, *rest = pipeline.pipeline
    clocks = [_TimedIterator(iter(source), clock)]
    for stage in rest[:-2]:  # not the last two, which forward errors and send batches
        clocks.append(_TimedIterator(stage(clocks[-1]), clock))
    names = ["plan", *(type(stage).__name__.lower() for stage in rest)]
    with one_thread():
        try:
            begin, images = time.perf_counter(), list[int]()
            for output in clocks[-1]:
                images.append(output.counts.samples)
                if time.perf_counter() - begin > seconds and len(images) > 1:
                    break
                if len(images) == 1:
                    first = [timed.cpu_s for timed in clocks]
        finally:
            for timed in reversed(clocks):
                timed.close()
    if len(images) > 1:
        del images[0]
        for timed, cpu_s in zip(clocks, first, strict=True):
            timed.cpu_s -= cpu_s
    inclusive = [0.0, *(timed.cpu_s for timed in clocks)]
    own = {name: inclusive[number + 1] - inclusive[number] for number, name in enumerate(names[: len(clocks)])}
    # Include every stage of the pipeline, so that its time does not count as transfer.
    return {
        name: 1000 * max(0.0, cpu_s) / max(1, sum(images)) for name, cpu_s in (dict.fromkeys(STAGES, 0.0) | own).items()
    }


class _TimedIterator:
    """Sums the CPU time of an iterator, including the iterators that it reads from."""

    def __init__(self, items: Iterator[Any], clock: Callable[[], float]) -> None:
        self._items, self._clock = items, clock
        self.cpu_s = 0.0

    def __iter__(self) -> _TimedIterator:
        return self

    def __next__(self) -> Any:
        begin = self._clock()
        try:
            return next(self._items)
        finally:
            self.cpu_s += self._clock() - begin

    def close(self) -> None:
        """Close the iterator."""
        if hasattr(self._items, "close"):
            self._items.close()
