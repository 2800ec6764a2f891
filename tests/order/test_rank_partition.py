from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.errors import ConfigError
from shardflow.order.rank_partition import MOST_BATCH, MOST_POSITIONS, MOST_RANKS, TAILS, RankPartition
from tests.helpers.examples import examples

LENGTHS = st.integers(0, 300)
BATCHES = st.integers(1, 20)
WORLDS = st.integers(1, 9)


def ranks(length: int, batch_size: int, world_size: int, tail: str) -> list[RankPartition]:
    """The partitions of all ranks."""
    return [
        RankPartition(length=length, batch_size=batch_size, rank=rank, world_size=world_size, tail=tail)
        for rank in range(world_size)
    ]


def valid(partitions: list[RankPartition], first: int, steps: int | None = None) -> list[int]:
    """The valid positions that all ranks together take in their first steps from `first`."""
    taken: list[int] = []
    for partition in partitions:
        for step in range(partition.steps(first) if steps is None else steps):
            positions, mask = partition.positions(first, step)
            taken += positions[mask].tolist()
    return taken


def test_order_is_frozen() -> None:
    """Rank r takes the positions p with p % world_size == r, a global batch at a time, entered at 0 or elsewhere."""
    zero, one = ranks(14, 2, 2, "pad")
    assert [zero.positions(0, step)[0].tolist() for step in range(4)] == [[0, 2], [4, 6], [8, 10], [12, 0]]
    assert [one.positions(0, step)[0].tolist() for step in range(4)] == [[1, 3], [5, 7], [9, 11], [13, 1]]
    assert [zero.positions(3, step)[0].tolist() for step in range(3)] == [[4, 6], [8, 10], [12, 0]]
    assert [one.positions(3, step)[0].tolist() for step in range(3)] == [[3, 5], [7, 9], [11, 13]]
    assert [zero.positions(0, 3)[1].tolist(), one.positions(0, 3)[1].tolist()] == [[True, False]] * 2


@given(length=LENGTHS, batch_size=BATCHES, world_size=WORLDS, data=st.data())
@examples(300)
def test_short_takes_each_position_once(length: int, batch_size: int, world_size: int, data: st.DataObject) -> None:
    """With the tail "short", all ranks together take each position that is left exactly once, wherever they start."""
    first = data.draw(st.integers(0, length))
    assert sorted(valid(ranks(length, batch_size, world_size, "short"), first)) == list(range(first, length))


@given(length=LENGTHS, batch_size=BATCHES, world_size=WORLDS, data=st.data())
@examples(300)
def test_drop_leaves_less_than_a_batch(length: int, batch_size: int, world_size: int, data: st.DataObject) -> None:
    """With the tail "drop", whole batches of positions are taken once each, and less than one is left at the end."""
    first = data.draw(st.integers(0, length))
    taken = valid(ranks(length, batch_size, world_size, "drop"), first)
    assert sorted(taken) == list(range(first, first + len(taken)))
    assert len(taken) % (batch_size * world_size) == 0
    assert 0 <= length - first - len(taken) < batch_size * world_size


@given(length=st.integers(1, 300), batch_size=BATCHES, world_size=WORLDS, data=st.data())
@examples(300)
def test_pad_fills_up_with_repeats(length: int, batch_size: int, world_size: int, data: st.DataObject) -> None:
    """With the tail "pad", each position is valid once; what fills the last batch starts over at 0 and is invalid."""
    first = data.draw(st.integers(0, length))
    partitions = ranks(length, batch_size, world_size, "pad")
    assert sorted(valid(partitions, first)) == list(range(first, length))
    repeats: list[int] = []
    for partition in partitions:
        for step in range(partition.steps(first)):
            positions, mask = partition.positions(first, step)
            assert len(positions) == batch_size
            repeats += positions[~mask].tolist()
    missing = -(length - first) % (batch_size * world_size)
    assert Counter(repeats) == Counter(position % length for position in range(missing))


@given(length=LENGTHS, batch_size=BATCHES, world_size=WORLDS, tail=st.sampled_from(TAILS), data=st.data())
@examples(300)
def test_ranks_go_in_step(length: int, batch_size: int, world_size: int, tail: str, data: st.DataObject) -> None:
    """All ranks have equally many steps, whole batches in all but a short last one, and evenly dealt ones in that."""
    first = data.draw(st.integers(0, length))
    partitions = ranks(length, batch_size, world_size, tail)
    steps = partitions[0].steps(first)
    assert {partition.steps(first) for partition in partitions} == {steps}
    for step in range(steps):
        sizes = [len(partition.positions(first, step)[0]) for partition in partitions]
        if tail == "short" and step == steps - 1:
            assert max(sizes) - min(sizes) <= 1
            assert max(sizes) <= batch_size
            assert sum(sizes) > 0
        else:
            assert set(sizes) == {batch_size}


@given(length=LENGTHS, batch_size=BATCHES, world_size=WORLDS, tail=st.sampled_from(TAILS), data=st.data())
@examples(200)
def test_positions_are_of_their_rank(
    length: int, batch_size: int, world_size: int, tail: str, data: st.DataObject
) -> None:
    """A rank's positions are ascending int64 in 0 … length-1, congruent to it, and all of this step's global batch."""
    first = data.draw(st.integers(0, length))
    for partition in ranks(length, batch_size, world_size, tail):
        for step in range(partition.steps(first)):
            positions, mask = partition.positions(first, step)
            assert (positions.dtype, mask.dtype, len(positions)) == (np.int64, np.bool_, len(mask))
            assert ((positions >= 0) & (positions < length)).all()
            mine = positions[mask]
            assert (mine % world_size == partition.rank).all()
            assert (np.diff(mine) > 0).all()
            start = partition.after(first, step)
            assert ((mine >= start) & (mine < start + partition.global_batch)).all()


