from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import shardflow
from shardflow.errors import ConfigError
from shardflow.loading.checkpoint import MOST_EPOCHS
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
        loader(dataset, samples_per_epoch=72, group=(rank, 3), shuffle=shardflow.Shuffle(streams=3))
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
    with pytest.raises(ConfigError, match=r"multiple of the 4\b"):
        loader(dataset, samples_per_epoch=30)
    some = loader(dataset, samples_per_epoch=30, tail="short")
    assert Counter(label for _ in range(5) for label in labels(some)) == dict.fromkeys(range(TOTAL), 3)


def test_shard_affinity_needs_epochs_of_whole_passes(dataset: Path) -> None:
    """Shard affinity with epochs of another length is refused: ranks would read other shards in each pass."""
    with pytest.raises(ConfigError, match=r"shard_affinity.*samples_per_epoch"):
        loader(dataset, samples_per_epoch=48, shuffle=shardflow.Shuffle(shard_affinity=True))


@pytest.mark.parametrize("epoch", [0, 2**31 - 2, MOST_EPOCHS])
@pytest.mark.parametrize("length", [48, 4_000_000_000, 2**60])
def test_the_largest_epochs_are_exact(dataset: Path, epoch: int, length: int) -> None:
    """The stream goes on where arithmetic without bounds has it, in the last epoch of the largest length as well."""
    some = loader(dataset, samples_per_epoch=length, shuffle=False, tail="drop")
    some.set_epoch(epoch)
    first = epoch * length
    expected = [(first + n) % TOTAL for n in range(3 * 4)]
    assert labels(itertools.islice(some, 3)) == expected
    resumed = loader(dataset, samples_per_epoch=length, shuffle=False, tail="drop")
    resumed.load_state_dict({**some.state_dict(), "position": length - 8})
    assert labels(resumed) == [(first + length - 8 + n) % TOTAL for n in range(8)]
    assert labels(itertools.islice(resumed, 1)) == [(first + length + n) % TOTAL for n in range(4)]


@pytest.mark.parametrize(
    "options",
    [
        {"samples_per_epoch": 2**60 + 4},
        {"samples_per_epoch": 2**64},
        {"batch_size": 2**31 + 1},
        {"batch_size": 2**64, "sampler": shardflow.samplers.ClassBatches(2**64)},
        {"sampler": shardflow.samplers.ClassBatches(2**64)},
        {"group": (0, 2**64)},
        {"group": (0, 2**64), "tail": "pad"},
        {"limit": -(2**64)},
        {"sampler": shardflow.samplers.Weighted([2**64] * TOTAL)},
        {"sampler": shardflow.samplers.Weighted(2.0**80)},
    ],
    ids=repr,
)
def test_numbers_beyond_64_bits_are_refused(dataset: Path, options: dict[str, Any]) -> None:
    """A number that the arithmetic of positions cannot hold is a ConfigError, wherever it is given."""
    with pytest.raises(ConfigError):
        loader(dataset, **options)


@pytest.mark.parametrize("options", [{"limit": 2**70}, {"seed": 2**200}, {"seed": -(2**200)}, {"buffer": 2**40}])
def test_numbers_of_any_size(dataset: Path, options: dict[str, Any]) -> None:
    """A seed may be any integer, a limit and a buffer larger than the split."""
    if buffer := options.get("buffer"):
        options = {"shuffle": shardflow.Shuffle(buffer=buffer)}
    assert sorted(labels(loader(dataset, tail="short", **options))) == list(range(TOTAL))


@pytest.mark.parametrize("epoch", [2**31, 2**63, 2**64, -1])
def test_epochs_out_of_range_are_refused(dataset: Path, epoch: int) -> None:
    """An epoch below 0 or above 2**31 - 1 is a ConfigError."""
    with pytest.raises(ConfigError, match="epoch must be"):
        loader(dataset).set_epoch(epoch)
