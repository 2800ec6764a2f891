"""Statistics of a training loop: where its time goes, summed up in one line.

They cost two clock readings per batch, so they are always on. The first batch is counted separately, because it waits
for workers to start.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

Item = TypeVar("Item")

RECENT = 10_000
"""Number of batches over which percentiles are taken."""


class BatchCounts(NamedTuple):
    """The samples of a batch, the bytes of their parts, and the bytes downloaded since the previous batch."""

    samples: int
    read_bytes: int
    network_bytes: int


_COUNTED = (*BatchCounts._fields, "replaced")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Where the time of the current or last iteration, or of the whole run, went; `str()` names the remedy.

    Attributes:
        batches: Number of batches handed out, including the first.
        first_s: Seconds until the first batch was ready.
        total_s: Seconds from then until the last batch was handed out.
        waiting_s: Seconds of these in which training waited because the loader had no batch ready.
        copying_s: Seconds of these in which training waited for the copy of a batch to the device.
        transforms_s: Seconds in the transforms of `device.Prefetcher`, on the CPU or GPU.
        samples: Number of samples handed out.
        read_bytes: Bytes of their parts, read from local disk or the cache.
        network_bytes: Bytes of shards that this rank downloaded meanwhile.
        replaced: Number of damaged samples that were replaced or left out.
        epochs, earlier_epochs: Number of epochs that are included, and of earlier ones that are not. An epoch is an
            iteration that handed out a batch, such as the rest of an epoch after a resume.
        wait_p50_s, wait_p95_s, wait_p99_s: Percentiles of the wait for a batch over the last 10,000 batches, without
            the first of each iteration.
    """

    batches: int
    first_s: float
    total_s: float
    waiting_s: float
    copying_s: float
    transforms_s: float
    samples: int = 0
    read_bytes: int = 0
    network_bytes: int = 0
    replaced: int = 0
    epochs: int = 0
    earlier_epochs: int = 0
    wait_p50_s: float = 0.0
    wait_p95_s: float = 0.0
    wait_p99_s: float = 0.0

    @property
    def samples_per_s(self) -> float:
        """Samples handed out per second, from the first batch on."""
        after_first = self.samples * (self.batches - 1) / self.batches if self.batches else 0.0
        return after_first / self.total_s if self.total_s else 0.0

    @property
    def computing_s(self) -> float:
        """The remaining seconds, spent in training steps."""
        return max(0.0, self.total_s - self.waiting_s - self.copying_s - self.transforms_s)

    @property
    def waiting_share(self) -> float:
        """The share of the time spent waiting for data, 0 … 1."""
        return self._share(self.waiting_s)

    def _share(self, seconds: float) -> float:
        return min(1.0, seconds / self.total_s) if self.total_s else 0.0

    def __str__(self) -> str:
        if self.batches < 2:
            return f"no statistics yet: {self.batches} batch{'es' * (self.batches != 1)} handed out"
        waiting, copying, transforms = map(self._share, (self.waiting_s, self.copying_s, self.transforms_s))
        line = (
            f"{waiting:.0%} of the time waiting for data, {copying:.0%} for the copy, "
            f"{transforms:.0%} in device transforms, {self._share(self.computing_s):.0%} computing"
        )
        if self.earlier_epochs:
            line += f", in the last of {self.earlier_epochs + 1} epochs (stats(whole_run=True) includes all)"
        elif self.epochs > 1:
            line += f", in {self.epochs} epochs"
        greatest = max(waiting, copying, transforms)
        if greatest < 0.05:  # smaller shares need no advice
            return f"compute-bound: {line}; faster loading would gain nothing, fewer workers may suffice"
        if greatest < 0.15:
            return f"nearly compute-bound: {line}; faster input could gain {greatest:.0%} at most"
        if waiting == greatest:
            return (
                f"input-bound: {line}; raise num_workers up to the number of cores, then move transforms to the device "
                "or pack smaller images"
            )
        if copying > transforms:
            return (
                f"copy-bound: {line}; return uint8 and normalise on the device, and leave pin_memory on; if the device "
                "decodes, decode in the workers"
            )
        return f"transform-bound: {line}; torch.compile the device transforms, or move some to the workers"


class StatsRecorder:
    """Adds up the times for `Stats`; not thread-safe."""

    def __init__(self) -> None:
        self._sums = self._earlier = _zeros()  # of this iteration, and of all earlier ones
        self._waits: deque[float] = deque(maxlen=RECENT)
        self.begin()

    def begin(self) -> None:
        """Reset all sums: an iteration begins, and its first batch is requested."""
        self._earlier = {name: self._earlier[name] + value for name, value in self._sums.items()}
        self._sums = _zeros()
        self._start = time.perf_counter()

    def count(self, counts: BatchCounts, replaced: int) -> None:
        """Record the counts of a batch."""
        for name, value in zip(_COUNTED, (*counts, replaced), strict=True):
            self._sums[name] += value

    def answered(self, *, waiting_s: float, copying_s: float = 0.0, transforms_s: float = 0.0) -> None:
        """Record that a batch is handed out, and how long training waited for it."""
        now, sums = time.perf_counter(), self._sums
        sums["batches"] += 1
        if sums["batches"] == 1:
            sums["epochs"], sums["first_s"], self._start = 1, now - self._start, now
            return
        sums["total_s"] = now - self._start
        sums["waiting_s"] += waiting_s
        self._waits.append(waiting_s)
        sums["copying_s"] += copying_s
        sums["transforms_s"] += transforms_s

    def timed(self, items: Iterator[Item]) -> Iterator[Item]:
        """Reset all sums, and yield the items; the time to get an item counts as waiting."""
        self.begin()
        asked = time.perf_counter()
        for item in items:
            self.answered(waiting_s=time.perf_counter() - asked)
            yield item
            asked = time.perf_counter()

    def stats(self, *, whole_run: bool = False) -> Stats:
        """Return the sums since the iteration began, or of all iterations."""
        sums = {name: value + whole_run * self._earlier[name] for name, value in self._sums.items()}
        sums["earlier_epochs"] = 0 if whole_run else self._earlier["epochs"]
        waits = sorted(self._waits)
        for percent in (50, 95, 99):  # nearest rank
            sums[f"wait_p{percent}_s"] = waits[-(-percent * len(waits) // 100) - 1] if waits else 0.0
        return Stats(**sums)


def _zeros() -> dict[str, Any]:
    return {field.name: 0.0 if field.name.endswith("_s") else 0 for field in fields(Stats)}
