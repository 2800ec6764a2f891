"""Where shardflow's own CPU time goes, in µs per image: the stages one by one, the kernel alone, the whole loader.

The stages run in this process as they do in a worker, on the same batches. The kernel alone runs on the same crops,
into memory that is warm, in as many processes at once as there are workers: two busy cores share caches and memory, and
each is slower than one alone. Medians over epochs.

    python tools/bench/loaders/budget.py DATASET
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import Normalise, cpu_s, machine_cpu_s
from peers.recipe import BATCH, SIZE, WORKERS

from shardflow import Loader, RandomResizedCropDecoder, native
from shardflow.dataset.dataset import open_dataset
from shardflow.loading.batch import Batch
from shardflow.loading.crop_sampling import random_resized_crops
from shardflow.loading.decoders import _sizes
from shardflow.loading.sampler import EpochOrder, EpochStart, PlanSampler, WorkerControl
from shardflow.loading.stages import Collate, Decode, Read
from shardflow.order.schedule import Schedule


class Worker:
    """What a worker of a loader does, in this process, a stage at a time."""

    def __init__(self, url: Path) -> None:
        split = open_dataset(url)["train"]
        self.steps = len(split) // BATCH
        self.images = self.steps * BATCH
        order = EpochOrder(split, seed=0, window=8192, shuffle=True)
        self._source = PlanSampler(order, Schedule(length=len(split), batch_size=BATCH), WorkerControl(1))
        self._decoder = RandomResizedCropDecoder(SIZE)
        self._warm = np.zeros((BATCH, 3, SIZE, SIZE), np.uint8)
        self._read = Read(split, verify=True, keys=False, substitute=False)
        self._decode = Decode(self._decoder, lambda _: torch.from_numpy(self._warm), substitute=False)
        self._collate = Collate(("image", "label"), None, 0)

    def stages(self, epoch: int) -> dict[str, float]:
        """Return the CPU time of each stage in an epoch."""
        spent: dict[str, float] = defaultdict(float)

        def timed(stage: str, work: Callable[..., Any], *arguments: Any) -> Any:
            begun = time.process_time()
            result = work(*arguments)
            spent[stage] += 1e6 * (time.process_time() - begun) / self.images
            return result

        normalise = Normalise()
        for step in range(self.steps):
            batch = timed("plan", self._source.batch, EpochStart(epoch, 0, 1), step)
            batch = timed("read and check", _single, self._read, batch)
            payloads, sizes, boxes, flips = self.crops(batch)
            timed("  of it CRC-32", lambda payloads=payloads: [zlib.crc32(payload) for payload in payloads])
            timed("  of decoding: sizes from headers", _sizes, payloads)
            timed("  of decoding: boxes", random_resized_crops, sizes, batch.keys, *self._ranges())
            timed("  of decoding: the kernel", native.decode_crops, payloads, boxes, flips, self._warm)
            batch = timed("decode", _single, self._decode, batch)
            timed("collate", _single, self._collate, batch)
            timed("(normalise, in the main process)", normalise, torch.from_numpy(self._warm))
        return dict(spent)

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield an epoch's batches, read."""
        return self._read(self._source.batch(EpochStart(epoch, 0, 1), step) for step in range(self.steps))

    def crops(self, batch: Batch) -> tuple[Any, Any, Any, Any]:
        """Return payloads, sizes, boxes and flips of a batch."""
        payloads = [sample.parts["jpg"] for sample in batch.samples]
        sizes = _sizes(payloads)
        boxes, flip = random_resized_crops(sizes, batch.keys, *self._ranges())
        return payloads, sizes, boxes, flip < self._decoder.hflip

    def _ranges(self) -> tuple[Any, Any]:
        return self._decoder.scale, self._decoder.ratio

    def kernel(self, epochs: int, together: Any, results: Any) -> None:
        """Time the kernel alone, starting each epoch with the other processes."""
        for epoch in range(epochs):
            work = [self.crops(batch) for batch in self.batches(epoch)]
            together.wait()
            begun = time.process_time()
            for payloads, _, boxes, flips in work:
                native.decode_crops(payloads, boxes, flips, self._warm)
            results.put(1e6 * (time.process_time() - begun) / self.images)


def _single(stage: Callable[[Iterator[Any]], Iterator[Any]], batch: Any) -> Any:
    return next(stage(iter([batch])))


def kernel_alone(url: Path, epochs: int, processes: int) -> float:
    """Return the kernel's CPU time per image when it runs in several processes at once."""
    together, results = multiprocessing.Barrier(processes), multiprocessing.Queue()
    running = [
        multiprocessing.Process(target=Worker(url).kernel, args=(epochs, together, results)) for _ in range(processes)
    ]
    for process in running:
        process.start()
    measured = [results.get() for _ in range(processes * epochs)]
    for process in running:
        process.join()
    return statistics.median(measured)


def whole(url: Path, epochs: int, workers: int) -> tuple[float, float, float]:
    """Return the loader's CPU time per image, uint8 batches in this process; that of this process; others' share."""
    loader = Loader(url, batch_size=BATCH, num_workers=workers)
    for _ in loader:
        pass
    images = len(loader) * BATCH
    measured = []
    for _ in range(epochs):
        wall, busy, own, total = time.perf_counter(), machine_cpu_s(), time.process_time(), cpu_s(os.getpid())
        for _ in loader:
            pass
        wall, busy, own, total = (
            time.perf_counter() - wall,
            machine_cpu_s() - busy,
            time.process_time() - own,
            cpu_s(os.getpid()) - total,
        )
        measured.append((1e6 * total / images, 1e6 * own / images, (busy - total) / wall / (os.cpu_count() or 1)))
    all_of_it, main, others = map(statistics.median, zip(*measured, strict=True))
    return all_of_it, main, others


def main() -> None:
    """Print the budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", type=Path)
    parser.add_argument("--epochs", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    worker = Worker(given.url)
    epochs = [worker.stages(epoch) for epoch in range(given.epochs)]
    for stage in epochs[0]:
        print(f"{statistics.median(epoch[stage] for epoch in epochs):7.1f}  {stage}")
    for count in (1, WORKERS):
        print(f"{kernel_alone(given.url, given.epochs, count):7.1f}  the kernel alone, {count} at once")
    for count in (0, WORKERS):
        total, own, others = whole(given.url, given.epochs, count)
        print(
            f"{total:7.1f}  the loader with {count} workers, {own:.1f} of it in the main process "
            f"(others used {others:.0%} of the machine)"
        )


if __name__ == "__main__":
    main()
