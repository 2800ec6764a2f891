"""How well streams and buffer mix, against a full shuffle and webdataset's shuffle buffer.

Index arithmetic alone: 1,281,167 samples of 1,000 equal classes in shards of 2,048, as ImageNet would be packed, and no
image is read. The orders compared are real: shardflow's plan, and the stages of the webdataset library itself.

Class noise is the measure that training feels. It is the variance of a batch's class counts as a multiple of what it is
under a full shuffle (chi-square over its degrees of freedom). A batch of 256 with noise 4 tells as much about the mean
over the classes as 64 samples that were drawn at random.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import webdataset as wds

from bench.report import markdown
from shardflow.order import keyed_rng
from shardflow.order.rank_partition import RankPartition
from shardflow.order.shuffle_plan import ShufflePlan
from shardflow.order.shuffle_settings import BUFFER, STREAMS_PER_RANK
from shardflow.preview import mixing

I64 = npt.NDArray[np.int64]

SAMPLES = 1_281_167
SHARD_SAMPLES = 2048
CLASSES = 1000
BATCH = 256
STREAMS = (1, 8, 64)
WINDOWS = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
DEFAULT = (STREAMS_PER_RANK, BUFFER)
"""Streams of a rank, and buffer; docs/performance.md argues for them."""
WORKERS = 8
"""Worker processes per rank for webdataset, whose order depends on them; shardflow's does not."""
HORIZONS = (10, 100)
"""Over how many successive steps classes are counted: momentum averages about 10, Adam's second moment 100 and more."""

SIZES = np.minimum(SHARD_SAMPLES, SAMPLES - np.arange(0, SAMPLES, SHARD_SAMPLES))
FIRST = np.cumsum(SIZES) - SIZES
CLASS_ORDERED = np.arange(SAMPLES) * CLASSES // SAMPLES
SHUFFLED = CLASS_ORDERED[keyed_rng.permutation(keyed_rng.key(0, "packing"), SAMPLES)]


