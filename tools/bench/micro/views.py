"""The CPU time of an image of which training wants several crops: one view, two, and the two and eight of DINO.

Beside torchvision's way, a DataLoader over the same JPEG files: they are decoded once in a sample and cropped for each
view by v2 transforms, or decoded again for each view. CPU time of the training process and its workers together.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2

import shardflow
from bench.loaders.peers.recipe import BATCH, SIZE, WORKERS
from bench.report import markdown
from bench.usage import epoch_us, medians

WHOLE, GLOBAL, LOCAL = (0.08, 1.0), (0.25, 1.0), (0.05, 0.25)
VIEWS = {
    "one of 224": [(SIZE, WHOLE)],
    "two of 224": [(SIZE, WHOLE)] * 2,
    "two of 224, eight of 96": [(SIZE, GLOBAL)] * 2 + [(96, LOCAL)] * 8,
}
"""Size and scale of each view."""


def measure(url: str, rounds: int) -> str:
    """Return the table."""
    torch.set_num_threads(1)
    ways = {"shardflow": _shardflow, "decoded once": _torchvision, "decoded for each view": _torchvision_again}
    runs = {(name, way): partial(epoch_us, ways[way](url, views)) for name, views in VIEWS.items() for way in ways}
    spent = medians(runs, rounds)
    first = spent["one of 224", "shardflow"]
    rows = []
    for name in VIEWS:
        ours, *theirs = (spent[name, way] for way in ways)
        rows.append([name, f"{ours / 1000:.3f}", f"{ours / first:.2f}"])
        rows[-1] += [f"{their / 1000:.3f} ({their / ours:.1f} x)" for their in theirs]
    headers = ("views", "shardflow, CPU-ms/image", "of one view", *(f"torchvision, {way}" for way in [*ways][1:]))
    return markdown(headers, rows)


class Crops:
    """A transform from an encoded image to its views."""

    def __init__(self, views: list[tuple[int, tuple[float, float]]], *, again: bool) -> None:
        flip = v2.RandomHorizontalFlip()
        self._crops = [v2.Compose([v2.RandomResizedCrop(size, scale, antialias=True), flip]) for size, scale in views]
        self._again = again

    def __call__(self, data: torch.Tensor) -> Any:
        """Return uint8 [3, H, W] of each view."""
        image = decode_jpeg(data, mode=ImageReadMode.RGB)
        for number, crop in enumerate(self._crops):
            if number and self._again:
                image = decode_jpeg(data, mode=ImageReadMode.RGB)
            yield crop(image)


class Files(ImageFolder):
    """The views of image files."""

    def __init__(self, folder: Path, crops: Crops) -> None:
        super().__init__(str(folder))
        self._crops = crops

    def __getitem__(self, number: int) -> tuple[tuple[torch.Tensor, ...], int]:
        path, label = self.samples[number]
        data = torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8)
        return tuple(self._crops(data)), label


def _shardflow(url: str, views: list[tuple[int, tuple[float, float]]]) -> Any:
    decoders = [shardflow.decoders.RandomResizedCrop(size, scale=scale) for size, scale in views]
    decoder = decoders[0] if len(decoders) == 1 else shardflow.decoders.MultiView(decoders)
    return shardflow.Loader(url, batch_size=BATCH, decoder=decoder, num_workers=WORKERS)


def _torchvision(url: str, views: list[tuple[int, tuple[float, float]]], *, again: bool = False) -> Any:
    folder = Path(url).parents[1] / "pictures"
    return DataLoader(
        Files(folder, Crops(views, again=again)),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        prefetch_factor=4,
        persistent_workers=True,
    )


def _torchvision_again(url: str, views: list[tuple[int, tuple[float, float]]]) -> Any:
    return _torchvision(url, views, again=True)
