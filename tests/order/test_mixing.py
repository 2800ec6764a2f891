"""What docs/performance.md says of streams and buffer, as laws; measured there in full by tools/bench micro mixing."""

from __future__ import annotations

import functools
import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import webdataset as wds

import shardflow
from shardflow.order import keyed_rng
from shardflow.order.rank_partition import RankPartition
from shardflow.order.shuffle_plan import ShufflePlan
from tests.helpers.making import make_dataset

Batches = npt.NDArray[np.int64]

SHARD_SAMPLES = 2048
SHARDS = 200
SAMPLES = SHARDS * SHARD_SAMPLES
CLASSES = 400  # in storage order, two in each shard
BATCH = 256
SETTINGS = [(1, 16384), (8, 2048), (8, 8192)]


@functools.cache
def batches_of(world: int, streams: int, buffer: int, rank: int = 0) -> Batches:
    """The sample numbers of a rank's batches over an epoch, [steps, BATCH]."""
    plan = ShufflePlan([SHARD_SAMPLES] * SHARDS, seed=0, epoch=0, streams=streams, buffer=buffer)
    partition = RankPartition(length=SAMPLES, batch_size=BATCH, rank=rank, world_size=world)
    located = [plan.locate(partition.positions(0, step)[0]) for step in range(partition.steps())]
    return np.stack([shards * SHARD_SAMPLES + records for shards, records in located])


def shards_in(batches: Batches) -> list[int]:
    """How many shards each batch is drawn from."""
    return [len(np.unique(batch)) for batch in batches // SHARD_SAMPLES]


def class_noise(classes: Batches) -> float:
    """The variance of a batch's class counts, 1 for classes drawn at random: chi-square over its degrees of freedom."""
    counts = np.stack([np.bincount(batch, minlength=CLASSES) for batch in classes])
    expected = classes.shape[1] / CLASSES
    return float(((counts - expected) ** 2).sum(1).mean() / expected / (CLASSES - 1))


def after_ramp(streams: int, buffer: int, world: int) -> int:
    """The first step whose streams have come to windows of the full size."""
    return -(-buffer * streams // (BATCH * world))


@pytest.fixture(scope="module")
def defaults(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[int, int]]:
    """World size → streams and buffer that a loader takes when it is not told."""
    url = make_dataset(tmp_path_factory.mktemp("data") / "set", [40])
    found = {}
    for world in (1, 2):
        state = shardflow.Loader(url, batch_size=4, num_workers=0, group=(0, world)).state_dict()
        found[world] = (state["streams"], state["shuffle_buffer"])
    return found


@pytest.mark.parametrize("world", [1, 2])
def test_default_mixes_many_shards_into_a_batch(defaults: dict[int, tuple[int, int]], world: int) -> None:
    """With the default streams and buffer, a batch holds samples of as many shards as the rank's windows span."""
    streams, buffer = defaults[world]
    spanned = streams // world * buffer // SHARD_SAMPLES
    assert spanned >= 32
    mixed = shards_in(batches_of(world, streams, buffer)[after_ramp(streams, buffer, world) :])
    assert np.mean(mixed) >= 0.95 * spanned


def test_default_mixes_class_ordered_shards_better_than_a_shuffle_buffer(defaults: dict[int, tuple[int, int]]) -> None:
    """Over a whole epoch, batches are several times less noisy than webdataset's shuffle(1000) leaves them."""

    def read(sources: Iterator[dict[str, Any]]) -> Iterator[int]:
        for source in sources:
            yield from range(int(source["url"]) * SHARD_SAMPLES, (int(source["url"]) + 1) * SHARD_SAMPLES)

    names = [str(shard) for shard in range(SHARDS)]
    shuffles = [wds.shuffle(100, rng=random.Random(1)), read, wds.shuffle(1000, rng=random.Random(2))]
    buffered = np.fromiter(wds.DataPipeline(wds.SimpleShardList(names), *shuffles), dtype=np.int64)
    of_buffer = class_noise(buffered.reshape(-1, BATCH) * CLASSES // SAMPLES)
    of_default = class_noise(batches_of(1, *defaults[1]) * CLASSES // SAMPLES)
    assert of_default < of_buffer / 3


@pytest.mark.parametrize(("streams", "buffer"), SETTINGS)
def test_shuffled_at_packing_any_setting_is_a_full_shuffle(streams: int, buffer: int) -> None:
    """When the samples were shuffled as they were packed, class counts vary as in a full shuffle, with any setting."""
    packed = keyed_rng.permutation(keyed_rng.key(0, "packing"), SAMPLES) * CLASSES // SAMPLES
    assert class_noise(packed[batches_of(1, streams, buffer)]) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(("streams", "buffer"), SETTINGS)
def test_samples_move_as_far_as_in_a_full_shuffle(streams: int, buffer: int) -> None:
    """Between storage and epoch a sample moves by a third of the dataset on average, as under a full shuffle."""
    order = batches_of(1, streams, buffer).ravel()
    moved = np.abs(order - np.arange(len(order))) / SAMPLES
    assert moved.mean() == pytest.approx(1 / 3, rel=0.15)


def test_streams_mix_from_the_first_batch_on() -> None:
    """The first batch of an epoch is drawn from a shard of each stream: one from one, eight or more from eight."""
    assert shards_in(batches_of(1, 1, 16384)[:1])[0] <= 2
    assert 8 <= shards_in(batches_of(1, 8, 16384)[:1])[0] <= 16


@pytest.mark.parametrize(("streams", "buffer"), SETTINGS)
@pytest.mark.parametrize("world", [1, 2])
def test_open_shards_are_bounded(streams: int, buffer: int, world: int) -> None:
    """A rank has no more shards begun and not ended than its streams' windows span, and one or two at their edges."""
    streams *= world
    shards = batches_of(world, streams, buffer, rank=world - 1) // SHARD_SAMPLES
    steps = np.arange(len(shards))
    begun, ended = np.full(SHARDS, len(shards)), np.full(SHARDS, -1)
    for step in steps:
        begun[shards[step]] = np.minimum(begun[shards[step]], step)
        ended[shards[step]] = step
    most = max(int(((begun <= step) & (step <= ended)).sum()) for step in steps)
    assert most <= streams // world * (buffer // SHARD_SAMPLES + 2)


def test_a_rank_remembers_its_own_streams_alone() -> None:
    """What a plan remembers is one buffer for each stream that its rank reads, however far the epoch went."""
    world, streams, buffer = 8, 64, 4096
    plan = ShufflePlan([SHARD_SAMPLES] * SHARDS * 4, seed=0, epoch=0, streams=streams, buffer=buffer)
    assert plan.stream_length(0) > 2 * buffer
    partition = RankPartition(length=plan.length, batch_size=BATCH, rank=3, world_size=world)
    plan.locate(partition.positions(0, 0)[0])
    tracemalloc.start()
    try:
        for step in range(0, partition.steps(), 10):
            plan.locate(partition.positions(0, step)[0])
        kept_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept_bytes < streams // world * buffer * 8 + 50_000
