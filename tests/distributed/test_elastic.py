from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardflow
from shardflow.loading.source import EpochStart
from shardflow.order.epochs import Epochs
from shardflow.order.rank_partition import TAILS, RankPartition
from shardflow.order.shuffle_settings import Shuffle
from tests.helpers.examples import examples
from tests.helpers.loading import epochs_of, unread_split, whole_batches
from tests.helpers.making import make_dataset

orders = st.fixed_dictionaries(
    {
        "sizes": st.lists(st.integers(1, 40), min_size=1, max_size=8),
        "seed": st.integers(0, 2**32),
        "shuffle": st.just(False) | st.builds(Shuffle, buffer=st.integers(1, 64)),
        "limit": st.none() | st.integers(1, 100),
        "samples_per_epoch": st.none() | st.integers(1, 100),
    }
)
topologies = st.tuples(st.integers(1, 6), st.integers(1, 9))
"""World size and batch size."""


def make_order(sizes: list[int], **options: Any) -> Epochs:
    """The order over a split of shards that nothing reads."""
    return epochs_of(unread_split(sizes), **options)


def global_batches(
    order: Epochs, start: EpochStart, world_size: int, batch_size: int, tail: str
) -> Iterator[list[tuple[int, int]]]:
    """The valid samples, as (shard, record), that all ranks together take in each step from `start` on."""
    ranks = []
    for rank in range(world_size):
        partition = RankPartition(
            length=order.length, batch_size=batch_size, rank=rank, world_size=world_size, tail=tail
        )
        ranks.append(whole_batches(unread_split([]), order, partition))
    for step in range(partition.steps(start.position)):
        batches = [plan.batch(plan.advance([start], 0, step), step) for plan in ranks]
        yield [
            place
            for batch in batches
            for place, valid in zip(
                zip(batch.shards.tolist(), batch.records.tolist(), strict=True), batch.valid.tolist(), strict=True
            )
            if valid
        ]


@examples(400)
@given(orders, st.sampled_from([1, 2, 4, 6, 12]), st.integers(0, 5), st.integers(1, 7), st.data())
def test_global_batches_do_not_depend_on_the_world_size(
    options: dict[str, Any], global_batch: int, epoch: int, streams: int, data: st.DataObject
) -> None:
    """Two ways to cut a global batch into ranks take the same set of samples in every step, wherever they start."""
    order, tail = make_order(**options), data.draw(st.sampled_from(TAILS))
    start = EpochStart(epoch, data.draw(st.integers(0, order.length)), streams)
    divisors = [n for n in range(1, global_batch + 1) if global_batch % n == 0]
    one, other = data.draw(st.tuples(st.sampled_from(divisors), st.sampled_from(divisors)))
    cuts = [list(global_batches(order, start, n, global_batch // n, tail)) for n in (one, other)]
    assert [sorted(batch) for batch in cuts[0]] == [sorted(batch) for batch in cuts[1]]


@examples(400)
@given(orders, st.integers(0, 5), st.integers(1, 7), st.lists(topologies, min_size=1, max_size=4), st.data())
def test_what_was_seen_stays_seen(
    options: dict[str, Any], epoch: int, streams: int, runs: list[tuple[int, int]], data: st.DataObject
) -> None:
    """A pass that is stopped and gone on with again and again, on other ranks, has each of its samples exactly once."""
    order = make_order(**{**options, "samples_per_epoch": None})
    seen: list[tuple[int, int]] = []
    position = 0
    for number, (world_size, batch_size) in enumerate(runs, 1):
        batches = list(global_batches(order, EpochStart(epoch, position, streams), world_size, batch_size, "short"))
        stop = len(batches) if number == len(runs) else data.draw(st.integers(0, len(batches)))
        seen += [place for batch in batches[:stop] for place in batch]
        position = RankPartition(length=order.length, batch_size=batch_size, world_size=world_size).after(
            position, stop
        )
    sizes = np.clip(order.length - (np.cumsum(options["sizes"]) - options["sizes"]), 0, options["sizes"])
    assert sorted(seen) == [(shard, record) for shard, size in enumerate(sizes) for record in range(size)]


@examples(200)
@given(orders, st.integers(1, 100), st.lists(topologies, min_size=1, max_size=4))
def test_epochs_of_a_chosen_length_join_without_a_gap(
    options: dict[str, Any], length: int, topologies_of_epochs: list[tuple[int, int]]
) -> None:
    """Epochs of any length, each on ranks of its own, make one stream of passes: at the end of each epoch no sample has
    come more than once more often than another."""
    order = make_order(**{**options, "samples_per_epoch": length})
    one_pass = make_order(**{**options, "samples_per_epoch": None}).length
    came: Counter[tuple[int, int]] = Counter()
    for epoch, (world_size, batch_size) in enumerate(topologies_of_epochs):
        for batch in global_batches(order, EpochStart(epoch, 0, 3), world_size, batch_size, "short"):
            came.update(batch)
        often, rest = divmod((epoch + 1) * length, one_pass)
        assert sorted(came.values()) == [often] * (one_pass - rest) * bool(often) + [often + 1] * rest


SIZES = [20, 9, 31]
TOTAL = sum(SIZES)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 60 samples, sample n labelled n."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", SIZES)


def rank_batches(url: Path, **options: Any) -> list[list[int]]:
    """The labels of a rank's batches."""
    loader = shardflow.Loader(url, shuffle=shardflow.Shuffle(buffer=16, streams=3), fields=("label",), **options)
    return [labels.tolist() for (labels,) in loader]


@pytest.mark.parametrize("tail", ["drop", "short"])
@pytest.mark.parametrize("seed", [0, 1])
def test_global_batches_do_not_depend_on_the_workers(dataset: Path, tail: str, seed: int) -> None:
    """Real worker processes on 1, 2 and 4 ranks deliver the same global batches, as sets, as a process without any."""
    options = {"tail": tail, "seed": seed}
    expected = [sorted(batch) for batch in rank_batches(dataset, batch_size=8, num_workers=0, **options)]
    for world_size in (1, 2, 4):
        ranks = [
            rank_batches(dataset, batch_size=8 // world_size, group=(rank, world_size), num_workers=2, **options)
            for rank in range(world_size)
        ]
        assert [sorted(chain(*batches)) for batches in zip(*ranks, strict=True)] == expected
    taken = list(chain(*expected))
    assert len(set(taken)) == len(taken) == (TOTAL // 8 * 8 if tail == "drop" else TOTAL)
