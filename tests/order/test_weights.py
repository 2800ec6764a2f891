from __future__ import annotations

import hashlib
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.errors import ConfigError
from shardflow.order.shuffle_plan import ShufflePlan
from shardflow.order.weights import SystematicSample, Weights
from tests.helpers.examples import examples, some_of

SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(lambda sizes: sum(sizes) > 0)
SHORT = [(1, 1, 0), (1, 2, 1), (0, 1, 1), (0, 1, 0), (1, 2, 2), (0, 0, 0), (1, 2, 0)]
LONG_SHA256 = "484679450fd57a5037b6be02b265b892e32cbfcd5ab23ccec2563d2e4c7160ff"
WEIGHT = st.one_of(st.just(0.0), st.floats(0, 5), st.integers(0, 4), st.floats(1e-12, 1e-6), st.floats(50, 300))


@st.composite
def weighted_plans(draw: st.DrawFn) -> tuple[ShufflePlan, list[int], Weights]:
    """Any weighted plan of up to some thousand positions, its shard sizes and its weights."""
    sizes = draw(SIZES)
    values = draw(st.lists(WEIGHT, min_size=sum(sizes), max_size=sum(sizes)).filter(lambda values: sum(values) >= 1))
    weights = Weights(np.array(values, dtype=np.float64), sizes)
    plan = ShufflePlan(
        sizes,
        seed=draw(st.integers(-(2**63), 2**63)),
        epoch=draw(st.integers(0, 2**63 - 1)),
        streams=draw(st.integers(1, 9)),
        buffer=draw(st.integers(1, 200)),
        shuffle=draw(st.booleans()),
        shard_affinity=draw(st.booleans()),
        weights=weights,
    )
    return plan, sizes, weights


def plan_of(values: Any, sizes: list[int], **options: Any) -> ShufflePlan:
    """A plan with weights."""
    options = {"seed": 1, "epoch": 2, "streams": 3, "buffer": 16, **options}
    return ShufflePlan(sizes, weights=Weights(values, np.array(sizes)), **options)


def counts(plan: ShufflePlan, sizes: list[int]) -> np.ndarray[Any, Any]:
    """How often each sample of the split comes in the epoch."""
    shards, records = plan.locate(np.arange(plan.length))
    return np.bincount((np.cumsum(sizes) - sizes)[shards] + records, minlength=sum(sizes))


@given(weighted_plans())
@examples(200)
def test_each_sample_comes_as_often_as_its_weight(drawn: tuple[ShufflePlan, list[int], Weights]) -> None:
    """The epoch has the rounded sum of the weights, each count differs by less than one, and weight 0 never comes."""
    plan, sizes, weights = drawn
    fixed = weights._fixed(0, sum(sizes))
    assert plan.length == weights.length == round(Fraction(int(fixed.sum()), 2**31) + Fraction(1, 2**40))
    came = counts(plan, sizes)
    scale = Fraction(weights.length * 2**31, weights.sum)  # the sum is rounded to whole samples
    for count, weight in zip(came.tolist(), fixed.tolist(), strict=True):
        assert abs(count - Fraction(weight, 2**31) * scale) < 1
        assert weight > 0 or count == 0


@given(weighted_plans())
@examples(100)
def test_each_repeat_comes_once(drawn: tuple[ShufflePlan, list[int], Weights]) -> None:
    """A sample that comes n times has the repeats 0 … n-1, so that no two positions have the same key."""
    plan, sizes, _ = drawn
    visits = list(zip(*(part.tolist() for part in plan.visits(np.arange(plan.length))), strict=True))
    assert len(set(visits)) == plan.length
    came = counts(plan, sizes)
    starts = np.cumsum(sizes) - sizes
    assert all(repeat < came[starts[shard] + record] for shard, record, repeat in visits)


