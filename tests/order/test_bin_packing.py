from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.order.bin_packing import bins_needed, first_fit_decreasing
from tests.helpers.examples import examples


def by_definition(lengths: list[int], capacity: int) -> list[list[int]]:
    """Each item, from the longest to the shortest, in the first bin that has room."""
    bins: list[list[int]] = []
    for length in sorted(lengths, reverse=True):
        room = next((each for each in bins if sum(each) + length <= capacity), None)
        if room is None:
            bins.append(room := [])
        room.append(length)
    return bins


@given(
    capacity=st.integers(1, 40),
    items=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**6)), max_size=60),
)
@examples(300)
def test_every_group_is_packed_as_alone(capacity: int, items: list[tuple[int, int]]) -> None:
    """Each group has the bins of the textbook's first fit decreasing, numbered after those of the groups before it."""
    groups = np.array([group for group, _ in items], dtype=np.int64)
    lengths = np.array([1 + number % capacity for _, number in items], dtype=np.int64)
    bins = first_fit_decreasing(lengths, capacity, groups)
    before = 0
    for group in range(4):
        expected = by_definition(lengths[groups == group].tolist(), capacity)
        own = bins[groups == group]
        found = [sorted(lengths[(groups == group) & (bins == number)].tolist()) for number in sorted(set(own.tolist()))]
        assert set(own.tolist()) == set(range(before, before + len(expected)))
        assert sorted(found) == sorted(map(sorted, expected))
        assert bins_needed(lengths[groups == group], capacity) == len(expected)
        before += len(expected)


def test_items_of_one_length_are_dealt_out_in_their_order() -> None:
    """Which of the items of one length come first decides who is together, as an epoch's order shall."""
    bins = first_fit_decreasing(np.array([3, 5, 3, 3, 5, 2]), 8, np.zeros(6, dtype=np.int64))
    assert bins.tolist() == [0, 0, 1, 2, 1, 2]


def test_a_million_items_of_one_group_take_few_steps() -> None:
    """Bins that can be filled in the same way are filled at once: lengths count, and not items."""
    lengths = np.random.default_rng(0).integers(1, 400, 1_000_000)
    bins = first_fit_decreasing(lengths, 1000, np.zeros(len(lengths), dtype=np.int64))
    assert np.bincount(bins, lengths).max() <= 1000
    assert bins.max() + 1 <= 1.001 * lengths.sum() / 1000


@pytest.mark.parametrize("kinds", [1, 30])
def test_groups_take_turns_in_little_memory(kinds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget of any size takes the memory of its items: lengths that occur are counted, some groups at a time."""
    rng = np.random.default_rng(2)
    lengths, groups = rng.integers(1, 1 << 24, 4000), rng.integers(0, 64, 4000)
    tracemalloc.start()
    bins = first_fit_decreasing(lengths, 1 << 24, groups)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 64_000_000
    monkeypatch.setattr("shardflow.order.bin_packing._KINDS", kinds)
    assert (first_fit_decreasing(lengths, 1 << 24, groups) == bins).all()
