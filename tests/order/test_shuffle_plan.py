from __future__ import annotations

import bisect
import hashlib
import itertools
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.errors import ConfigError
from shardflow.order.shuffle_plan import ShufflePlan
from shardflow.order.shuffle_settings import default_streams
from tests.helpers.examples import examples

SIZES = st.lists(st.integers(0, 90), min_size=1, max_size=12)
STICKY_ORDER_SHA256 = "576a0689c3c7a4226e4c8f61760b0bc6038378160aa113844d998ebeffcfa2ed"
LONG_ORDER_SHA256 = "adc50e25b9d0b45b353b6469fe279ed465796f1136dffda8e20d42cb7a9e6fe7"
SEEDS = st.integers(-(2**63), 2**63)


@st.composite
def plans(draw: st.DrawFn) -> ShufflePlan:
    """Any plan of up to some thousand samples: short and long windows, more streams than samples, empty shards."""
    sizes = draw(st.one_of(SIZES, st.lists(st.integers(200, 900), min_size=1, max_size=5)))
    return ShufflePlan(
        sizes,
        seed=draw(SEEDS),
        epoch=draw(st.integers(0, 1000)),
        streams=draw(st.integers(1, 40)),
        buffer=draw(st.one_of(st.integers(1, 40), st.integers(200, 2000))),
        shuffle=draw(st.booleans()),
        shard_affinity=draw(st.booleans()),
    )


def order(plan: ShufflePlan) -> list[tuple[int, int]]:
    """The whole epoch: (shard, record) by position."""
    shards, records = plan.locate(np.arange(plan.length))
    return list(zip(shards.tolist(), records.tolist(), strict=True))


def offsets_of_a_stream(length: int, buffer: int, **options: Any) -> list[int]:
    """Where the positions of a plan with one stream and one shard lie in it."""
    return [record for _, record in order(ShufflePlan([length], seed=0, epoch=0, buffer=buffer, **options))]


def window_bounds(buffer: int, length: int) -> list[tuple[int, int]]:
    """The windows of a stream as the documentation has them: they end at 32, 64, 128, …, W, 2W, 3W, …."""
    ends = [32 << doubling for doubling in range(20) if 32 << doubling < buffer]
    ends = [end for end in [*ends, *range(buffer, length + buffer, buffer)] if end < length] + [length]
    return list(itertools.pairwise([0, *ends]))


@pytest.mark.parametrize(
    ("epoch", "buffer", "expected"),
    [
        (0, 4, "32 02 13 33 01 20 30 11 14 31 10 21 00 12"),
        (2, 4, "02 20 13 01 30 12 00 21 11 31 33 14 32 10"),
        (2, 5, "21 30 13 32 02 20 10 01 11 33 00 14 12 31"),  # as a whole
    ],
)
def test_order_is_frozen(epoch: int, buffer: int, expected: str) -> None:
    """The order of an epoch is the same for ever: a saved position means the same sample after an update."""
    located = order(ShufflePlan([3, 5, 2, 4], seed=1, epoch=epoch, streams=3, buffer=buffer))
    assert " ".join(f"{shard}{record}" for shard, record in located) == expected


def test_long_order_is_frozen() -> None:
    """So is one that goes through the growing windows and the full ones."""
    plan = ShufflePlan(np.arange(1, 120), seed=42, epoch=7, streams=3, buffer=700)
    located = np.stack(plan.locate(np.arange(plan.length))).astype("<i8")
    assert hashlib.sha256(located.tobytes()).hexdigest() == LONG_ORDER_SHA256


def test_shard_affine_order_is_frozen() -> None:
    """So is a shard_affinity one."""
    plan = ShufflePlan(np.arange(1, 120), seed=42, epoch=7, streams=3, buffer=700, shard_affinity=True)
    located = np.stack(plan.locate(np.arange(plan.length))).astype("<i8")
    assert hashlib.sha256(located.tobytes()).hexdigest() == STICKY_ORDER_SHA256


@given(
    sizes=st.one_of(SIZES, st.lists(st.integers(200, 900), min_size=1, max_size=5)),
    streams=st.integers(1, 40),
    buffer=st.one_of(st.integers(1, 40), st.integers(200, 2000)),
    shuffle=st.booleans(),
    shard_affinity=st.booleans(),
    seed=SEEDS,
    epoch=st.integers(0, 1000),
)
@examples(500)
def test_every_sample_comes_once(sizes: list[int], **options: Any) -> None:
    """Positions and samples correspond one to one, whatever the shards, streams, buffer, seed and epoch."""
    expected = [(shard, record) for shard, size in enumerate(sizes) for record in range(size)]
    assert sorted(order(ShufflePlan(sizes, **options))) == expected