@given(weighted_plans())
@examples(50)
def test_any_position_is_found_by_itself(drawn: tuple[ShufflePlan, list[int], Weights]) -> None:
    """A position means the same sample whether it is asked for alone or with all others: so a resume is exact."""
    plan, _, _ = drawn
    whole = np.stack(plan.visits(np.arange(plan.length)))
    for position in range(0, plan.length, max(1, plan.length // 7)):
        assert np.stack(plan.visits(np.array([position]))).ravel().tolist() == whole[:, position].tolist()


@given(SIZES, st.integers(0, 2**40), st.integers(1, 9), st.integers(1, 99), st.booleans(), st.sampled_from([1, 1.0]))
def test_uniform_weights_are_the_plain_order(
    sizes: list[int], seed: int, streams: int, buffer: int, shuffle: bool, one: float
) -> None:
    """With each weight 1, the order is that of a plan without weights."""
    options: dict[str, Any] = {"seed": seed, "epoch": 3, "streams": streams, "buffer": buffer, "shuffle": shuffle}
    plain, weighted = ShufflePlan(sizes, **options), plan_of(np.full(sum(sizes), one), sizes, **options)
    positions = np.arange(plain.length)
    assert np.array_equal(np.stack(plain.visits(positions)), np.stack(weighted.visits(positions)))
    for rank in range(2):
        assert all(map(np.array_equal, plain.needs(rank, 2), weighted.needs(rank, 2)))


@given(weighted_plans(), st.integers(1, 5))
@examples(60)
def test_needs_cover_what_a_rank_reads(drawn: tuple[ShufflePlan, list[int], Weights], world_size: int) -> None:
    """A shard is needed from before its first sample to after its last one, on each rank that reads it."""
    plan, _, _ = drawn
    for rank in range(world_size):
        spans = list(zip(*(part.tolist() for part in plan.needs(rank, world_size)), strict=True))
        positions = np.arange(rank, plan.length, world_size)
        for position, shard in zip(positions.tolist(), plan.locate(positions)[0].tolist(), strict=True):
            assert any(shard == needed and begin <= position < end for needed, begin, end in spans)


def test_counts_over_epochs_are_the_weights() -> None:
    """Over many epochs the mean count of a sample tends to its weight: systematic sampling has no bias."""
    sizes, epochs = [7, 5, 9], some_of(4000)
    values = np.linspace(0, 3, 21) ** 2
    total = sum(counts(plan_of(values, sizes, epoch=epoch), sizes) for epoch in range(epochs))
    scale = round(values.sum()) / values.sum()
    assert np.abs(total / epochs - values * scale).max() < 4 * 0.5 / np.sqrt(epochs)


def test_balanced_classes_are_no_worse_than_drawn_ones() -> None:
    """Over a million positions, the shares of balanced classes differ less from each other than random draws would."""
    per_class = (2000 / (1 + np.arange(100) / 10)).astype(np.int64)
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(100), per_class))
    sizes = np.minimum(500, len(labels) - np.arange(0, len(labels), 500))
    weights = Weights(len(labels) / (100 * per_class), sizes, labels)
    counts, epochs = np.zeros(100), -(-1_000_000 // weights.length)
    for epoch in range(epochs):
        plan = ShufflePlan(sizes, seed=3, epoch=epoch, streams=8, buffer=1000, weights=weights)
        shards, records = plan.locate(np.arange(plan.length))
        counts += np.bincount(labels[500 * shards + records], minlength=100)
    expected = counts.sum() / 100
    assert ((counts - expected) ** 2 / expected).sum() / 99 < 1


def test_weighted_order_is_frozen() -> None:
    """The order of a weighted epoch is the same for ever: a saved position means the same sample after an update."""
    shards, records, repeats = plan_of([0.5, 2, 0, 1.25, 3, 0.25], [2, 4]).visits(np.arange(7))
    assert list(zip(shards.tolist(), records.tolist(), repeats.tolist(), strict=True)) == SHORT
    sizes = list(range(1, 120))
    values = (np.arange(sum(sizes)) % 17) / 8
    plan = plan_of(values, sizes, seed=42, epoch=7, streams=3, buffer=700)
    located = np.stack(plan.visits(np.arange(plan.length))).astype("<i8")
    assert hashlib.sha256(located.tobytes()).hexdigest() == LONG_SHA256


def test_extreme_sums_are_exact() -> None:
    """Epochs of two thousand million samples, and weights of a millionth, are located without overflow."""
    plan = plan_of([2.0**30, 1, 2.0**30 - 3], [2, 1])
    assert plan.length == 2**31 - 2
    positions = np.unique(np.concatenate([np.arange(50), plan.length - 1 - np.arange(50), np.arange(50) * 10**7]))
    shards, records, repeats = plan.visits(positions)
    most = np.array([[2**30 + 1, 2], [2**30 - 2, 0]])[shards, records]
    assert ((repeats >= 0) & (repeats < most)).all()
    thin = plan_of(np.full(2_000_000, 1e-6), [1_000_000, 1_000_000])
    assert thin.length == 2
    assert Weights([2.0**30, 2.0**-31], np.array([2])).sums.tolist() == [2**61 + 1]


def test_sums_of_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums of shards, and those within them, are exact, whether read in one go or in several, and cached."""
    sizes, values = np.array([3, 0, 5, 20, 1, 0, 7]), np.arange(36) % 5
    digest = Weights(values / 8, sizes).digest
    monkeypatch.setattr("shardflow.order.weights._CHUNK", 8)
    monkeypatch.setattr("shardflow.order.weights._CACHED_SAMPLES", 8)
    expected = np.split(2**28 * values, np.cumsum(sizes)[:-1])
    found = Weights(values / 8, sizes)
    assert (found.sum, found.digest) == (2**28 * values.sum(), digest)
    assert found.sums.tolist() == [int(each.sum()) for each in expected]
    sample = SystematicSample(found, key=5)
    for shard in (0, 2, 0, 3, 3, 1, 6, 4, 0, 2, 6):
        assert found.fixed(shard).tolist() == expected[shard].tolist()
        offsets = np.arange(sample.counts[shard])
        records, repeats = sample.locate(np.full_like(offsets, shard), offsets)
        assert (np.diff(records) >= 0).all()
        assert repeats.tolist() == [n for count in np.bincount(records).tolist() for n in range(count)]
        assert len(sample._ends) <= 1 or sum(map(len, sample._ends.values())) <= 8


def test_a_point_at_the_border_of_two_samples() -> None:
    """A point at which the weight of a sample begins, as all are of the key 0, is that sample's first."""
    shards = Weights([2, 1, 3], np.array([1, 2]))
    sample = SystematicSample(shards, key=0)
    assert sample.counts.tolist() == [2, 4]
    records, repeats = sample.locate(np.array([1, 1, 1, 1, 0, 0]), np.array([0, 1, 2, 3, 0, 1]))
    assert (records.tolist(), repeats.tolist()) == ([0, 1, 1, 1, 0, 0], [0, 0, 1, 2, 0, 1])


def counts_of_epochs(values: Any, sizes: list[int], epochs: int, **options: Any) -> np.ndarray[Any, Any]:
    """How often each sample comes in each of the epochs: [epochs, samples]."""
    shards = Weights(values, np.array(sizes))
    plans = [
        ShufflePlan(sizes, seed=11, epoch=epoch, streams=2, weights=shards, **{"buffer": 1, **options})
        for epoch in range(epochs)
    ]
    return np.stack([counts(plan, sizes) for plan in plans])


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"shard_affinity": True}])
@pytest.mark.parametrize("sizes", [[100], [50, 50], [1] * 100, [1, 37, 62]])
def test_each_epoch_has_another_set_of_samples(sizes: list[int], options: dict[str, Any]) -> None:
    """With weights of 0.5, all epochs have different sets, and two in a row share half of their samples."""
    epochs = some_of(1000)
    came = counts_of_epochs(np.full(100, 0.5), sizes, epochs, **options)
    assert len({row.tobytes() for row in came}) == epochs
    shared = (came[:-1] * came[1:]).sum(axis=1)
    assert abs(shared.mean() - 25) < 5 * 2.5 / np.sqrt(epochs - 1)  # 2.5 is the deviation of each
    assert np.abs(shared - 25).max() < 5 * 2.5


