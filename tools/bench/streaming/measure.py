"""Measures one loader in this process."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

from bench.loaders.peers import Place, Start
from bench.usage import Stopwatch


def epochs(
    peer: str, variant: str, place: dict[str, str], samples: int, servers: list[int], warm: int
) -> Generator[dict[str, Any]]:
    """Run an epoch with an empty cache, and `warm` others; yields the costs of the one and of the others.

    The cold epoch begins before the loader is made; imports are done by then.
    """
    import torch

    torch.set_num_threads(1)  # two threads that wait for each other would take the workers' cores
    loader = importlib.import_module(f"bench.loaders.peers.{peer}")
    with contextlib.suppress(ImportError):
        import s3fs  # noqa: F401 - shardflow opens s3:// with it; importing is not measured
    where = Place(place["url"], Path(place["local"]), Path(place["cache"]))
    os.environ["XDG_CACHE_HOME"] = place["cache"]
    settle(where.cache)
    start = functools.cache(lambda: loader.open_remote(where, variant))
    for repeats in (1, warm):
        yield _measured(lambda: start()(), repeats, samples, servers)


def _measured(batches: Start, repeats: int, samples: int, servers: list[int]) -> dict[str, Any]:
    import torch

    seen: list[list[int]] = []
    first_batch_s, stopwatch = 0.0, Stopwatch(servers)
    for _ in range(repeats):
        numbers: list[int] = []
        for images, batch_numbers in batches():
            if not seen and not numbers:
                first_batch_s = stopwatch.wall_s()
                if images.shape[1:] != (3, 224, 224) or images.dtype != torch.uint8:
                    raise AssertionError(f"expected uint8 [3, 224, 224], found {images.dtype} {list(images.shape[1:])}")
            numbers += map(int, batch_numbers)
        seen.append(numbers)
    used, count = stopwatch.read(), sum(map(len, seen))
    worst = min(seen, key=lambda numbers: len(set(numbers)))
    return {
        "images_per_s": count / used.wall_s,
        "cpu_ms_per_image": 1000 * used.cpu_s / count,
        "server_cpu_ms_per_image": 1000 * used.server_cpu_s / count,
        "first_batch_s": first_batch_s,
        "exact": all(sorted(numbers) == list(range(samples)) for numbers in seen),
        "samples": len(worst),
        "distinct": len(set(worst)),
        "others": used.others,
    }


def settle(folder: Path) -> None:
    """Bring memory into the state of a machine and a process that have been at work.

    A virtual machine may give free memory back to its host, and then takes 2 ms for each MB that is written there,
    which only loaders with a cache would pay: a gigabyte is written and deleted. Garbage of the imports is collected,
    which otherwise happens whenever the number of objects reaches some limit.
    """
    files = [folder / f"touched{number}" for number in range(128)]
    for file in files:
        file.write_bytes(bytes(8 << 20))
    for file in files:
        file.unlink()
    gc.collect()
