"""Measures one loader in this process: a first epoch to get warm, then the epochs that count.

Prints one line of JSON. CPU time is that of the whole process tree, children that have ended included.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from peers.recipe import MEAN, STD

_TICKS = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """Return the process and all below it."""
    pids = [pid]
    for pid in pids:
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
        except OSError:  # it has just ended
            continue
    return pids


def cpu_s(pid: int) -> float:
    """Return user and system seconds of a process tree so far."""
    ticks = 0
    for process in tree(pid):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))  # own and those of children waited for
    return ticks / _TICKS


def machine_cpu_s() -> float:
    """Return the seconds that all processors have been busy so far, whoever used them."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS


def memory_bytes(pid: int) -> int:
    """Return the proportional set sizes of a process tree: shared pages are counted once."""
    total = 0
    for process in tree(pid):
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return total


class Peak:
    """Watches the memory of this process tree from a thread; only while getting warm, because looking takes time."""

    def __init__(self) -> None:
        self.bytes = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._done.wait(0.1):
            self.bytes = max(self.bytes, memory_bytes(os.getpid()))

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


class Normalise:
    """uint8 to normalised float32, into a buffer that is used again for the next batch.

    One image at a time, so that it stays in the cache, and always along contiguous memory: channels-last images as rows
    of interleaved values.
    """

    def __init__(self) -> None:
        mean, std = torch.tensor(MEAN), torch.tensor(STD)
        self._factors, self._shifts = 1 / (255 * std), -mean / std
        self._buffer = torch.empty(0)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return `images` as float32, channels last where they are; overwritten by the next call."""
        if self._buffer.shape[1:] != images.shape[1:] or len(self._buffer) < len(images):
            self._buffer = torch.empty_like(images, dtype=torch.float32)
        whole = result = self._buffer[: len(images)]
        factors, shifts = self._factors[:, None, None], self._shifts[:, None, None]
        if images.stride(1) == 1:
            images, result = (batch.permute(0, 2, 3, 1).flatten(2) for batch in (images, result))
            factors, shifts = (values.repeat(images.shape[2] // 3) for values in (self._factors, self._shifts))
        for image, normalised in zip(images, result, strict=True):
            normalised.copy_(image).mul_(factors).add_(shifts)
        return whole


def measure(peer: str, variant: str, data: Path, samples: int, epochs: int, keep_uint8: bool) -> dict[str, Any]:
    """Return what was measured."""
    torch.set_num_threads(1)  # two threads that wait for each other would take the workers' cores
    normalise = Normalise()
    open_loader = importlib.import_module(f"peers.{peer}").open_loader
    measured: dict[str, Any] = {"images_per_s": [], "cpu_ms_per_image": [], "exact": [], "others": []}

    def run(epoch: Any) -> list[int]:
        numbers: list[int] = []
        for images, batch_numbers in epoch:
            if images.dtype == torch.uint8 and not keep_uint8:
                images = normalise(images)
            if not numbers:
                measured.setdefault("first_batch_s", time.perf_counter() - begun)
                check(images, keep_uint8)
            numbers += map(int, batch_numbers)
        return numbers

    begun = time.perf_counter()
    start = open_loader(data, variant)
    with Peak() as peak:
        run(start())
    measured["peak_bytes"] = peak.bytes
    for _ in range(epochs):
        busy, cpu, wall = machine_cpu_s(), cpu_s(os.getpid()), time.perf_counter()
        numbers = run(start())
        wall, cpu, busy = time.perf_counter() - wall, cpu_s(os.getpid()) - cpu, machine_cpu_s() - busy
        measured["others"].append(max(0.0, busy - cpu) / (wall * (os.cpu_count() or 1)))
        measured["images_per_s"].append(len(numbers) / wall)
        measured["cpu_ms_per_image"].append(1000 * cpu / len(numbers))
        measured["exact"].append(sorted(numbers) == list(range(samples)))
        measured["samples"], measured["distinct"] = len(numbers), len(set(numbers))
    return measured


def check(images: torch.Tensor, keep_uint8: bool) -> None:
    """Raise unless the batch is what was asked for: no loader may win by doing less."""
    if images.shape[1:] != (3, 224, 224):
        raise AssertionError(f"expected images [3, 224, 224], found {list(images.shape[1:])}")
    if keep_uint8:
        return
    mean, std = float(images.mean()), float(images.std())
    if images.dtype != torch.float32 or not (-1.5 < mean < 1.5 and 0.3 < std < 2):
        raise AssertionError(f"expected normalised float32, found {images.dtype}, mean {mean:.2f}, deviation {std:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer")
    parser.add_argument("variant")
    parser.add_argument("data", type=Path)
    parser.add_argument("--prepare", type=Path, metavar="PICTURES", help="only write DATA from these pictures")
    parser.add_argument("--samples", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--keep-uint8", action="store_true")
    given = parser.parse_args()
    if given.prepare:
        importlib.import_module(f"peers.{given.peer}").prepare(given.prepare, given.data)
    else:
        print(json.dumps(measure(given.peer, given.variant, given.data, given.samples, given.epochs, given.keep_uint8)))
    sys.stdout.flush()
    os._exit(0)  # some libraries wait for threads that do not end
