from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardflow
from shardflow.errors import ConfigError, ResumeMismatchError
from tests.helpers.making import make_dataset


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Datasets of 40, 24 and 60 samples."""
    root = tmp_path_factory.mktemp("data")
    return [make_dataset(root / str(sum(sizes)), sizes) for sizes in ([25, 15], [24], [30, 30])]


def mix(datasets: list[Path], weights: tuple[float, ...] = (5, 1, 2), **options: Any) -> shardflow.Mix:
    """A mix whose batches say which dataset they are from: by their length, 4, 5 and 6."""
    loaders = [
        shardflow.Loader(url, batch_size=4 + n, fields=("label",), tail="drop", num_workers=options.pop("workers", 0))
        for n, url in enumerate(datasets)
    ]
    return shardflow.Mix(list(zip(loaders, weights, strict=True)), **options)


def contents(batches: Any) -> list[list[int]]:
    """The labels of each batch."""
    return [labels.tolist() for (labels,) in batches]


def test_shares_follow_the_weights_in_every_stretch(datasets: list[Path]) -> None:
    """Any stretch of steps takes from each source what its weight says, to within two batches or so."""
    some = mix(datasets)
    chosen = some.source_of(np.arange(100_000))
    for length in (10, 100, 1000, 10_000):
        for begin in range(0, 90_000, 7919):
            counts = np.bincount(chosen[begin : begin + length], minlength=3)
            assert np.abs(counts - length * np.array([5, 1, 2]) / 8).max() <= 3.5


def test_order_of_sources_is_frozen(datasets: list[Path]) -> None:
    """The interleaving is part of a run's identity, so it never changes."""
    assert mix(datasets).source_of(np.arange(16)).tolist() == [0, 0, 0, 2, 0, 0, 1, 0, 2, 0, 0, 2, 0, 0, 1, 0]


def test_each_source_runs_through_its_own_epochs(datasets: list[Path]) -> None:
    """What the mix hands out of a source is exactly that source's own epochs, one after the other."""
    some = mix(datasets, steps_per_epoch=20)
    handed_out = [batch for _ in range(6) for batch in contents(some)]
    assert len(handed_out) == 120
    for n, url in enumerate(datasets):
        of_source = [batch for batch in handed_out if len(batch) == 4 + n]
        alone = shardflow.Loader(url, batch_size=4 + n, fields=("label",), num_workers=0)
        expected: list[list[int]] = []
        while len(expected) < len(of_source):
            expected += contents(alone)
        assert of_source == expected[: len(of_source)]


@pytest.mark.parametrize("workers", [0, 1])
def test_resume_after_any_batch_gives_the_rest(datasets: list[Path], workers: int) -> None:
    """A state saved anywhere, even in the middle of all sources' epochs, gives exactly the rest and the next epoch."""
    whole = mix(datasets, steps_per_epoch=13, workers=workers)
    expected = [contents(whole) for _ in range(3)]
    for epoch, stop in ((0, 0), (0, 5), (1, 7), (1, 13)):
        stopped = mix(datasets, steps_per_epoch=13, workers=workers)
        for _ in range(epoch):
            contents(stopped)
        contents(itertools.islice(stopped, stop))
        resumed = mix(datasets, steps_per_epoch=13, workers=workers)
        resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
        assert contents(resumed) == expected[epoch][stop:]
        assert contents(resumed) == expected[epoch + 1]


def test_set_epoch_and_leaving_early_reach_any_epoch_by_arithmetic(datasets: list[Path]) -> None:
    """An epoch of the mix is the same whether it was reached by iterating, by `set_epoch` or after a `break`."""
    some = mix(datasets, steps_per_epoch=11)
    expected = [contents(some) for _ in range(5)]
    jumping = mix(datasets, steps_per_epoch=11)
    for epoch in (3, 1, 4):
        jumping.set_epoch(epoch)
        assert contents(jumping) == expected[epoch]
    jumping.set_epoch(0)
    contents(itertools.islice(jumping, 4))
    assert contents(jumping) == expected[1]