ALTERNATING = np.arange(200) % 2
BLOCKS = np.arange(200) // 100


@pytest.mark.parametrize(
    ("values", "sizes", "options"),
    [
        (np.full(200, 0.5), [100, 100], {}),
        (np.full(200, 0.5), [40, 160], {"shuffle": False}),
        (np.full(60, 0.5), [1] * 60, {}),
        (np.full(60, 0.5), [1] * 60, {"shard_affinity": True}),
        (np.full(200, 0.2), [50, 150], {"buffer": 16}),
        (np.full(200, 1.5), [50] * 4, {"shuffle": False}),
        (np.where(ALTERNATING, 0.25, 0.75), [100, 100], {}),
        (np.where(BLOCKS, 0.3, 1.7), [100, 100], {}),
        (np.where(BLOCKS, 0.3, 1.7), [200], {}),
        (np.linspace(0.1, 0.9, 200), [200], {}),
    ],
)
def test_two_samples_meet_as_often_as_chance_has_it(values: Any, sizes: list[int], options: dict[str, Any]) -> None:
    """The counts of any two samples, at any distance, are those of draws without replacement from each shard."""
    epochs, samples = some_of(1200), len(values)
    part = values % 1
    came = (counts_of_epochs(values, sizes, epochs, **options) - values) / np.sqrt(part * (1 - part))
    shard, size = np.repeat(np.arange(len(sizes)), sizes), np.repeat(sizes, sizes)
    expected = np.where(shard[:, None] == shard, -1 / np.maximum(size - 1, 1), -1.0 / (samples - 1) * (size == 1))
    z = (came.T @ came / epochs - expected) * np.sqrt(epochs)
    pairs = z[np.triu_indices(samples, 1)]
    assert np.abs(pairs).max() < 5.5  # of up to 19,900
    assert abs((pairs**2).mean() - 1) < 0.1
    for distance in range(1, samples):
        here = np.diagonal(z, distance)
        assert abs(here.mean()) < 5 / np.sqrt(len(here))


