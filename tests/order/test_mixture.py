from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from shardflow.order.mixture import Shares

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
