from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

import shardflow
from shardflow.errors import ConfigError
from tests.helpers.making import make_dataset

SIZES = [20, 9, 31]
TOTAL = sum(SIZES)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 60 labelled samples in three uneven shards."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", SIZES)


def make(url: Path, batch_size: int, **options: Any) -> shardflow.Loader:
    """A loader of random crops."""
    options = {"num_workers": 0, "tail": "short", "shuffle": shardflow.Shuffle(buffer=16, streams=3), **options}
    return shardflow.Loader(url, batch_size=batch_size, decoder=shardflow.decoders.RandomResizedCrop(8), **options)


def contents(batches: Any) -> list[tuple[bytes, list[int]]]:
    """The pixels and labels of all batches."""
    return [(images.numpy().tobytes(), labels.tolist()) for images, labels in batches]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_batch_size_changes_at_a_step(dataset: Path, workers: int) -> None:
    """An epoch whose batches grow twice has each sample once, with the pixels that it always has; so has the next."""
    loader = make(dataset, 3, num_workers=workers)
    found, sizes = [], []
    for size in (5, 7, None):
        for step, (images, labels) in enumerate(loader, 1):
            found += list(zip((image.numpy().tobytes() for image in images), labels.tolist(), strict=True))
            sizes.append(len(labels))
            if step == 4 and size:
                loader.set_batch_size(size)
                break
    assert sizes == [3] * 4 + [5] * 4 + [7] * 4
    whole = [
        (image.numpy().tobytes(), int(label))
        for images, labels in make(dataset, 1)
        for image, label in zip(images, labels, strict=True)
    ]
    assert found == whole
    assert (loader.batch_size, loader.epoch, len(loader), loader.remaining) == (7, 1, 9, 9)
    assert sorted(label for _, labels in contents(loader) for label in labels) == list(range(TOTAL))


def test_ranks_change_together(dataset: Path) -> None:
    """Ranks that change their batches at one step share the rest of the epoch exactly, and a state then fits all."""
    seen: list[int] = []
    states = []
    for rank in range(2):
        loader = make(dataset, 3, group=(rank, 2))
        seen += [label for _, labels in contents(itertools.islice(loader, 2)) for label in labels]
        loader.set_batch_size(4)
        seen += [label for _, labels in contents(itertools.islice(loader, 3)) for label in labels]
        states.append(json.dumps(loader.state_dict()))
    assert states[0] == states[1]
    resumed = make(dataset, 5)
    resumed.load_state_dict(json.loads(states[0]))
    seen += [label for _, labels in contents(resumed) for label in labels]
    assert sorted(seen) == list(range(TOTAL))


def test_a_batch_size_that_does_not_fit_changes_nothing(dataset: Path) -> None:
    """A size that leaves no step, that is no size, or that a sampler or a mix has composed for, is an error."""
    loader = make(dataset, 3, tail="drop")
    for size in (0, TOTAL + 1, 2.5):
        with pytest.raises(ConfigError):
            loader.set_batch_size(size)  # type: ignore[arg-type]
    assert contents(loader) == contents(make(dataset, 3, tail="drop"))
    composed = make(dataset, 4, sampler=shardflow.samplers.ClassBatches(1))
    with pytest.raises(ConfigError, match="make another loader"):
        composed.set_batch_size(8)
    one = make(dataset, 3)
    mix = shardflow.Mix([(one, 1)])
    with pytest.raises(ConfigError, match="make another mix"):
        mix.set_batch_size(8)
    one.set_batch_size(8)
    with pytest.raises(ConfigError, match="changed its sampler or batch size"):
        next(iter(mix))
