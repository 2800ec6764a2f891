from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import shardflow
from tests.helpers.making import make_dataset

COPIES: dict[str, Callable[[Any], Any]] = {"deepcopy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x))}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 24 labelled samples."""
    return make_dataset(tmp_path_factory.mktemp("copies") / "set", [12, 12])


def loader(dataset: Path, workers: int = 1) -> shardflow.Loader:
    """A loader of its crops."""
    decoder = shardflow.decoders.RandomResizedCrop(8)
    return shardflow.Loader(dataset, batch_size=4, decoder=decoder, num_workers=workers)


def epoch(loader: Any) -> list[tuple[int, list[int]]]:
    """Return sums of pixels, and labels, of each batch of the next epoch."""
    return [(int(images.sum()), labels.tolist()) for images, labels in loader]


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("used", [False, True])
def test_a_copy_is_another_loader(dataset: Path, how: str, used: bool) -> None:
    """A copy of a loader starts at its position, and each of both has its own epochs, with its own workers."""
    whole, original = loader(dataset, 0), loader(dataset)
    expected = [epoch(whole) for _ in range(3)]
    if used:
        assert epoch(original) == expected.pop(0)
    copied = COPIES[how](original)
    for each in expected:
        assert epoch(copied) == each
    for each in expected:
        assert epoch(original) == each


@pytest.mark.parametrize("workers", [0, 1])
def test_forked_processes_do_not_share_a_loader(dataset: Path, workers: int) -> None:
    """A process that is forked with a loader, even a used one, has its own epochs and does not disturb others."""
    whole, original = loader(dataset, 0), loader(dataset, workers)
    expected = [epoch(whole) for _ in range(3)]
    assert epoch(original) == expected[0]
    iteration, (ours, theirs) = iter(original), multiprocessing.Pipe()
    batches = [next(iteration)]
    child = multiprocessing.get_context("fork").Process(target=_send_epochs, args=(original, theirs))
    child.start()
    assert ours.poll(60)
    assert ours.recv() == expected[1:]
    child.join()
    batches += iteration
    assert epoch(batches) == expected[1]


def _send_epochs(loader: shardflow.Loader, connection: Connection) -> None:
    loader.set_epoch(1)
    connection.send([epoch(loader) for _ in range(2)])


def test_a_copy_of_a_source_of_samples_has_its_epoch(dataset: Path) -> None:
    """`set_epoch` of a copy reaches the workers that run already, and not those of the original."""
    original = shardflow.samples(dataset, shuffle=True)
    copied, expected = copy.deepcopy(original), [*map(_key, original)]
    batches = DataLoader(copied, batch_size=None, num_workers=1, persistent_workers=True, collate_fn=_key)
    assert list(batches) == expected
    copied.set_epoch(0)
    assert list(batches) == expected
    assert [*map(_key, original)] != expected


def _key(sample: dict[str, Any]) -> str:
    key: str = sample["__key__"]
    return key
