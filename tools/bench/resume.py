"""What it costs to go on in the middle of an epoch: on paper for 10^9 samples, and for real with a Loader.

    python tools/bench/resume.py

The first table builds the plan of 5·10^5 shards of 2,000 samples, as one of 64 ranks does, and finds the shards and
records of the first batch from there; no dataset is needed for that. The second loads a state into a new Loader over
20,000 real JPEGs in 200 shards and waits for the first batch. Places and loaders take turns, so that what else the
machine does falls on all of them alike; given are medians.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import shardflow
from shardflow.formats import shard_index, ustar
from shardflow.formats.manifest import FILE_NAME, Manifest, Shard
from shardflow.order.plan import Plan
from shardflow.order.schedule import Schedule
from shardflow.storage.local import LocalStorage

SHARDS, SHARD_SAMPLES = 500_000, 2000
WORLD, BATCH = 64, 256
ORDERS = ((64, 16384), (512, 8192))
"""Lanes and window: one lane per rank, and the defaults' eight."""
REAL_SHARDS, REAL_SHARD_SAMPLES, REAL_BATCH = 200, 100, 64
PLACES = (0.0, 0.5, 0.99)


def first_batch(lanes: int, window: int, place: float) -> tuple[float, float, int]:
    """Build a plan and find a rank's first batch at a place in the epoch: seconds for each, and distinct shards."""
    begin = time.perf_counter()
    plan = Plan(np.full(SHARDS, SHARD_SAMPLES), seed=0, epoch=3, lanes=lanes, window=window)
    built = time.perf_counter()
    schedule = Schedule(length=plan.length, batch_size=BATCH, rank=5, world_size=WORLD)
    first = int(place * plan.length) // schedule.global_batch * schedule.global_batch
    shards, _ = plan.locate(schedule.positions(first, 0)[0])
    return built - begin, time.perf_counter() - built, len(np.unique(shards))


def on_paper(repeats: int) -> str:
    """Return the table for 10^9 samples."""
    lines = [
        "| lanes, window | place in the epoch | build the plan | find the first batch | peak memory | its shards |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    cases = [(*order, place) for order in ORDERS for place in PLACES]
    times: dict[Any, list[tuple[float, float, int]]] = {case: [] for case in cases}
    for _ in range(repeats):
        for case in cases:
            times[case].append(first_batch(*case))
    for case in cases:
        build_ms, find_ms = (1000 * statistics.median(column) for column in list(zip(*times[case], strict=True))[:2])
        tracemalloc.start()  # apart from the timing, which it would slow down
        first_batch(*case)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        lanes, window, place = case
        lines.append(
            f"| {lanes}, {window} | {place:.0%} | {build_ms:.0f} ms | {find_ms:.1f} ms | {peak_bytes / 2**20:.0f} MiB "
            f"| {times[case][0][2]} |"
        )
    return "\n".join(lines)


def write_dataset(root: Path) -> Path:
    """Write tiny labelled JPEGs as a dataset of many shards."""
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    store, lines = LocalStorage(root), []
    for number in range(REAL_SHARDS):
        tar, rows = bytearray(), []
        for record in range(REAL_SHARD_SAMPLES):
            sample = number * REAL_SHARD_SAMPLES + record
            for part, payload in (("cls", str(sample).encode()), ("jpg", buffer.getvalue())):
                tar += ustar.header(f"{sample:09}.{part}", len(payload))
                rows.append(shard_index.make_row(record, part, len(tar), payload))
                tar += payload + bytes(ustar.padding(len(payload)))
        tar += ustar.END
        index = shard_index.to_bytes(shard_index.from_rows(rows))
        shard = Shard(
            name=f"train/{number:06}.tar",
            samples=REAL_SHARD_SAMPLES,
            bytes=len(tar),
            sha256=hashlib.sha256(tar).hexdigest(),
            index_sha256=hashlib.sha256(index).hexdigest(),
        )
        store.put(shard.name, bytes(tar))
        store.put(shard.index_name, index)
        lines.append(shard)
    samples = REAL_SHARDS * REAL_SHARD_SAMPLES
    classes = tuple(f"class{number}" for number in range(samples))
    store.put_new(FILE_NAME, Manifest(splits={"train": tuple(lines)}, classes=classes, inputs=samples).to_bytes())
    return root


def resume(url: Path, place: float, options: dict[str, Any]) -> float:
    """Return the seconds that `load_state_dict` and the first batch take in a new loader."""
    loader = shardflow.Loader(
        url, batch_size=REAL_BATCH, decoder=shardflow.CenterCropDecoder(32), persistent_workers=False, **options
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


def for_real(repeats: int) -> str:
    """Return the table for a real dataset."""
    lines = [
        "| lanes, window | workers | " + " | ".join(f"{place:.0%}" for place in PLACES) + " |",
        "| --- | ---: |" + " ---: |" * len(PLACES),
    ]
    cases = [
        {"shuffle": shardflow.Shuffle(lanes=lanes // WORLD, window=window), "num_workers": workers}
        for lanes, window in ORDERS
        for workers in (0, 2)
    ]
    with tempfile.TemporaryDirectory() as folder:
        url = write_dataset(Path(folder) / "tiny")
        measured = _in_turn(
            repeats, [lambda case=case, place=place: resume(url, place, case) for case in cases for place in PLACES]
        )
    for number, case in enumerate(cases):
        own = measured[number * len(PLACES) : (number + 1) * len(PLACES)]
        cells = " | ".join(f"{1000 * seconds:.0f} ms" for seconds in own)
        lines.append(f"| {case['shuffle'].lanes}, {case['shuffle'].window} | {case['num_workers']} | {cells} |")
    return "\n".join(lines)


def _in_turn(repeats: int, jobs: list[Callable[[], float]]) -> list[float]:
    """Run all jobs once unmeasured and then again and again in turn; return each one's median."""
    rounds = [[job() for job in jobs] for _ in range(repeats + 1)][1:]
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


def main() -> None:
    """Measure and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15, help="how often each case is measured")
    repeats = parser.parse_args().repeats
    print(on_paper(repeats), for_real(repeats), sep="\n\n")


if __name__ == "__main__":
    main()
