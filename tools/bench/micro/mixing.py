"""How well lanes and window mix, against a full shuffle and webdataset's shuffle buffer.

Index arithmetic alone: 1,281,167 samples of 1,000 equal classes in shards of 2,048, as ImageNet would be packed, and no
image is read. The orders compared are real: shardflow's plan, and the stages of the webdataset library itself.

Class noise is the measure that training feels. It is the variance of a batch's class counts as a multiple of what it is
under a full shuffle (chi-square over its degrees of freedom). A batch of 256 with noise 4 tells as much about the mean
over the classes as 64 samples that were drawn at random.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import webdataset as wds

from bench.report import markdown
from shardflow.order import keyed_rng
from shardflow.order.plan import Plan
from shardflow.order.schedule import Schedule
from shardflow.order.shuffle import LANES_PER_RANK, WINDOW
from shardflow.preview import mixing

I64 = npt.NDArray[np.int64]

SAMPLES = 1_281_167
SHARD_SAMPLES = 2048
CLASSES = 1000
BATCH = 256
LANES = (1, 8, 64)
WINDOWS = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
DEFAULT = (LANES_PER_RANK, WINDOW)
"""Lanes of a rank, and window; docs/mixing.md argues for them."""
WORKERS = 8
"""Worker processes per rank for webdataset, whose order depends on them; shardflow's does not."""
HORIZONS = (1, 2, 4, 8, 10, 16, 32, 64, 100, 128, 256)
"""Over how many successive steps classes are counted: momentum averages about 10, Adam's second moment 100 and more."""

SIZES = np.minimum(SHARD_SAMPLES, SAMPLES - np.arange(0, SAMPLES, SHARD_SAMPLES))
FIRST = np.cumsum(SIZES) - SIZES
CLASS_ORDERED = np.arange(SAMPLES) * CLASSES // SAMPLES
SHUFFLED = CLASS_ORDERED[keyed_rng.permutation(keyed_rng.key(0, "packing"), SAMPLES)]


