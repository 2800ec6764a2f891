from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import shardflow
from tests.helpers.making import make_dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 40 labelled samples in three shards."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", [13, 20, 7])


class AllGenerators:
    """A transform that draws from torch's, Python's and numpy's global generator."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Add what the three draw."""
        drawn = torch.rand(()).item() + random.random() + np.random.rand()
        return image.float() + drawn


TRANSFORMS = {
    "v2": v2.Compose([v2.RandomHorizontalFlip(), v2.ColorJitter(0.4, 0.4, 0.4), v2.RandomErasing(0.5)]),
    "all generators": AllGenerators(),
}


def pixels(url: Path, epoch: int = 0, **options: Any) -> dict[int, bytes]:
    """The pixels of every sample, by label, for one epoch over all simulated ranks."""
    found = {}
    for rank in range(options.get("world_size", 1)):
        loader = shardflow.Loader(
            url,
            decoder=shardflow.RandomResizedCropDecoder(12),
            tail="short",
            **{"batch_size": 6, "rank": rank, "world_size": 1, "num_workers": 0, **options},
        )
        loader.set_epoch(epoch)
        for images, labels in loader:
            found.update({label: image.numpy().tobytes() for label, image in zip(labels.tolist(), images, strict=True)})
    return found


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 3},
        {"num_workers": 2, "multiprocessing_context": "spawn"},
        {"num_workers": 2, "multiprocessing_context": "forkserver"},
        {"world_size": 3},
        {"batch_size": 11},
        {"shuffle": False},
        {"shuffle": shardflow.Shuffle(lanes=5, window=4)},
    ],
    ids=str,
)
def test_pixels_depend_on_seed_epoch_and_sample_alone(dataset: Path, transform: Any, options: dict[str, Any]) -> None:
    """Workers, start method, world size, batch size and order change nothing in a sample's pixels."""
    expected = pixels(dataset, transform=transform, epoch=2)
    assert len(expected) == 40
    assert pixels(dataset, transform=transform, epoch=2, **options) == expected


def test_pixels_change_with_epoch_and_seed(dataset: Path) -> None:
    """Another epoch or another seed augments nearly every sample differently."""
    base = pixels(dataset)
    for other in (pixels(dataset, epoch=1), pixels(dataset, seed=1)):
        assert sum(base[label] != other[label] for label in base) >= 38


def test_decoders_need_no_state(dataset: Path) -> None:
    """Reading only a part of the epoch gives the same pixels for that part."""
    loader = shardflow.Loader(dataset, batch_size=6, num_workers=0, decoder=shardflow.RandomResizedCropDecoder(12))
    images, labels = next(iter(loader))
    expected = pixels(dataset)
    assert [image.numpy().tobytes() for image in images] == [expected[label] for label in labels.tolist()]


@pytest.mark.parametrize("workers", [0, 2])
def test_sizes_by_epoch_are_those_of_fresh_loaders(dataset: Path, workers: int) -> None:
    """Crops grow from epoch to epoch with the same workers; pixels are those of a loader of that size, also resumed."""

    def loader(size: Any) -> shardflow.Loader:
        decoder = shardflow.RandomResizedCropDecoder(size)
        return shardflow.Loader(dataset, batch_size=9, decoder=decoder, num_workers=workers, tail="short")

    growing = loader({0: 16, 1: 24, 3: 20})
    epochs, pids = [], []
    for _ in range(4):
        epochs.append([images for images, _ in growing])
        pids.append([worker.pid for worker in getattr(growing.data_loader._iterator, "_workers", ())])
    assert len(pids[0]) == workers
    assert pids == pids[:1] * 4
    for epoch, size in enumerate((16, 24, 24, 20)):
        fresh = loader(size)
        fresh.set_epoch(epoch)
        assert all(torch.equal(*pair) for pair in zip(epochs[epoch], (images for images, _ in fresh), strict=True))
    stopped = loader({0: 16, 1: 24, 3: 20})
    stopped.set_epoch(3)
    next(iter(stopped))
    resumed = loader({0: 16, 1: 24, 3: 20})
    resumed.load_state_dict(stopped.state_dict())
    assert all(torch.equal(*pair) for pair in zip(epochs[3][1:], (images for images, _ in resumed), strict=True))
