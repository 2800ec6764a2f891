from __future__ import annotations

import time
from pathlib import Path

import pytest

import shardflow
from shardflow.loading.stats import Stats
from tests.helpers.making import make_dataset

WAITING = "of the time waiting for data"


def stats(waiting: float = 0.0, copying: float = 0.0, transforms: float = 0.0, batches: int = 9) -> Stats:
    """Ten seconds, and where they went."""
    times = {"first_s": 3.0, "total_s": 10.0, "waiting_s": waiting, "copying_s": copying, "transforms_s": transforms}
    return Stats(batches=batches, **times)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (stats(0.1), f"compute-bound: 1% {WAITING}, 0% for the copy, 0% in device transforms, 99% computing; "),
        (stats(0.6), f"nearly compute-bound: 6% {WAITING}"),
        (stats(4, 1), f"input-bound: 40% {WAITING}, 10% for the copy, 0% in device transforms, 50% computing; "),
        (stats(1, 2), f"copy-bound: 10% {WAITING}, 20% for the copy"),
        (stats(1, 2, 3), f"transform-bound: 10% {WAITING}, 20% for the copy, 30% in device transforms"),
        (stats(batches=1), "no statistics yet: 1 batch"),
    ],
)
def test_one_line_says_where_the_time_goes(given: Stats, line: str) -> None:
    """The line names the bottleneck, the shares, and what to turn."""
    assert str(given).startswith(line)
    assert "\n" not in str(given)


def test_a_slow_training_step_is_compute_bound(tmp_path: Path) -> None:
    """With a step that is slower than the loader, nearly all of the time is computing, and the first wait is apart."""
    loader = shardflow.Loader(
        make_dataset(tmp_path / "set", [60]), batch_size=6, num_workers=2, decoder=shardflow.decoders.CenterCrop(12)
    )
    assert loader.stats().batches == 0
    for _ in loader:
        time.sleep(0.1)
    measured = loader.stats()
    assert measured.batches == 10
    assert measured.first_s > 0
    assert measured.computing_s > 0.9
    assert measured.waiting_share < 0.3
    assert abs(measured.computing_s + measured.waiting_s - measured.total_s) < 0.01


def test_a_slow_loader_is_input_bound(tmp_path: Path) -> None:
    """With a transform that is slower than the step, the line says so and names num_workers."""
    options = {"batch_size": 4, "num_workers": 0, "decoder": shardflow.decoders.CenterCrop(12)}
    loader = shardflow.Loader(make_dataset(tmp_path / "set", [24]), transform=_slow, **options)
    assert len(list(loader)) == 6
    assert loader.stats().waiting_share > 0.8
    assert str(loader.stats()).startswith("input-bound")
    assert "num_workers" in str(loader.stats())
    assert "epochs" not in str(loader.stats())
    list(loader)
    assert (loader.stats().epochs, loader.stats().earlier_epochs) == (1, 1)
    assert "the last of 2 epochs" in str(loader.stats())
    whole = loader.stats(whole_run=True)
    assert (whole.epochs, whole.earlier_epochs) == (2, 0)
    assert "in 2 epochs" in str(whole)


def _slow(image: object) -> object:
    time.sleep(0.003)
    return image
