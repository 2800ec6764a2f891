"""Measures one loader in this process: a first epoch to get warm, then the epochs that count."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from bench.loaders.peers import recipe
from bench.usage import PeakMemory, Stopwatch


class Normalise:
    """uint8 to normalised float32, into a buffer that is used again for the next batch.

    One image at a time, so that it stays in the cache, and always along contiguous memory: channels-last images as rows
    of interleaved values.
    """

    def __init__(self) -> None:
        mean, std = torch.tensor(recipe.MEAN), torch.tensor(recipe.STD)
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


def prepare(peer: str, pictures: str, data: str, size: Any = None) -> None:
    """Write the images in the format of a loader, with shards of another size than by default if one is given."""
    sizes = () if size is None else (size,)
    importlib.import_module(f"bench.loaders.peers.{peer}").prepare(Path(pictures), Path(data), *sizes)


def measure(
    peer: str, variant: str, data: str, samples: int, epochs: int, keep_uint8: bool, workers: int
) -> dict[str, Any]:
    """Return what a loader needs for its epochs; see the page for the quantities."""
    recipe.WORKERS = workers  # before the peer's module imports it
    torch.set_num_threads(1)  # two threads that wait for each other would take the workers' cores
    normalise = Normalise()
    open_loader = importlib.import_module(f"bench.loaders.peers.{peer}").open_loader
    measured: dict[str, Any] = {"images_per_s": [], "cpu_ms_per_image": [], "exact": [], "others": []}

    def run(batches: Iterator[Any]) -> list[int]:
        numbers: list[int] = []
        for images, batch_numbers in batches:
            if images.dtype == torch.uint8 and not keep_uint8:
                images = normalise(images)
            if not numbers:
                measured.setdefault("first_batch_s", time.perf_counter() - begun)
                check(images, keep_uint8)
            numbers += map(int, batch_numbers)
        return numbers

    begun = time.perf_counter()
    start = open_loader(Path(data), variant)
    with PeakMemory() as peak:
        run(start())
    measured["peak_bytes"] = peak.bytes
    for _ in range(epochs):
        stopwatch = Stopwatch()
        numbers = run(start())
        used = stopwatch.read()
        measured["others"].append(used.others)
        measured["images_per_s"].append(len(numbers) / used.wall_s)
        measured["cpu_ms_per_image"].append(1000 * used.cpu_s / len(numbers))
        measured["exact"].append(sorted(numbers) == list(range(samples)))
        measured["samples"], measured["distinct"] = len(numbers), len(set(numbers))
    return measured


def check(images: torch.Tensor, keep_uint8: bool) -> None:
    """Raise unless the batch is as asked for: no loader may win by doing less."""
    if images.shape[1:] != (3, 224, 224):
        raise AssertionError(f"expected images [3, 224, 224], found {list(images.shape[1:])}")
    if keep_uint8:
        return
    mean, std = float(images.mean()), float(images.std())
    if images.dtype != torch.float32 or not (-1.5 < mean < 1.5 and 0.3 < std < 2):
        raise AssertionError(f"expected normalised float32, found {images.dtype}, mean {mean:.2f}, deviation {std:.2f}")
