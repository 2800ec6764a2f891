from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardflow.order.sampler import ListPlan

SIZES = [4, 0, 7, 1, 9]
SHARDS = np.repeat(np.arange(5), SIZES)
FIRSTS = np.cumsum(SIZES) - SIZES

lists = st.lists(st.integers(0, sum(SIZES) - 1), max_size=40).map(lambda numbers: np.array(numbers, dtype=np.int64))


@given(lists)
def test_positions_are_places_of_the_list(numbers: np.ndarray) -> None:
    """Each position has the sample that the list names there, and the repeats of a sample count from 0."""
    plan = ListPlan.of_samples(numbers, SIZES)
    shards, records, repeats = plan.visits(np.arange(plan.length))
    assert plan.length == len(numbers)
    assert shards.tolist() == SHARDS[numbers].tolist()
    assert (FIRSTS[shards] + records).tolist() == numbers.tolist()
    seen: Counter[int] = Counter()
    for number, repeat in zip(numbers.tolist(), repeats.tolist(), strict=True):
        assert repeat == seen[number]
        seen[number] += 1


@given(lists, st.integers(1, 4))
def test_a_rank_needs_the_shards_of_its_positions(numbers: np.ndarray, world_size: int) -> None:
    """The shards that a rank needs are those of its positions, each from its first to its last of them."""
    plan = ListPlan.of_samples(numbers, SIZES)
    for rank in range(world_size):
        mine = np.arange(rank, len(numbers), world_size)
        needs = zip(*(column.tolist() for column in plan.needs(rank, world_size)), strict=True)
        own = SHARDS[numbers[mine]]
        expected = {shard: (int(mine[own == shard].min()), int(mine[own == shard].max()) + 1) for shard in own.tolist()}
        assert {shard: (begin, end) for shard, begin, end in needs} == expected