@given(length=LENGTHS, batch_size=BATCHES, world_size=WORLDS, tail=st.sampled_from(TAILS), data=st.data())
@examples(200)
def test_contiguous_batches_lie_side_by_side(
    length: int, batch_size: int, world_size: int, tail: str, data: st.DataObject
) -> None:
    """Contiguous batches are stretches of a step's positions, one rank's after the other, up to the batch size."""
    first = data.draw(st.integers(0, length))
    partitions = [replace(partition, contiguous=True) for partition in ranks(length, batch_size, world_size, tail)]
    for step in range(partitions[0].steps(first)):
        start = partitions[0].after(first, step)
        stop = start + batch_size * world_size
        expected = np.arange(start, min(stop, length) if tail == "short" else stop)
        positions, masks = zip(*(partition.positions(first, step) for partition in partitions), strict=True)
        assert np.concatenate(positions).tolist() == (expected % length).tolist()
        assert np.concatenate(masks).tolist() == (expected < length).tolist()
        assert [*map(len, positions)] == [
            len(expected[at : at + batch_size]) for at in range(0, stop - start, batch_size)
        ]


@given(length=LENGTHS, data=st.data())
@examples(300)
def test_goes_on_with_another_topology(length: int, data: st.DataObject) -> None:
    """Left after any step and entered with another world and batch size, again and again: each position comes once."""
    first, taken = 0, []
    for _ in range(data.draw(st.integers(0, 4))):
        partitions = ranks(length, data.draw(BATCHES), data.draw(WORLDS), data.draw(st.sampled_from(TAILS)))
        steps = data.draw(st.integers(0, partitions[0].steps(first)))
        taken += valid(partitions, first, steps)
        (first,) = {partition.after(first, steps) for partition in partitions}
        assert sorted(taken) == list(range(first))
    taken += valid(ranks(length, data.draw(BATCHES), data.draw(WORLDS), "short"), first)
    assert sorted(taken) == list(range(length))


def test_after_the_last_step_nothing_is_left() -> None:
    """The cursor stops at the end, also behind a padded batch, and there are no steps from there."""
    partition = RankPartition(length=10, batch_size=4, tail="pad")
    assert [partition.after(0, step) for step in range(4)] == [0, 4, 8, 10]
    for tail in TAILS:
        assert RankPartition(length=10, batch_size=4, tail=tail).steps(10) == 0
    assert RankPartition(length=8, batch_size=4).steps() == 2


def test_more_ranks_than_samples() -> None:
    """A rank that gets nothing of a short tail still has the step, and an empty batch in it."""
    partitions = ranks(3, 2, 5, "short")
    assert [partition.steps() for partition in partitions] == [1] * 5
    assert [partition.positions(0, 0)[0].tolist() for partition in partitions] == [[0], [1], [2], [], []]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"batch_size": 0}, "batch_size must be 1 or more, found 0"),
        ({"batch_size": -1}, "batch_size"),
        ({"batch_size": 2**63}, "batch_size must be 2,147,483,648 or less"),
        ({"world_size": 2**63}, "world_size must be 1,048,576 or less"),
        ({"length": 2**63}, "length of an epoch must be 1,152,921,504,606,846,976 or less"),
        ({"world_size": 0}, "world_size"),
        ({"rank": -1}, "rank -1"),
        ({"rank": 2, "world_size": 2}, "rank 2 of world_size 2"),
        ({"tail": "wrap"}, "one of drop, pad, short, found 'wrap'"),
    ],
)
def test_wrong_values_are_named(wrong: dict[str, int], named: str) -> None:
    """A value out of its range is a ConfigError that names it."""
    with pytest.raises(ConfigError, match=named):
        RankPartition(**{"length": 10, "batch_size": 1, **wrong})


@given(
    length=st.integers(0, MOST_POSITIONS),
    batch_size=st.integers(1, 200) | st.just(MOST_BATCH),
    world_size=st.integers(1, MOST_RANKS) | st.just(MOST_RANKS),
    tail=st.sampled_from(TAILS),
    contiguous=st.booleans(),
    data=st.data(),
)
@examples(100)
def test_extreme_numbers_do_not_overflow(
    length: int, batch_size: int, world_size: int, tail: str, contiguous: bool, data: st.DataObject
) -> None:
    """Positions of the longest epochs are those of arithmetic without bounds."""
    rank = data.draw(st.integers(0, world_size - 1))
    first = data.draw(st.integers(0, length))
    partition = RankPartition(
        length=length, batch_size=batch_size, rank=rank, world_size=world_size, tail=tail, contiguous=contiguous
    )
    if not (steps := partition.steps(first)) or batch_size == MOST_BATCH:
        return
    for step in {0, steps - 1}:
        start = first + step * batch_size * world_size
        assert partition.after(first, step) == start
        positions, valid = partition.positions(first, step)
        everything = [start + n for n in range(batch_size * world_size)] if world_size < 50 else None
        if everything is not None:
            mine = (
                everything[rank * batch_size : (rank + 1) * batch_size]
                if contiguous
                else [p for p in everything if p % world_size == rank]
            )
            if tail == "short":
                mine = [p for p in mine if p < length]
            assert positions.tolist() == [p % length for p in mine]
            assert valid.tolist() == [p < length for p in mine]
        assert ((positions >= 0) & (positions < length)).all()
