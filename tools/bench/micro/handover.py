"""What bounds the training process: images/s and its CPU time per batch when the workers need no time to decode.

The decoder only takes memory for its batch, so that the workers read, check and hand over. On a machine with fewer
cores than workers the images/s are those of the workers; the CPU time of the training process is what this is about.
"""

from __future__ import annotations

import resource
import time
import warnings
from statistics import median
from typing import Any

import numpy as np

import shardflow
from bench.report import markdown

CASES = ((64, 2), (256, 2), (256, 8), (256, 16), (1024, 2))
"""Batch size and workers."""
BATCHES = 400


class EmptyDecoder(shardflow.decoders.CenterCrop):
    """Hands over memory as it is, in the place of crops of 224 pixels."""

    def decode(self, payloads: Any, crops: Any, out: Any) -> Any:  # noqa: ARG002
        """Leave uint8 [B, 3, 224, 224] as it is."""
        return {}


def measure(url: str, rounds: int) -> str:
    """Return the table."""
    warnings.filterwarnings("ignore", "This DataLoader will create")
    loaders = {case: _loader(url, *case) for case in CASES}
    found: dict[tuple[int, int], list[tuple[float, float]]] = {case: [] for case in CASES}
    for _ in range(rounds):
        for case, loader in loaders.items():
            found[case].append(_epoch(loader))
    lines = []
    for (batch_size, workers), epochs in found.items():
        wall_s, cpu_s = map(median, zip(*epochs, strict=True))
        per_batch, images = 1e6 * cpu_s / BATCHES, batch_size * BATCHES
        share = f"{50_000 * cpu_s / images:.0%}"
        lines.append((str(batch_size), str(workers), f"{images / wall_s:,.0f}", f"{per_batch:.0f}", share))
    return markdown(("batch size", "workers", "images/s", "CPU-µs per batch", "of a core at 50,000 images/s"), lines)


def _loader(url: str, batch_size: int, workers: int) -> shardflow.Loader:
    return shardflow.Loader(
        url,
        batch_size=batch_size,
        num_workers=workers,
        decoder=EmptyDecoder(),
        samples_per_epoch=BATCHES * batch_size,
    )


def _epoch(loader: shardflow.Loader) -> tuple[float, float]:
    """Return the seconds of an epoch, and the CPU seconds of this process in it."""
    begin, before = time.perf_counter(), _cpu_s()
    seen = np.sum([len(images) for images, _ in loader])
    assert seen == BATCHES * loader.batch_size
    return time.perf_counter() - begin, _cpu_s() - before


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
