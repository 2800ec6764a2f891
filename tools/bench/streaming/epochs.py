"""Measures one loader in this process: an epoch with nothing at hand, and those that follow it.

Prints a line of JSON after the first and after the last, and goes on when it reads a line. The cold epoch begins
before the loader is made; imports are done by then. CPU time is that of this process and all below it, ended ones
included.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "loaders"))

import torch
from conditions import WARM
from measure import cpu_s, machine_cpu_s
from place import Place

_TOUCHED_FILES = 128


def epochs(batches: Callable[[], Iterator[Any]], repeats: int, samples: int, served_by: list[int]) -> dict[str, Any]:
    """Run through epochs, and return what they took.

    Args:
        batches: Starts one.
        repeats: How many.
        samples: How many there are in each.
        served_by: The processes of the server and the proxies, which are neither this loader nor others.
    """
    seen: list[list[int]] = []
    busy, cpu, served, begun = machine_cpu_s(), cpu_s(os.getpid()), _sum(served_by), time.perf_counter()
    first_batch_s = 0.0
    for _ in range(repeats):
        numbers: list[int] = []
        for images, batch_numbers in batches():
            if not seen and not numbers:
                first_batch_s = time.perf_counter() - begun
                if images.shape[1:] != (3, 224, 224) or images.dtype != torch.uint8:
                    raise AssertionError(f"expected uint8 [3, 224, 224], found {images.dtype} {list(images.shape[1:])}")
            numbers += map(int, batch_numbers)
        seen.append(numbers)
    wall = time.perf_counter() - begun
    cpu, served, busy = cpu_s(os.getpid()) - cpu, _sum(served_by) - served, machine_cpu_s() - busy
    images_seen, worst = sum(map(len, seen)), min(seen, key=lambda numbers: len(set(numbers)))
    return {
        "images_per_s": images_seen / wall,
        "cpu_ms_per_image": 1000 * cpu / images_seen,
        "server_cpu_ms_per_image": 1000 * served / images_seen,
        "first_batch_s": first_batch_s,
        "exact": all(sorted(numbers) == list(range(samples)) for numbers in seen),
        "samples": len(worst),
        "distinct": len(set(worst)),
        "others": max(0.0, busy - cpu - served) / (wall * (os.cpu_count() or 1)),
    }


def _sum(pids: list[int]) -> float:
    return sum(map(cpu_s, pids))


def settle(folder: Path) -> None:
    """Bring memory into the state of a machine and a process that have been at work.

    A virtual machine may give free memory back to its host, and then takes 2 ms for each MB that is written there, for
    which loaders with a cache would pay and others not: a gigabyte is written and deleted. What the imports left behind
    is collected, which otherwise happens whenever the number of objects gets to some limit.
    """
    files = [folder / f"touched{number}" for number in range(_TOUCHED_FILES)]
    for file in files:
        file.write_bytes(bytes(8 << 20))
    for file in files:
        file.unlink()
    gc.collect()


def main() -> None:
    """Run the cold epoch and the warm ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way")
    parser.add_argument("variant")
    parser.add_argument("--url", required=True)
    parser.add_argument("--local", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--served-by", type=int, nargs="*", default=[])
    given = parser.parse_args()
    torch.set_num_threads(1)  # two threads that wait for each other would take the workers' cores
    way = importlib.import_module(f"ways.{given.way}")
    place = Place(url=given.url, local=given.local, cache=given.cache)
    settle(given.cache)
    started: list[Callable[[], Iterator[Any]]] = []

    def batches() -> Iterator[Any]:
        if not started:
            started.append(way.open_loader(place, given.variant))
        return started[0]()

    for repeats in (1, WARM):
        print(json.dumps(epochs(batches, repeats, given.samples, given.served_by)), flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main()
    os._exit(0)  # some libraries wait for threads that do not end