@given(sizes=SIZES, buffer=st.integers(1, 5000), seed=SEEDS)
def test_without_shuffling_one_stream_is_the_manifest_order(sizes: list[int], buffer: int, seed: int) -> None:
    """`shuffle=False` with one stream reads the shards and records as they lie."""
    expected = [(shard, record) for shard, size in enumerate(sizes) for record in range(size)]
    assert order(ShufflePlan(sizes, seed=seed, epoch=3, buffer=buffer, shuffle=False)) == expected


@given(sizes=SIZES, streams=st.integers(1, 12))
def test_streams_cut_the_order_into_even_pieces(sizes: list[int], streams: int) -> None:
    """Position p is in stream p % C; the streams are contiguous pieces of the order, and the longer ones come first."""
    plan = ShufflePlan(sizes, seed=0, epoch=0, streams=streams, shuffle=False)
    place_of = {sample: place for place, sample in enumerate(order(ShufflePlan(sizes, seed=0, epoch=0, shuffle=False)))}
    places = [place_of[sample] for sample in order(plan)]
    by_stream = [places[stream::streams] for stream in range(streams)]
    assert list(itertools.chain(*by_stream)) == list(range(plan.length))
    lengths = [len(stream) for stream in by_stream]
    assert lengths == [plan.stream_length(stream) for stream in range(streams)] == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1


@given(plan_seed=SEEDS, sizes=SIZES, streams=st.integers(1, 9), buffer=st.integers(1, 600))
@examples(100)
def test_shuffled_streams_stay_contiguous(plan_seed: int, sizes: list[int], streams: int, buffer: int) -> None:
    """Windows move samples within their stream only: each stream reads a stretch of the shuffled shards."""
    options: dict[str, Any] = {"seed": plan_seed, "epoch": 0}
    place_of = {sample: place for place, sample in enumerate(order(ShufflePlan(sizes, **options)))}
    located = order(ShufflePlan(sizes, streams=streams, buffer=buffer, **options))
    start = 0
    for stream in range(streams):
        places = sorted(place_of[sample] for sample in located[stream::streams])
        assert places == list(range(start, start + len(places)))
        start += len(places)


@given(sizes=SIZES, seed=SEEDS, streams=st.integers(1, 9), buffer=st.integers(1, 600))
@examples(100)
def test_shard_affine_streams_keep_their_samples(sizes: list[int], seed: int, streams: int, buffer: int) -> None:
    """A shard-affine order has the same samples in a stream in every epoch, so that a rank reads the same shards."""
    options: dict[str, Any] = {"seed": seed, "streams": streams, "buffer": buffer, "shard_affinity": True}
    first, later = (order(ShufflePlan(sizes, epoch=epoch, **options)) for epoch in (0, 8))
    for stream in range(streams):
        assert sorted(first[stream::streams]) == sorted(later[stream::streams])


def test_shard_affine_streams_change_the_order_of_their_shards() -> None:
    """A shard-affine order is another one in every epoch."""
    shards = [
        tuple(
            shard for shard, _ in order(ShufflePlan([1] * 64, seed=0, epoch=epoch, streams=2, shard_affinity=True))[::2]
        )
        for epoch in range(4)
    ]
    assert len(set(shards)) == 4


@pytest.mark.parametrize("buffer", [2, 10, 255, 256, 257, 512, 700, 1000, 1024, 5000])
@pytest.mark.parametrize("length", [1, 255, 256, 257, 767, 768, 769, 6000])
def test_samples_stay_in_their_window(buffer: int, length: int) -> None:
    """A buffer's positions hold exactly that buffer's samples; windows begin at 256 and double up to the full one."""
    offsets = offsets_of_a_stream(length, buffer)
    for start, stop in window_bounds(buffer, length):
        assert sorted(offsets[start:stop]) == list(range(start, stop))


