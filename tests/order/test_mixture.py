from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from shardflow.order.mixture import Shares
from tests.helpers.examples import examples

weights = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=5)


@given(weights, st.integers(0, 2**40), st.integers(0, 9000))
@example([1.0], 0, 5000)
@example([1.0, 1e-30], 7, 6000)
@example([1e-30, 1.0], 7, 6000)
def test_counts_are_those_of_the_numbers_one_by_one(weights: list[float], first: int, length: int) -> None:
    """How many numbers of a stretch come from each source is what counting them gives."""
    shares = Shares(weights)
    counted = np.bincount(shares.source_of(np.arange(first, first + length)), minlength=len(weights))
    assert shares.counts(first, first + length) == counted.tolist()


def test_far_numbers_cost_no_more() -> None:
    """Counts of 2**62 numbers are found by arithmetic, and are in proportion to the weights."""
    counts = Shares([5, 1, 2]).counts(3, 3 + 2**62)
    assert sum(counts) == 2**62
    assert np.allclose(np.array(counts) / 2**59, [5, 1, 2], atol=1e-9)


@given(
    st.lists(
        st.tuples(st.integers(1, 3000), st.lists(st.floats(0, 5), min_size=3, max_size=3).filter(any)),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 9000),
    st.integers(0, 500),
)
@examples(100)
def test_changing_shares_are_counted_without_counting(
    gaps: list[tuple[int, list[float]]], first: int, length: int
) -> None:
    """Counts of any section of a schedule, with sources that come and go, are what counting its numbers gives."""
    numbers = np.cumsum([gap for gap, _ in gaps]).tolist()
    shares = Shares([3, 0, 1], [(number, each) for number, (_, each) in zip(numbers, gaps, strict=True)])
    counted = np.bincount(shares.source_of(np.arange(first, first + length)), minlength=3)
    assert shares.counts(first, first + length) == counted.tolist()
    parts = [shares.counts(0, first), shares.counts(first, first + length)]
    assert np.array_equal(np.sum(parts, axis=0), shares.counts(0, first + length))


def test_every_window_has_its_shares() -> None:
    """While shares change from 3 : 1 to 1 : 1, each window of 500 numbers has its own to within a few."""
    shares = Shares([3, 1], [(20_000, [1, 1])])
    for first in range(0, 25_000, 500):
        share = 0.25 + 0.25 * min(1, (first + 250) / 20_000)
        assert abs(shares.counts(first, first + 500)[1] - 500 * share) < 4
    counts = Shares([3, 1], [(10**12, [1, 1])]).counts(0, 10**12)
    assert abs(counts[1] / 10**12 - 0.375) < 1e-9


def test_the_order_of_a_schedule_is_fixed() -> None:
    """The sources of a schedule's numbers never change."""
    shares = Shares([3, 1, 0], [(40, [1, 1, 2]), (41, [0, 1, 0])])
    assert (
        "".join(map(str, shares.source_of(np.arange(50)).tolist()))
        == "00010010200100102001021021020210210202102111111111"
    )
