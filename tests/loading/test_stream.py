from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import shardflow
from shardflow.errors import ConfigError
from tests.helpers.making import make_dataset

TOTAL = 50


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 50 labelled samples in three uneven shards."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", [20, 9, 21])


def loader(url: Path, **options: Any) -> shardflow.Loader:
    """A loader of labels alone."""
    return shardflow.Loader(url, **{"batch_size": 4, "num_workers": 0, "fields": ("label",), **options})


def labels(batches: Any) -> list[int]:
    """The labels of all batches, in order."""
    return [label for (numbers,) in batches for label in numbers.tolist()]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("length", [16, 48, 120])
def test_epochs_of_a_chosen_length_follow_each_other_without_a_gap(dataset: Path, workers: int, length: int) -> None:
    """Epochs shorter or longer than a pass form one stream in which each pass has every sample exactly once."""
    some = loader(dataset, samples_per_epoch=length, num_workers=workers)
    assert len(some) == length // 4
    stream: list[int] = []
    while len(stream) < 4 * TOTAL:
        epoch = labels(some)
        assert len(epoch) == length
        stream += epoch
    passes = [stream[begin : begin + TOTAL] for begin in range(0, 4 * TOTAL, TOTAL)]
    assert all(sorted(one) == list(range(TOTAL)) for one in passes)
    assert len({tuple(one) for one in passes}) == 4
    whole = loader(dataset, tail="short")
    assert passes[:2] == [labels(whole), labels(whole)]


def test_stream_is_exact_over_ranks_and_resumable(dataset: Path) -> None:
    """Over ranks, and over a resume with another topology, each pass of the stream has each sample once."""
    seen: Counter[int] = Counter()
    ranks = [
        loader(dataset, samples_per_epoch=72, rank=rank, world_size=3, shuffle=shardflow.Shuffle(lanes=3))
        for rank in range(3)
    ]
    states = []
    for rank in ranks:
        seen.update(labels(itertools.islice(rank, 5)))
        states.append(rank.state_dict())
    assert states[0] == states[1] == states[2]
    resumed = loader(dataset, samples_per_epoch=72, batch_size=2)
    resumed.load_state_dict(states[0])
    seen.update(labels(resumed))
    seen.update(labels(itertools.islice(resumed, (2 * TOTAL - 72) // 2)))
    assert seen == dict.fromkeys(range(TOTAL), 2)


def test_uneven_lengths_are_refused_or_dealt_out(dataset: Path) -> None:
    """A length that would drop samples at every border is refused; with a short tail it loses nothing."""
    with pytest.raises(ConfigError, match="no multiple of the 4 samples"):
        loader(dataset, samples_per_epoch=30)
    some = loader(dataset, samples_per_epoch=30, tail="short")
    assert Counter(label for _ in range(5) for label in labels(some)) == dict.fromkeys(range(TOTAL), 3)