def test_windows_are_shuffled() -> None:
    """Each buffer is mixed to its far ends, and no two windows in the same way."""
    offsets = np.array(offsets_of_a_stream(8192, 1024))
    moves = []
    for start, stop in window_bounds(1024, 8192):
        move = offsets[start:stop] - np.arange(start, stop)
        assert abs(move).max() > 0.7 * (stop - start)
        moves.append(tuple(move))
    assert len(set(moves)) == len(moves)


def test_windows_of_one_keep_the_records_in_order() -> None:
    """With `buffer=1` only the shards are shuffled."""
    located = order(ShufflePlan([4] * 20, seed=0, epoch=0, buffer=1))
    shards = [shard for shard, _ in located[::4]]
    assert located == [(shard, record) for shard in shards for record in range(4)]
    assert shards != sorted(shards)


def test_first_batch_touches_the_head_of_one_shard_per_stream() -> None:
    """The epoch's first batch waits for few samples, although a full buffer spans very many shards."""
    plan = ShufflePlan([100] * 2000, seed=0, epoch=0, streams=4, buffer=16384)
    shards, records = plan.locate(np.arange(128))
    assert len(set(shards.tolist())) == 4
    assert set(records.tolist()) == set(range(32))
    shards, _ = plan.locate(np.arange(100_000, 100_256))
    assert len(set(shards.tolist())) > 100


@pytest.mark.parametrize("sizes", [[256], [2000], [2048, 952], [256] * 40])
def test_later_epochs_begin_with_other_samples(sizes: list[int]) -> None:
    """From the second epoch on, those that come first in one are, in the next, wherever chance puts them."""
    total, firsts, places = sum(sizes), list[set[tuple[int, int]]](), list[list[int]]()
    for epoch in range(1, 41):
        located = order(ShufflePlan(sizes, seed=0, epoch=epoch, streams=8, buffer=1024))
        firsts.append(set(located[: total // 8]))
        places.append(np.argsort([record + 4096 * shard for shard, record in located]).tolist())
    common = [len(one & other) / len(one) for one, other in itertools.pairwise(firsts)]
    assert 0.10 < np.mean(common) < 0.15
    correlations = [np.corrcoef(one, other)[0, 1] for one, other in itertools.pairwise(places)]
    assert abs(np.mean(correlations)) < 0.05


def test_in_later_epochs_all_samples_of_a_small_set_meet() -> None:
    """Each sample is next to each other, and on each of two ranks, about as often as chance has it."""
    met, on_rank, epochs = np.zeros((64, 64), dtype=np.int64), np.zeros(64, dtype=np.int64), 4000
    for epoch in range(1, epochs + 1):
        _, records = ShufflePlan([64], seed=0, epoch=epoch, streams=8, buffer=8192).locate(np.arange(64))
        met[records[:-1], records[1:]] += 1
        on_rank[records[::2]] += 1
    expected = epochs / 64
    assert 0.4 * expected < met[~np.eye(64, dtype=np.bool_)].min() <= met.max() < 1.7 * expected
    assert abs(on_rank / epochs - 0.5).max() < 0.05


def test_streams_by_default() -> None:
    """Each rank has eight streams; without shuffling one stream keeps the manifest's order."""
    assert default_streams(4) == 32


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    """Another epoch or seed is another order, and epoch 1 of seed 0 is not epoch 0 of seed 1."""
    orders = [
        tuple(order(ShufflePlan([40] * 40, seed=seed, epoch=epoch, buffer=256)))
        for seed in range(5)
        for epoch in range(5)
    ]
    assert len(set(orders)) == 25
    shard_orders = [tuple(dict(located)) for located in orders]
    assert len(set(shard_orders)) == 25


@given(plan=plans(), data=st.data())
@examples(150)
def test_what_was_asked_before_does_not_matter(plan: ShufflePlan, data: st.DataObject) -> None:
    """Any positions, in any order, repeated or alone, are located as in the whole epoch."""
    if not plan.length:
        return
    whole = order(plan)
    for _ in range(4):
        asked = data.draw(st.lists(st.integers(0, plan.length - 1), max_size=30))
        shards, records = plan.locate(np.array(asked, dtype=np.int64))
        assert list(zip(shards.tolist(), records.tolist(), strict=True)) == [whole[position] for position in asked]


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint32, np.uint64])
def test_positions_of_any_integer_type(dtype: type[np.generic]) -> None:
    """The integer type of the positions changes nothing, and the answers are int64."""
    plan = ShufflePlan([2**31, 2**31, 2**31], seed=0, epoch=0, streams=3, buffer=100)
    positions = np.array([0, 1, 2, 77, 2**31 - 2])
    expected = plan.locate(positions)
    for found, wanted in zip(plan.locate(positions.astype(dtype)), expected, strict=True):
        assert found.dtype == np.int64
        assert found.tolist() == wanted.tolist()


def test_asking_leaves_the_positions_alone() -> None:
    """`locate` does not write into its argument, and gives arrays that the caller may write into."""
    plan = ShufflePlan([50, 50], seed=0, epoch=0, streams=2, buffer=64)
    positions = np.arange(100)
    before = plan.locate(positions)
    for array in plan.locate(positions):
        array[:] = -1
    assert positions.tolist() == list(range(100))
    assert [array.tolist() for array in plan.locate(positions)] == [array.tolist() for array in before]


def test_no_samples_is_an_empty_epoch() -> None:
    """A split without shards, and one whose shards are empty, has length 0 and locates nothing."""
    for sizes in ([], [0, 0]):
        plan = ShufflePlan(sizes, seed=0, epoch=0, streams=2, buffer=10)
        assert plan.length == plan.stream_length(0) == 0
        assert [len(array) for array in plan.locate(np.arange(0))] == [0, 0]


def test_a_billion_samples() -> None:
    """At 10^9 samples in 5·10^5 shards, the batch at 99 % takes the memory of the shards and of a buffer per stream."""
    tracemalloc.start()
    try:
        plan = ShufflePlan(np.full(500_000, 2000), seed=0, epoch=90, streams=8, buffer=16384)
        positions = np.arange(990_000_000, 990_002_048)
        shards, records = plan.locate(positions)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert plan.length == 10**9
    assert len(set(zip(shards.tolist(), records.tolist(), strict=True))) == 2048
    assert ((shards >= 0) & (shards < 500_000) & (records >= 0) & (records < 2000)).all()
    assert peak_bytes < 64 * 2**20


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"streams": 0}, "streams must be 1 or more, found 0"),
        ({"buffer": 0}, "buffer must be 1 or more, found 0"),
        ({"epoch": -1}, "epoch must be 0 or more, found -1"),
        ({"streams": 2**20 + 1}, "streams must be 1,048,576 or less"),
        ({"buffer": 2**63}, "buffer must be 1,099,511,627,776 or less"),
    ],
)
def test_wrong_values_are_named(wrong: dict[str, int], named: str) -> None:
    """A value out of its range is a ConfigError that names it."""
    with pytest.raises(ConfigError, match=named):
        ShufflePlan([10], **{"seed": 0, "epoch": 0, **wrong})