@pytest.mark.parametrize("labels", [ALTERNATING, BLOCKS, np.arange(200) // 20 % 2])
@pytest.mark.parametrize("sizes", [[100, 100], [1, 199]])
def test_each_epoch_has_each_class(labels: Any, sizes: list[int]) -> None:
    """In each epoch a class has its share, to a few samples, however the classes are stored."""
    for values in (np.full(200, 0.5), np.where(labels, 0.25, 0.75)):
        came = counts_of_epochs(values, sizes, 200)
        for label in (0, 1):
            shares = came[:, labels == label].sum(axis=1)
            share, deviation = values[labels == label].sum(), np.sqrt((values * (1 - values))[labels == label].sum())
            assert abs(shares.mean() - share) < 5 * deviation / np.sqrt(200)
            assert np.abs(shares - share).max() < 5 * deviation


def test_a_shard_affine_order_with_weights_keeps_the_shards_of_a_stream() -> None:
    """With weights, a stream has the shards that it has in other epochs, but for a few at its borders."""
    sizes, streams = [20] * 200, 4
    shards = Weights(np.linspace(0, 1.3, 4000), np.array(sizes))
    read: list[set[int]] = [set() for _ in range(streams)]
    for epoch in range(20):
        plan = ShufflePlan(sizes, seed=3, epoch=epoch, streams=streams, buffer=64, weights=shards, shard_affinity=True)
        for stream in range(streams):
            read[stream] |= set(plan.locate(np.arange(stream, plan.length, streams))[0].tolist())
    assert sum(map(len, read)) < 1.1 * 200


def test_equal_weights_have_equal_digests() -> None:
    """The digest is of the weights, not of the way in which they were given."""
    classes = np.array([0, 1, 1, 0, 2], dtype=np.int32)
    by_class = Weights([0.5, 2, 1], [3, 2], classes)
    for values in ([0.5, 2, 2, 0.5, 1], np.array([0.5, 2, 2, 0.5, 1], dtype=np.float32)):
        assert Weights(values, [5]).digest == by_class.digest
    assert Weights([0.5, 2, 2, 0.5, 2], [5]).digest != by_class.digest
    assert Weights([True, False, True], [3]).length == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, -1, 1], "that of sample 1 is -1"),
        ([1, float("nan")], "that of sample 1 is nan"),
        ([float("inf"), 1], "that of sample 0 is inf"),
        ([0, 0, 0], "must be 1 … 2,147,483,647, found 0"),
        ([1e-3, 1e-3], "found 0.002"),
        ([2.0**30, 2.0**30, 2.0**30], "found more than 2,147,483,647"),
        (np.full(5, 2.0**31 - 1), "found more than 2,147,483,647"),  # 64 bits hold the sum of two
        ([1e300, 1], "that of sample 0 is 1e\\+300"),
        (["a", "b"], "must be numbers"),
        ([[1, 2]], r"shape \(1, 2\)"),
        ([1 + 2j], "must be numbers"),
        ([], "found 0"),
    ],
)
def test_weights_that_cannot_be_are_refused(values: Any, message: str) -> None:
    """A weight that is negative, not finite or no number, and a sum beyond its limits, are errors."""
    with pytest.raises(ConfigError, match=message):
        Weights(values, [len(values)])


def test_a_bad_class_weight_names_the_class() -> None:
    """With weights by class, the message counts classes."""
    with pytest.raises(ConfigError, match=r"class 1 .*-2"):
        Weights([1, -2], [2], np.array([0, 1]))