def full_shuffle(world: int) -> I64:
    """Return the batches of a full shuffle: the sample numbers, shape [steps, world, BATCH]."""
    order = keyed_rng.permutation(keyed_rng.key(0, "full"), SAMPLES)
    return order[: SAMPLES // (world * BATCH) * world * BATCH].reshape(-1, world, BATCH)


def planned(world: int, lanes: int, window: int, *, sticky: bool = False) -> I64:
    """Return the batches of shardflow's plan: shape [steps, world, BATCH]."""
    plan = Plan(SIZES, seed=0, epoch=0, lanes=lanes, window=window, sticky=sticky)
    chunks = np.array_split(np.arange(SAMPLES), SAMPLES // 32768)
    order = np.concatenate([FIRST[shards] + records for shards, records in map(plan.locate, chunks)])
    schedules = [Schedule(length=SAMPLES, batch_size=BATCH, rank=rank, world_size=world) for rank in range(world)]
    steps = range(schedules[0].steps())
    return np.stack([np.stack([order[rank.positions(0, step)[0]] for rank in schedules]) for step in steps])


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


def mixing_of(name: str, batches: I64, *, lanes: int = 0, window: int = 0, streams: int = 0) -> dict[str, Any]:
    """Measure an order of sample numbers, shape [steps, world, BATCH]; `lanes` are those of all ranks.

    `streams` is the number of shards that a rank has open, where it is known; by default it is counted.

    Returns:
        name, world, lanes, window
        open_mean, open_most: Shards a rank has begun and not ended, over the steps of the epoch.
        first_shards: Shards that a rank needs for its first batch.
        shards, classes: Distinct ones in a rank's batch, on average, in class order.
        noise: Horizon in steps → class noise of the global batches of that many steps, in class order.
        rank_noise, early_noise: Class noise of single batches of a rank, over the epoch and over its first 64 steps.
        packed_noise: The same over the epoch, had the samples been shuffled at packing.
        start: Class noise of a rank's batches, over each 8 of the first 320 steps.
        displacement: Mean of |position in the epoch - position in storage| / N.
        moved_less: Share of the samples whose displacement is below each hundredth.
    """
    steps, world, _ = batches.shape
    shards, classes = batches // SHARD_SAMPLES, CLASS_ORDERED[batches]
    live = [np.array([streams]) if streams else open_shards(shards[:, rank]) for rank in range(world)]
    noise = {}
    for horizon in HORIZONS:
        if (whole := steps // horizon) > 1:
            noise[horizon] = float(class_noise(classes[: whole * horizon].reshape(whole, -1)).mean())
    by_step = class_noise(classes.reshape(-1, BATCH)).reshape(steps, world).mean(1)
    epoch = batches.ravel()
    displacement = np.sort(np.abs(np.arange(len(epoch)) - epoch)) / SAMPLES
    return {
        "name": name,
        "world": world,
        "lanes": lanes,
        "window": window,
        "open_mean": float(np.mean([rank.mean() for rank in live])),
        "open_most": int(max(rank.max() for rank in live)),
        "first_shards": distinct(shards[0]),
        "shards": distinct(shards.reshape(-1, BATCH)),
        "classes": distinct(classes.reshape(-1, BATCH)),
        "noise": noise,
        "rank_noise": float(by_step.mean()),
        "early_noise": float(by_step[:64].mean()),
        "packed_noise": float(class_noise(SHUFFLED[batches].reshape(-1, BATCH)).mean()),
        "start": by_step[:320].reshape(-1, 8).mean(1).tolist(),
        "displacement": float(displacement.mean()),
        "moved_less": (np.searchsorted(displacement, np.linspace(0, 1, 101)) / len(displacement)).tolist(),
    }


def measure(path: str) -> str:
    """Measure every order for every number of ranks; write what the chart needs, and return the table."""
    found = []
    for world in (1, 8):
        found.append(mixing_of("full shuffle", full_shuffle(world)))
        found.append(mixing_of("webdataset shuffle(1000)", webdataset_batches(world), streams=WORKERS))
        for lanes, window in itertools.product(sorted({*LANES, DEFAULT[0] * world}), WINDOWS):
            name = f"{lanes} lane{'s' * (lanes > 1)}, window {window}"
            found.append(mixing_of(name, planned(world, lanes, window), lanes=lanes, window=window))
        batches = planned(world, DEFAULT[0] * world, DEFAULT[1], sticky=True)
        name = f"{DEFAULT[0] * world} lanes, window {DEFAULT[1]}, sticky"
        found.append(mixing_of(name, batches, lanes=DEFAULT[0] * world, window=DEFAULT[1]))
    title = f"One epoch of {SAMPLES:,} samples of {CLASSES:,} classes in shards of {SHARD_SAMPLES:,}, packed in class "
    title += f"order unless said otherwise; one rank, batches of {BATCH}"
    one_rank = [one for one in found if one["world"] == 1 and not one["name"].endswith("sticky")]
    Path(path).write_text(json.dumps({"title": title, "lanes": LANES, "default": DEFAULT, "orders": one_rank}))
    return table(found)


def table(found: list[dict[str, Any]]) -> str:
    """Return the table, which is longer than the one in docs/mixing.md."""
    lines = [
        (
            str(one["world"]),
            one["name"],
            f"{one['open_mean']:.0f} ({one['open_most']:.0f})",
            f"{one['first_shards']:.0f}",
            *(f"{one[name]:.1f}" for name in ("shards", "classes", "rank_noise")),
            *(f"{noise:.1f}" for noise in (one["noise"][10], one["noise"][100], one["early_noise"])),
            f"{one['packed_noise']:.2f}",
            f"{3 * one['displacement']:.2f}",
        )
        for one in found
    ]
    columns = "ranks|order|open shards (most)|first batch|shards / batch|classes / batch|noise, 1 step|10 steps"
    columns += "|100 steps|first 64 steps|shuffled at packing|displacement"
    return markdown(columns.split("|"), lines)