def needs_by_looking(
    plan: ShufflePlan, streams: int, buffer: int, rank: int, world_size: int
) -> list[tuple[int, int, int]]:
    """What `needs` says, from where every sample is: shards with the bounds of the windows of a stream they lie in.

    With a buffer of 0, the epoch is one window.
    """
    shards, _ = plan.locate(np.arange(plan.length))
    if not buffer:
        return [(shard, 0, plan.length) for shard in np.unique(shards).tolist()]
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    common = math.gcd(streams, world_size)
    for stream in range(rank % common, streams, common):
        for begin, end in window_bounds(buffer, plan.stream_length(stream)):
            for shard in np.unique(shards[stream::streams][begin:end]).tolist():
                found.setdefault((stream, shard), []).append(
                    (begin * streams + stream, (end - 1) * streams + stream + 1)
                )
    return [(shard, bounds[0][0], bounds[-1][1]) for (_, shard), bounds in found.items()]


@given(
    sizes=st.one_of(SIZES, st.lists(st.integers(200, 900), min_size=1, max_size=5)),
    streams=st.integers(1, 40),
    buffer=st.one_of(st.integers(1, 40), st.integers(200, 2000)),
    shuffle=st.booleans(),
    shard_affinity=st.booleans(),
    epoch=st.integers(0, 1),
    topology=st.integers(1, 9).flatmap(lambda world: st.tuples(st.integers(0, world - 1), st.just(world))),
)
@examples(300)
def test_needs_are_what_locating_every_position_finds(
    sizes: list[int],
    streams: int,
    buffer: int,
    shuffle: bool,
    shard_affinity: bool,
    epoch: int,
    topology: tuple[int, int],
) -> None:
    """`needs` names, in order, each shard of each stream that a rank reads, from its first buffer to its last."""
    plan = ShufflePlan(
        sizes, seed=3, epoch=epoch, streams=streams, buffer=buffer, shuffle=shuffle, shard_affinity=shard_affinity
    )
    if not shuffle:
        buffer = 1
    elif epoch and buffer > 1 and not shard_affinity and sum(sizes) <= min(8, streams) * buffer:
        buffer = 0
    needed = list(zip(*(column.tolist() for column in plan.needs(*topology)), strict=True))
    assert sorted(needed) == sorted(needs_by_looking(plan, streams, buffer, *topology))
    assert [begin for _, begin, _ in needed] == sorted(begin for _, begin, _ in needed)


