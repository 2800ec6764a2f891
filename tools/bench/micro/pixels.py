"""What a cache of decoded images saves: CPU time per image with and without it, in fresh processes that take turns.

The epoch that fills the cache stands apart from those after it. The page cache holds the dataset, which is local.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median

import torch

import shardflow
from bench.processes import call
from bench.report import markdown
from bench.usage import epoch_us

TIERS = ("page cache", "decoded, on disk", "decoded, in memory")
EPOCHS = 4


def measure(url: str, rounds: int) -> str:
    """Return a table with a row for each number of workers and tier."""
    found: dict[tuple[int, str], list[list[float]]] = {(workers, tier): [] for workers in (0, 2) for tier in TIERS}
    for _ in range(rounds):
        for (workers, tier), runs in found.items():
            with tempfile.TemporaryDirectory(dir="/dev/shm" if tier == TIERS[2] else Path(url).parent) as folder:
                cache = None if tier == TIERS[0] else f"{folder}/cache"
                runs.append(call(sys.executable, "micro.pixels.epochs", url=url, workers=workers, cache=cache))
    lines = []
    for (workers, tier), runs in found.items():
        first, later = median(epochs[0] for epochs in runs), median(median(epochs[1:]) for epochs in runs)
        lines.append((str(workers), tier, f"{first:.2f}", f"{later:.3f}"))
    return markdown(("workers", "tier", "first epoch, CPU-ms per image", "later epochs"), lines)


def epochs(url: str, workers: int, cache: str | None) -> list[float]:
    """Return the CPU-ms per image of each epoch."""
    torch.set_num_threads(1)
    pixels = None if cache is None else shardflow.Cache(cache, pixels="100GB")
    loader = shardflow.Loader(url, batch_size=64, tail="short", num_workers=workers, cache=pixels)
    return [epoch_us(loader) / 1000 for _ in range(EPOCHS)]
