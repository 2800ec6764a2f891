from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import shardflow
from tests.helpers.loading import with_workers
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
    options = with_workers(options)
    for rank in range(world_size := options.pop("world_size", 1)):
        loader = shardflow.Loader(
            url,
            decoder=shardflow.decoders.RandomResizedCrop(12),
            tail="short",
            **{"batch_size": 6, "group": (rank, world_size), "num_workers": 0, **options},
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
        {"num_workers": 2, "multiprocessing_context": "forkserver"},
        {"world_size": 3},
        {"batch_size": 11},
        {"shuffle": False},
        {"shuffle": shardflow.Shuffle(streams=5, buffer=4)},
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
    loader = shardflow.Loader(dataset, batch_size=6, num_workers=0, decoder=shardflow.decoders.RandomResizedCrop(12))
    images, labels = next(iter(loader))
    expected = pixels(dataset)
    assert [image.numpy().tobytes() for image in images] == [expected[label] for label in labels.tolist()]


@pytest.mark.parametrize("workers", [0, 2])
def test_sizes_by_epoch_are_those_of_fresh_loaders(dataset: Path, workers: int) -> None:
    """Crops grow from epoch to epoch with the same workers; pixels are those of a loader of that size, also resumed."""

    def loader(size: Any) -> shardflow.Loader:
        decoder = shardflow.decoders.RandomResizedCrop(size)
        return shardflow.Loader(dataset, batch_size=9, decoder=decoder, num_workers=workers, tail="short")

    growing = loader({0: 16, 1: 24, 3: 20})
    epochs, pids = [], []
    for _ in range(4):
        epochs.append([images for images, _ in growing])
        pids.append([worker.pid for worker in getattr(growing._pool.data_loader._iterator, "_workers", ())])
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


class Draws:
    """A transform or batch_transform that returns what each generator draws first: Python's, numpy's, torch's."""

    def __call__(self, _: Any) -> torch.Tensor:
        """Draw from the three."""
        return torch.tensor([random.random(), np.random.random(), torch.rand((), dtype=torch.float64)])


def largest_correlation(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """The largest correlation between columns of two arrays [N, K], in standard deviations of chance; beside itself."""
    both = np.abs(np.corrcoef(one.T, other.T)[: one.shape[1], one.shape[1] :])
    if one is other:
        np.fill_diagonal(both, 0)
    return float(both.max() * len(one) ** 0.5)


def assert_independent(draws: np.ndarray[Any, Any]) -> None:
    """Check draws [epochs, places, views, generators]: generators, neighbours, epochs and views are uncorrelated."""
    flat = draws.reshape(-1, draws.shape[-1])
    assert np.abs(flat.mean(axis=0) - 0.5).max() < 4 * (1 / 12 / len(flat)) ** 0.5
    assert largest_correlation(flat, flat) < 4
    for axis in range(draws.ndim - 1):
        if draws.shape[axis] > 1:
            before, after = (np.delete(draws, end, axis).reshape(-1, draws.shape[-1]) for end in (-1, 0))
            assert largest_correlation(before, after) < 4


def test_the_generators_of_a_transform_are_independent(tmp_path: Path) -> None:
    """In each sample, Python's, numpy's and torch's generators draw as by chance; so do neighbours, epochs, views."""
    url = make_dataset(tmp_path / "set", [500])
    views = shardflow.decoders.MultiView([shardflow.decoders.CenterCrop(4)] * 2)
    loader = shardflow.Loader(
        url, batch_size=50, num_workers=0, decoder=views, transform=Draws(), fields=("image", "index")
    )
    draws = np.empty((10, 500, 2, 3))
    for epoch in draws:
        for images, numbers in loader:
            epoch[numbers.numpy()] = torch.stack(images, dim=1).numpy()
    assert_independent(draws)


def test_the_generators_of_a_batch_transform_are_independent(tmp_path: Path) -> None:
    """In each batch too, the three draw as by chance, as do neighbouring batches and epochs."""
    url = make_dataset(tmp_path / "set", [400])
    loader = shardflow.Loader(url, batch_size=1, num_workers=0, batch_transform=Draws(), fields=("index",))
    assert_independent(np.array([[[batch.numpy()] for batch in loader] for _ in range(5)]))


def test_draws_of_a_batch_belong_to_its_first_position(dataset: Path) -> None:
    """Ranks and seeds draw differently for their batches, a resumed run as before, whatever the size of a batch."""

    def draws(batch_size: int = 4, state: Any = None, **options: Any) -> dict[int, list[float]]:
        settings = {"batch_size": batch_size, "tail": "short", "group": (0, 1), **options}
        loader = shardflow.Loader(dataset, num_workers=0, batch_transform=Draws(), fields=("index",), **settings)
        if state is not None:
            loader.load_state_dict(state)
        first = loader.state_dict()["position"]
        return {first + batch_size * step: batch.tolist() for step, batch in enumerate(loader)}

    whole = draws()
    assert all(one != other for one, other in itertools.pairwise(whole.values()))
    larger = draws(8)
    assert larger == {position: whole[position] for position in larger}
    ranks = [draws(group=(rank, 2)) for rank in range(2)]
    found = [one for rank in [*ranks, draws(seed=1)] for one in rank.values()]
    assert len(set(map(tuple, found))) == len(found)
    stopped = shardflow.Loader(dataset, batch_size=4, num_workers=0, tail="short")
    next(iter(stopped))
    rest = draws(state=stopped.state_dict())
    assert rest == {position: whole[position] for position in list(whole)[1:]}