def test_shards_of_a_window_are_needed_in_their_order() -> None:
    """The many shards that begin with the same buffer are needed in the order in which they lie in the stream."""

    def by_stream(buffer: int) -> list[list[int]]:
        shards, begins, _ = ShufflePlan([1] * 600, seed=0, epoch=0, streams=3, buffer=buffer).needs(0, 1)
        return [shards[begins % 3 == stream].tolist() for stream in range(3)]

    assert by_stream(128) == by_stream(1)


def stored_sample(sizes: list[int], streams: int, position: int) -> tuple[int, int]:
    """The shard and record at a position of an order without shuffling, in Python's integers of any size."""
    total = sum(sizes)
    stream, offset = position % streams, position // streams
    stream = stream * (total // streams) + min(stream, total % streams) + offset
    shard = bisect.bisect_right(list(itertools.accumulate(sizes)), stream)
    return shard, stream - sum(sizes[:shard])


@given(
    sizes=st.lists(st.integers(1, 2**40), min_size=1, max_size=6),
    seed=st.integers(-(2**70), 2**70),
    epoch=st.integers(0, 2**63 - 1),
    streams=st.integers(1, 2**10),
    buffer=st.sampled_from([1, 2, 8192, 2**14]),
    order=st.sampled_from(["stored", "shuffled", "shard_affinity"]),
    data=st.data(),
)
@examples(100)
def test_extreme_numbers_do_not_overflow(
    sizes: list[int], seed: int, epoch: int, streams: int, buffer: int, order: str, data: st.DataObject
) -> None:
    """With shards of up to 2**40 samples, and any epoch, positions are those of arithmetic without bounds."""
    options: dict[str, Any] = {"shuffle": order != "stored", "shard_affinity": order == "shard_affinity"}
    plan = ShufflePlan(sizes, seed=seed, epoch=epoch, streams=streams, buffer=buffer, **options)
    length = sum(sizes)
    assert plan.length == length
    drawn = data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=5))
    positions = sorted({*drawn, 0, length - 1, *range(max(0, length - streams - 2), length, max(1, streams // 2))})
    shards, records = (found.tolist() for found in plan.locate(np.array(positions)))
    assert len(set(zip(shards, records, strict=True))) == len(positions)
    assert all(0 <= record < sizes[shard] for shard, record in zip(shards, records, strict=True))
    if order == "stored":
        expected = [stored_sample(sizes, streams, position) for position in positions]
        assert list(zip(shards, records, strict=True)) == expected
    for rank, world_size in ((0, 1), (2**20 - 1, 2**20)):
        spans = list(zip(*(part.tolist() for part in plan.needs(rank, world_size)), strict=True))
        for position, shard in zip(positions, shards, strict=True):
            if position % world_size == rank:
                assert any(shard == needed and begin <= position < end for needed, begin, end in spans)
        assert all(0 <= begin < end <= length for _, begin, end in spans)


@pytest.mark.parametrize("buffer", [2**20, 2**40])
def test_a_window_larger_than_the_split_is_the_split(buffer: int) -> None:
    """Windows that are larger than a stream shuffle it as a whole, whatever their size."""
    plan = ShufflePlan([7, 5, 9], seed=1, epoch=2, streams=2, buffer=buffer)
    assert sorted(order(plan)) == [(shard, record) for shard, size in enumerate([7, 5, 9]) for record in range(size)]
    assert all(end <= 21 for end in plan.needs(0, 1)[2].tolist())


def test_default_streams_of_very_many_ranks() -> None:
    """Each rank has the same number of streams, also where there are too many ranks for eight."""
    assert default_streams(131_072) == 2**20
    assert default_streams(400_000) == 800_000
