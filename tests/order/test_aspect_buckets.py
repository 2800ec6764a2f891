from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.order.aspect_buckets import BucketPlan
from shardflow.order.shuffle_plan import ShufflePlan
from shardflow.order.weights import Weights
from tests.helpers.examples import examples

SIZES = st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) > 0)

ORDER_SHA256 = "2002b5d14eff5cec5e589c1c6b1fd78284102dc5bb243bc8acea9436e8507169"
BUCKETS = [2, 1, 2, 3, 1, 0, 0, 1, 2, 0, 1, 0, 1, 1, 2, 3, 0, 3, 2, 1]


def make(
    sizes: list[int], *, batch_size: int, world_size: int, epoch: int = 0, buckets: int = 4, weights: Any = None
) -> tuple[BucketPlan, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A bucket plan, and the bucket and the first number of each sample and shard."""
    own = np.random.default_rng(sum(sizes)).integers(0, buckets, sum(sizes))
    shard_weights = None if weights is None else Weights(weights, np.array(sizes))
    plan = ShufflePlan(sizes, seed=1, epoch=epoch, streams=2 * world_size, buffer=16, weights=shard_weights)
    firsts = np.cumsum(sizes) - np.array(sizes)
    return BucketPlan(plan, own, firsts, group=batch_size * world_size, streams=2 * world_size), own, firsts


@given(sizes=SIZES, batch_size=st.integers(1, 9), world_size=st.integers(1, 4), epoch=st.integers(0, 9))
@examples(150)
def test_every_sample_comes_once(sizes: list[int], batch_size: int, world_size: int, epoch: int) -> None:
    """Each sample comes once, and a global batch has one bucket but for what is handed on to it from those before."""
    plan, own, firsts = make(sizes, batch_size=batch_size, world_size=world_size, epoch=epoch)
    shards, records, _ = plan.visits(np.arange(plan.length))
    numbers = firsts[shards] + records
    assert sorted(numbers.tolist()) == list(range(sum(sizes)))
    group = batch_size * world_size
    kinds = np.array([plan.bucket(position) for position in range(plan.length)])
    assert (own[numbers] <= kinds).all()
    assert plan.moved == (own[numbers] != kinds).sum()
    assert all(len(set(kinds[begin : begin + group])) == 1 for begin in range(0, plan.length, group))


@given(sizes=SIZES, batch_size=st.integers(1, 9), world_size=st.integers(1, 4))
@examples(100)
def test_needs_are_what_a_rank_reads(sizes: list[int], batch_size: int, world_size: int) -> None:
    """A rank needs a shard from its first position there to its last."""
    plan, _, _ = make(sizes, batch_size=batch_size, world_size=world_size)
    for rank in range(world_size):
        positions = np.arange(rank, plan.length, world_size)
        shards = plan.visits(positions)[0]
        expected = [
            (shard, int(positions[shards == shard][0]), int(positions[shards == shard][-1]) + 1)
            for shard in dict.fromkeys(shards.tolist())
        ]
        assert list(zip(*(column.tolist() for column in plan.needs(rank, world_size)), strict=True)) == expected


def test_few_samples_change_their_bucket() -> None:
    """Of 270,000 samples, more than are looked up at once, each comes once, and few in another bucket's batch."""
    plan, _, firsts = make([1000] * 270, batch_size=64, world_size=4, buckets=9)
    shards, records, _ = plan.visits(np.arange(plan.length))
    assert np.array_equal(np.sort(firsts[shards] + records), np.arange(270_000))
    assert plan.moved < 0.03 * plan.length


def test_ranks_keep_their_shards() -> None:
    """A rank reads the shards that it reads without buckets, and few others."""
    sizes = [100] * 64
    plan, _, _ = make(sizes, batch_size=8, world_size=4)
    plain = ShufflePlan(sizes, seed=1, epoch=0, streams=8, buffer=16)
    for rank in range(4):
        without = set(plain.needs(rank, 4)[0].tolist())
        shards = plan.visits(np.arange(rank, plan.length, 4))[0]
        assert np.isin(shards, list(without)).mean() > 0.9


def test_weights_count() -> None:
    """With weights, samples come as often as without buckets."""
    weights = np.arange(60) % 3
    plan, _, firsts = make([20, 40], batch_size=4, world_size=2, weights=weights)
    shards, records, repeats = plan.visits(np.arange(plan.length))
    assert np.bincount(firsts[shards] + records, minlength=60).tolist() == weights.tolist()
    assert len(set(zip(shards.tolist(), records.tolist(), repeats.tolist(), strict=True))) == plan.length


def test_order_is_frozen() -> None:
    """The order of an epoch is the same for ever: a saved position means the same sample after an update."""
    plan, _, _ = make([40, 3, 57, 20], batch_size=3, world_size=2, epoch=5)
    located = np.stack(plan.visits(np.arange(plan.length))).astype("<i8")
    assert hashlib.sha256(located.tobytes()).hexdigest() == ORDER_SHA256
    assert [plan.bucket(position) for position in range(0, 120, 6)] == BUCKETS
    assert plan.moved == 5


def test_no_samples_is_an_empty_epoch() -> None:
    """A split whose shards are empty has no positions, and needs no shard."""
    plan, _, _ = make([0, 0], batch_size=3, world_size=2)
    assert (plan.length, plan.moved) == (0, 0)
    assert [len(array) for array in (*plan.visits(np.arange(0)), *plan.needs(0, 2))] == [0] * 6


def test_one_bucket() -> None:
    """Where all samples are of one bucket, no sample changes it, and the tail of the epoch is of that bucket too."""
    plan, _, _ = make([10], batch_size=3, world_size=1, buckets=1)
    assert ([plan.bucket(position) for position in range(10)], plan.moved) == ([0] * 10, 0)


@pytest.mark.parametrize("epoch", [0, 1])
def test_the_order_belongs_to_the_epoch(epoch: int) -> None:
    """The same epoch has the same order, another one another."""
    orders = [make([30, 30], batch_size=3, world_size=1, epoch=each)[0].visits(np.arange(60)) for each in (0, 1)]
    again = make([30, 30], batch_size=3, world_size=1, epoch=epoch)[0].visits(np.arange(60))
    assert np.array_equal(np.stack(orders[epoch]), np.stack(again))
    assert not np.array_equal(np.stack(orders[1 - epoch]), np.stack(again))
