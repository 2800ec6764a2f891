"""The loader probe: runs a loader and measures it. A measurement has the counters of an interval."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Generator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from shardflow.loading.loader import Loader

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Counters of an interval; measurements can be added and subtracted.

    CPU time is that of this process, of its workers, and of all processes on the machine; `disk_bytes` are the bytes
    that the workers read from a disk and not from the page cache.
    """

    images: int = 0
    wall_s: float = 0.0
    own_cpu_s: float = 0.0
    workers_cpu_s: float = 0.0
    machine_cpu_s: float = 0.0
    disk_bytes: int = 0

    def __add__(self, other: Measurement) -> Measurement:
        return Measurement(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})

    def __sub__(self, other: Measurement) -> Measurement:
        return Measurement(**{each.name: getattr(self, each.name) - getattr(other, each.name) for each in fields(self)})

    @property
    def images_per_s(self) -> float:
        """Images per wall-clock second."""
        return self.images / self.wall_s

    @property
    def cpu_s(self) -> float:
        """CPU seconds of this process and its workers."""
        return self.own_cpu_s + self.workers_cpu_s

    @property
    def cpu_ms_per_image(self) -> float:
        """CPU milliseconds of this process and its workers, per image."""
        return 1000 * self.cpu_s / self.images


class LoaderProbe(contextlib.AbstractContextManager["LoaderProbe"]):
    """Runs a loader, epoch after epoch, and measures its throughput until the context ends.

    The batches are discarded, as in training whose steps take no time. `first_batch_s` includes the start of the
    workers; `batch_bytes` is the size of the tensors of the first batch.
    """

    def __init__(self, loader: Loader) -> None:
        before = _children()
        begin = time.perf_counter()
        self.loader = loader
        self._batches = _endless(loader)
        first = next(self._batches)
        self.first_batch_s = time.perf_counter() - begin
        tensors = (leaf for leaf in pytree.tree_leaves(first) if isinstance(leaf, torch.Tensor))
        self.batch_bytes = sum(tensor.nbytes for tensor in tensors)
        self._workers = _children() - before

    def measure(self, seconds: float) -> Measurement:
        """Measure about `seconds`, and at least two batches per worker, after a warm-up of one batch per worker."""
        workers = self.loader.num_workers
        for _ in range(workers):
            next(self._batches)
        before = self._counters(0)
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds or count < 2 * max(1, workers):
            next(self._batches)
            count += 1
        return self._counters(count * self.loader.batch_size) - before

    def __exit__(self, *_: object) -> None:
        self._batches.close()
        self.loader.set_epoch(self.loader.state_dict()["epoch"] + 1)  # the epoch was left on purpose
        self.loader.close()

    def _counters(self, images: int) -> Measurement:
        user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split()[1:9])
        return Measurement(
            images=images,
            wall_s=time.perf_counter(),
            own_cpu_s=time.process_time(),
            workers_cpu_s=sum(map(_cpu_ticks, self._workers)) / _TICKS,
            machine_cpu_s=(user + nice + system + irq + softirq) / _TICKS,
            disk_bytes=sum(map(_disk_bytes, self._workers)),
        )


def _children() -> set[int]:
    return {child.pid for child in multiprocessing.active_children() if child.pid is not None}


def _cpu_ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0  # the worker has ended; the loader reports it
    return int(fields[11]) + int(fields[12])  # proc(5): utime and stime, counted from behind "(name)"


def _disk_bytes(pid: int) -> int:
    try:
        counters = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    except OSError:
        return 0  # the worker has ended, or the container denies access
    return int(counters["read_bytes"])


def _endless(loader: Loader) -> Generator[Any]:
    while True:
        yield from loader
