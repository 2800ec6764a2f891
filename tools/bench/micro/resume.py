"""The cost of going on in the middle of an epoch: on paper for 10^9 samples, and for real with a Loader.

The first table builds the plan of 5·10^5 shards of 2,000 samples, as one of 64 ranks does, and finds the shards and
records of the first batch; no dataset is needed for that. The second loads a state into a new Loader over 20,000 real
JPEGs in 200 shards and waits for the first batch.
"""

from __future__ import annotations

import os
import tempfile
import time
import tracemalloc
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image

import shardflow
from bench.report import markdown
from bench.usage import medians
from shardflow.order.rank_partition import RankPartition
from shardflow.order.shuffle_plan import ShufflePlan

SHARDS, SHARD_SAMPLES = 500_000, 2000
WORLD, BATCH = 64, 256
ORDERS = ((64, 16384), (512, 8192))
"""Streams and buffer: one stream per rank, and the defaults' eight."""
REAL_SAMPLES, REAL_SHARD_SAMPLES, REAL_BATCH = 20_000, 100, 64
PLACES = (0.0, 0.5, 0.99)


def measure(rounds: int) -> str:
    """Return both tables."""
    return f"{on_paper(rounds)}\n{for_real(rounds)}"


def on_paper(rounds: int) -> str:
    """Return the table for 10^9 samples."""
    cases = [(*order, place) for order in ORDERS for place in PLACES]
    rounds_of_times = [[first_batch(*case) for case in cases] for _ in range(rounds)]
    times = dict(zip(cases, zip(*rounds_of_times, strict=True), strict=True))
    lines = []
    for (streams, buffer, place), found in times.items():
        build_s, find_s, shards = map(median, zip(*found, strict=True))
        tracemalloc.start()  # apart from the timing, which it would slow down
        first_batch(streams, buffer, place)
        mib = tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
        costs = (f"{1000 * build_s:.0f} ms", f"{1000 * find_s:.1f} ms", f"{mib:.0f} MiB", f"{shards:.0f}")
        lines.append((f"{streams}, {buffer}", f"{place:.0%}", *costs))
    columns = ("build the plan", "find the first batch", "peak memory", "shards of that batch")
    return markdown(("streams, buffer", "place in the epoch", *columns), lines)


def first_batch(streams: int, buffer: int, place: float) -> tuple[float, float, int]:
    """Build a plan and find a rank's first batch at a place in the epoch: seconds for each, and distinct shards."""
    begin = time.perf_counter()
    plan = ShufflePlan(np.full(SHARDS, SHARD_SAMPLES), seed=0, epoch=3, streams=streams, buffer=buffer)
    built = time.perf_counter()
    partition = RankPartition(length=plan.length, batch_size=BATCH, rank=5, world_size=WORLD)
    first = int(place * plan.length) // partition.global_batch * partition.global_batch
    shards, _ = plan.locate(partition.positions(first, 0)[0])
    return built - begin, time.perf_counter() - built, len(np.unique(shards))


def for_real(rounds: int) -> str:
    """Return the table for a real dataset."""
    ways = [(streams // WORLD, buffer, workers) for streams, buffer in ORDERS for workers in (0, 2)]
    with tempfile.TemporaryDirectory() as folder:
        url = write_dataset(Path(folder))
        cases = {(way, place): partial(resume_s, url, place, *way) for way in ways for place in PLACES}
        found = medians(cases, rounds)
    lines = []
    for streams, buffer, workers in ways:
        times = (f"{1000 * found[(streams, buffer, workers), place]:.0f} ms" for place in PLACES)
        lines.append((f"{streams}, {buffer}", str(workers), *times))
    return markdown(("streams, buffer", "workers", *map("{:.0%}".format, PLACES)), lines)


def write_dataset(root: Path) -> Path:
    """Pack tiny JPEGs, which are links to a single one, into many shards."""
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    images = root / "images" / "train" / "all"
    images.mkdir(parents=True)
    Image.fromarray(pixels).save(root / "image.jpg")
    for number in range(REAL_SAMPLES):
        os.link(root / "image.jpg", images / f"{number:06}.jpg")
    shardflow.pack(root / "images", root / "tiny", format="keep", shard_samples=REAL_SHARD_SAMPLES)
    return root / "tiny"


def resume_s(url: Path, place: float, streams: int, buffer: int, workers: int) -> float:
    """Return the seconds that `load_state_dict` and the first batch take in a new loader."""
    loader = shardflow.Loader(
        url,
        batch_size=REAL_BATCH,
        decoder=shardflow.decoders.CenterCrop(32),
        shuffle=shardflow.Shuffle(streams=streams, buffer=buffer),
        num_workers=shardflow.Workers(workers, persistent_workers=False),
    )
    position = int(place * len(loader)) * REAL_BATCH
    state = {**loader.state_dict(), "position": position}
    begin = time.perf_counter()
    loader.load_state_dict(state)
    batches = iter(loader)
    next(batches)
    seconds = time.perf_counter() - begin
    assert loader.state_dict()["position"] == position + REAL_BATCH
    batches.close()
    return seconds