@pytest.mark.parametrize("smaller", [1, 2])
def test_leaving_early_after_an_elastic_resume_repeats_nothing(datasets: list[Path], smaller: int) -> None:
    """A mix resumed with other batch sizes reaches later epochs after a `break` or by `set_epoch` as by iterating."""

    def resumed() -> shardflow.Mix:
        loaders = [
            shardflow.Loader(url, batch_size=(4 + n) // (1 + smaller), fields=("label",), num_workers=0)
            for n, url in enumerate(datasets)
        ]
        some = shardflow.Mix(list(zip(loaders, (5, 1, 2), strict=True)), steps_per_epoch=13)
        some.load_state_dict(state)
        return some

    begun = mix(datasets, steps_per_epoch=13)
    contents(begun)
    contents(itertools.islice(begun, 6))
    state = begun.state_dict()
    whole = resumed()
    rest = contents(whole)
    expected = [contents(whole) for _ in range(3)]
    left = resumed()
    assert contents(itertools.islice(left, 3)) == rest[:3]
    assert contents(left) == expected[0]
    left.set_epoch(4)
    assert contents(left) == expected[2]


def test_ranks_agree_without_talking(datasets: list[Path]) -> None:
    """At every step all ranks take their batch from the same source, and together each sample once per source epoch."""
    ranks = [
        shardflow.Mix(
            [(url, weight) for url, weight in zip(datasets, (2, 1, 3), strict=True)],
            batch_size=4,
            rank=rank,
            world_size=2,
            fields=("label",),
            num_workers=0,
            shuffle=shardflow.Shuffle(lanes=2),
        )
        for rank in range(2)
    ]
    assert len(ranks[0]) == len(ranks[1]) == 5 + 3 + 7
    first, second = contents(ranks[0]), contents(ranks[1])
    sources = ranks[0].source_of(np.arange(15))
    for source, size in enumerate((40, 24, 60)):
        taken = [label for a, b, s in zip(first, second, sources, strict=True) if s == source for label in a + b]
        passes = [taken[i : i + size // 8 * 8] for i in range(0, len(taken), size // 8 * 8)]
        assert all(len(set(one)) == len(one) for one in passes)


def test_another_mix_is_refused(datasets: list[Path]) -> None:
    """A state of other weights or another epoch length is refused, and so are impossible mixes."""
    state = mix(datasets).state_dict()
    with pytest.raises(ResumeMismatchError, match="weights"):
        mix(datasets, (1, 1, 1)).load_state_dict(state)
    with pytest.raises(ResumeMismatchError, match="steps_per_epoch"):
        mix(datasets, steps_per_epoch=3).load_state_dict(state)
    with pytest.raises(ConfigError, match="weights above 0"):
        mix(datasets, (1, 0, 1))
    with pytest.raises(ConfigError, match="seed would have no effect"):
        mix(datasets, seed=3)


def test_a_second_iteration_ends_the_first(datasets: list[Path]) -> None:
    """The older of two iterations says so, and the newer one has the batches and the state of its epoch."""
    expected = mix(datasets)
    first, second = contents(expected), contents(expected)
    some = mix(datasets)
    older = iter(some)
    assert [next(older)[0].tolist()] == first[:1]
    newer = iter(some)
    begun = next(newer)
    with pytest.raises(ConfigError, match="the mix was iterated again"):
        next(older)
    assert contents([begun, *newer]) == second
    assert some.state_dict() == expected.state_dict()


def test_moving_a_mix_ends_its_iteration(datasets: list[Path]) -> None:
    """A mix that is moved while it is iterated goes on from there."""
    expected = mix(datasets)
    contents(expected)
    second = contents(expected)
    some = mix(datasets)
    running = iter(some)
    next(running)
    some.set_epoch(1)
    with pytest.raises(ConfigError, match="moved by set_epoch or load_state_dict"):
        next(running)
    assert contents(some) == second


def test_a_refused_state_moves_nothing(datasets: list[Path]) -> None:
    """When one source refuses its part of a state, or the state is damaged, all stay where they were."""
    moved = mix(datasets)
    contents(moved)
    state = moved.state_dict()
    some = mix(datasets)
    before = some.state_dict()
    for change in (
        {"sources": [*state["sources"][:2], {**state["sources"][2], "seed": 9}]},
        {"sources": state["sources"][:2]},
        {"position": "x"},
    ):
        with pytest.raises(ResumeMismatchError):
            some.load_state_dict({**state, **change})
        assert some.state_dict() == before


def test_a_mix_is_a_loader(datasets: list[Path]) -> None:
    """It measures where the time goes, says what was substituted, and ends all workers."""
    some = mix(datasets, workers=1)
    batches = len(contents(some))
    assert some.stats().batches == batches
    assert some.substituted == set()
    some.close()
    assert [loader._workers.pids() for loader in some.loaders] == [[]] * 3
    swapped = [
        (shardflow.Loader(datasets[0], batch_size=4, num_workers=0, fields=fields), 1)
        for fields in (("image", "label"), ("label", "image"))
    ]
    with pytest.raises(ConfigError, match="fields differ"):
        shardflow.Mix(swapped)
    with pytest.raises(ConfigError, match="weights above 0"):
        shardflow.Mix([(datasets[0], float("inf"))], batch_size=4)