def full_shuffle(world: int) -> I64:
    """Return the batches of a full shuffle: the sample numbers, shape [steps, world, BATCH]."""
    order = keyed_rng.permutation(keyed_rng.key(0, "full"), SAMPLES)
    return order[: SAMPLES // (world * BATCH) * world * BATCH].reshape(-1, world, BATCH)


def planned(world: int, streams: int, buffer: int, *, shard_affinity: bool = False) -> I64:
    """Return the batches of shardflow's plan: shape [steps, world, BATCH]."""
    plan = ShufflePlan(SIZES, seed=0, epoch=0, streams=streams, buffer=buffer, shard_affinity=shard_affinity)
    chunks = np.array_split(np.arange(SAMPLES), SAMPLES // 32768)
    order = np.concatenate([FIRST[shards] + records for shards, records in map(plan.locate, chunks)])
    partitions = [RankPartition(length=SAMPLES, batch_size=BATCH, rank=rank, world_size=world) for rank in range(world)]
    steps = range(partitions[0].steps())
    return np.stack([np.stack([order[rank.positions(0, step)[0]] for rank in partitions]) for step in steps])


def webdataset_stream(shards: list[int], seed: int) -> I64:
    """Return the sample numbers that one worker's webdataset pipeline yields: shardshuffle=100, shuffle(1000)."""

    def read(sources: Iterator[dict[str, Any]]) -> Iterator[int]:
        for source in sources:
            shard = int(source["url"])
            yield from range(FIRST[shard], FIRST[shard] + SIZES[shard])

    pipeline = wds.DataPipeline(
        wds.SimpleShardList([str(shard) for shard in shards]),
        wds.shuffle(100, rng=random.Random(seed)),
        read,
        wds.shuffle(1000, rng=random.Random(seed + 1)),
    )
    return np.fromiter(pipeline, dtype=np.int64)


def webdataset_batches(world: int) -> I64:
    """Return the batches of webdataset, its shards split by rank and by worker: shape [steps, world, BATCH]."""
    ranks = []
    for rank in range(world):
        workers = []
        for worker in range(WORKERS):
            stream = webdataset_stream(list(range(len(SIZES)))[rank::world][worker::WORKERS], 1000 * rank + 2 * worker)
            workers.append(stream[: len(stream) // BATCH * BATCH].reshape(-1, BATCH))
        in_turn = itertools.chain.from_iterable(itertools.zip_longest(*workers))
        ranks.append(np.stack([batch for batch in in_turn if batch is not None]))
    steps = min(map(len, ranks))
    return np.stack([batches[:steps] for batches in ranks], axis=1)


def class_noise(classes: I64) -> npt.NDArray[np.float64]:
    """Return the class noise of each row of an array of class numbers, shape [rows, samples]."""
    shares, parts = np.full(CLASSES, 1 / CLASSES), np.array_split(classes, len(classes) // 500 + 1)
    return np.concatenate([mixing.class_noise(rows, shares) for rows in parts])


def distinct(values: I64) -> float:
    """Return how many distinct values a row has, on average over the rows."""
    return 1 + float((np.diff(np.sort(values, axis=1), axis=1) > 0).sum(1).mean())


def open_shards(shards: I64) -> npt.NDArray[np.int64]:
    """Return, per step, how many shards a rank has begun and not ended; `shards` has the shape [steps, BATCH]."""
    steps = np.repeat(np.arange(len(shards)), shards.shape[1])
    begun, ended = np.full(len(SIZES), len(shards)), np.full(len(SIZES), -1)
    np.minimum.at(begun, shards.ravel(), steps)
    np.maximum.at(ended, shards.ravel(), steps)
    opened, closed = (np.bincount(at[ended >= 0], minlength=len(shards) + 1) for at in (begun, ended + 1))
    return np.cumsum(opened - closed)[:-1]


def mixing_of(world: int, name: str, batches: I64, *, streams: int = 0) -> list[str]:
    """Measure an order of sample numbers, shape [steps, world, BATCH], and return its line of the table.

    `streams` is the number of shards that a rank has open, where it is known; by default it is counted. The columns:
    shards that a rank has begun and not ended, on average and at most; shards that it needs for its first batch;
    distinct shards and classes of a rank's batch, and the class noise of a batch, of all ranks' batches of 10 and 100
    steps, and of the first 64 steps, all in class order; the noise had the samples been shuffled at packing; and how
    far samples move on average, as a multiple of a full shuffle's third of the dataset.
    """
    steps = len(batches)
    shards, classes = batches // SHARD_SAMPLES, CLASS_ORDERED[batches]
    live = [np.array([streams]) if streams else open_shards(shards[:, rank]) for rank in range(world)]
    by_step = class_noise(classes.reshape(-1, BATCH)).reshape(steps, world).mean(1)
    together = [class_noise(classes[: steps // count * count].reshape(steps // count, -1)) for count in HORIZONS]
    epoch = batches.ravel()
    return [
        str(world),
        name,
        f"{np.mean([rank.mean() for rank in live]):.0f} ({max(rank.max() for rank in live):.0f})",
        f"{distinct(shards[0]):.0f}",
        *(f"{distinct(values.reshape(-1, BATCH)):.1f}" for values in (shards, classes)),
        f"{by_step.mean():.1f}",
        *(f"{noise.mean():.1f}" for noise in together),
        f"{by_step[:64].mean():.1f}",
        f"{class_noise(SHUFFLED[batches].reshape(-1, BATCH)).mean():.2f}",
        f"{3 * np.abs(np.arange(len(epoch)) - epoch).mean() / SAMPLES:.2f}",
    ]


def measure() -> str:
    """Measure every order for every number of ranks, and return the table."""
    found = []
    for world in (1, 8):
        found.append(mixing_of(world, "full shuffle", full_shuffle(world)))
        found.append(mixing_of(world, "webdataset shuffle(1000)", webdataset_batches(world), streams=WORKERS))
        for streams, buffer in itertools.product(sorted({*STREAMS, DEFAULT[0] * world}), WINDOWS):
            name = f"{streams} stream{'s' * (streams > 1)}, buffer {buffer}"
            found.append(mixing_of(world, name, planned(world, streams, buffer)))
        batches = planned(world, DEFAULT[0] * world, DEFAULT[1], shard_affinity=True)
        found.append(mixing_of(world, f"{DEFAULT[0] * world} streams, buffer {DEFAULT[1]}, shard_affinity", batches))
    columns = "ranks|order|open shards (most)|first batch|shards / batch|classes / batch|noise, 1 step|10 steps"
    columns += "|100 steps|first 64 steps|shuffled at packing|displacement"
    return markdown(columns.split("|"), found)
