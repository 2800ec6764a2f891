from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardflow.errors import ConfigError
from shardflow.order.class_batches import ClassBatchEpochs
from tests.helpers.examples import examples

SIZES = st.lists(st.integers(0, 30), min_size=1, max_size=12)


def make(class_sizes: list[int], classes: int, per_class: int) -> ClassBatchEpochs:
    """Batches of samples that are stored in an order of their own; the shards have seven samples."""
    labels = np.repeat(np.arange(len(class_sizes)), class_sizes)
    shards = np.minimum(7, len(labels) - np.arange(0, len(labels), 7)).astype(np.uint64)
    return ClassBatchEpochs(np.random.default_rng(0).permutation(labels), classes, per_class, shards)


def samples(made: ClassBatchEpochs, epoch: int, seed: int = 0) -> list[list[int]]:
    """The batches of an epoch, as numbers of samples."""
    plan = made.plan(seed=seed, epoch=epoch)
    found, records, repeats = plan.visits(np.arange(plan.length))
    assert repeats.tolist() == [0] * plan.length
    numbers: list[list[int]] = (7 * found + records).reshape(made.batches, -1).tolist()
    return numbers


@given(sizes=SIZES, classes=st.integers(1, 6), per_class=st.integers(1, 6), epoch=st.integers(0, 2**63 - 1))
@examples(300)
def test_each_batch_has_p_classes_with_k_samples(sizes: list[int], classes: int, per_class: int, epoch: int) -> None:
    """Each batch has P different classes with K samples, and no sample comes twice in an epoch."""
    assume(sum(size >= per_class for size in sizes) >= classes)
    made = make(sizes, classes, per_class)
    batches = samples(made, epoch)
    everything = [number for batch in batches for number in batch]
    assert len(set(everything)) == len(everything) == made.length
    for batch in batches:
        labels = made.labels[batch].tolist()
        assert sorted(Counter(labels).values()) == [per_class] * classes
        assert all(len(set(labels[at : at + per_class])) == 1 for at in range(0, len(labels), per_class))


@given(sizes=SIZES, classes=st.integers(1, 6), per_class=st.integers(1, 6))
def test_there_are_as_many_batches_as_can_be(sizes: list[int], classes: int, per_class: int) -> None:
    """One batch more could not be filled: the classes have too few groups, each of which is in another batch."""
    assume(sum(size >= per_class for size in sizes) >= classes)
    made = make(sizes, classes, per_class)
    more = made.batches + 1
    assert sum(min(size // per_class, more) for size in sizes) < classes * more


def test_other_samples_are_left_out_in_each_epoch() -> None:
    """Samples that fill no group or batch are others in each epoch, so that all come in the end."""
    made = make([9, 23, 5, 14], 2, 4)
    seen: set[int] = set()
    for epoch in range(12):
        seen.update(number for batch in samples(made, epoch) for number in batch)
    assert len(seen) == 51
    assert samples(made, 3) == samples(made, 3) != samples(made, 4)
    assert samples(made, 3, seed=1) != samples(made, 3)


@given(sizes=SIZES, classes=st.integers(1, 4), per_class=st.integers(1, 4))
def test_needs_cover_every_position(sizes: list[int], classes: int, per_class: int) -> None:
    """A shard is needed from its first position to its last, in the order of first need."""
    assume(sum(size >= per_class for size in sizes) >= classes)
    made = make(sizes, classes, per_class)
    plan = made.plan(seed=0, epoch=1)
    found = plan.visits(np.arange(plan.length))[0].tolist()
    expected = [(shard, found.index(shard), len(found) - found[::-1].index(shard)) for shard in dict.fromkeys(found)]
    assert list(zip(*(column.tolist() for column in plan.needs(0, 1)), strict=True)) == expected


def test_order_is_frozen() -> None:
    """The order of an epoch is the same for ever: a saved position means the same sample after an update."""
    made = make([40, 3, 17, 9, 28], 3, 2)
    text = repr(samples(made, 5, seed=9)).encode()
    assert hashlib.sha256(text).hexdigest() == "9dca041871a54e38562238d3464cb79f0984e69c4bd6a6a24649ca0f6dbe6e2f"


def test_too_few_classes() -> None:
    """Classes that are too small for a group do not count."""
    with pytest.raises(ConfigError, match=r"3 classes .*\b2\b"):
        make([4, 4, 3, 0], 3, 4)
