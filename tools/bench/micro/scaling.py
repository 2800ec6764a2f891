"""How the loader's CPU time per image changes as batches, workers, shards and datasets grow: flat is the goal.

Each table changes one thing of a loader with two workers, batches of 64, shards of 500 and a dataset of 4,000. Larger
datasets are the same files again under other names, so that what grows is planning and opening.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

import shardflow
from bench.loaders.peers.shardflow import prepare
from bench.report import markdown
from bench.usage import epoch_us, medians
from shardflow.formats.manifest import FILE_NAME

IMAGES = 6400
BATCHES, WORKERS, SHARDS, SIZES = (16, 64, 256, 640), (0, 1, 2, 4), (50, 500, 2000), (4_000, 100_000, 2_000_000)


def measure(url: str, rounds: int) -> str:
    """Return the tables."""
    torch.set_num_threads(1)
    dataset = Path(url)
    pictures = dataset.parents[1] / "pictures"
    with tempfile.TemporaryDirectory(dir=dataset.parent) as scratch:  # beside it, so that links are possible
        by_shards = {samples: Path(scratch, f"shards{samples}") for samples in SHARDS}
        for samples, folder in by_shards.items():
            folder.mkdir()
            prepare(pictures, folder, samples)
        by_size = {size: {"url": repeated(dataset, Path(scratch, f"size{size}"), size)} for size in SIZES}
        tables = (
            ("batch size", {size: {"batch_size": size} for size in BATCHES}),
            ("workers", {count: {"num_workers": count} for count in WORKERS}),
            ("samples per shard", {samples: {"url": folder / "packed"} for samples, folder in by_shards.items()}),
            ("samples in the dataset", by_size),
        )
        return "\n".join(_table(title, cases, dataset, rounds) for title, cases in tables)


def repeated(source: Path, target: Path, samples: int) -> Path:
    """Make a dataset of so many samples from the shards of a smaller one, as links."""
    (target / "train").mkdir(parents=True)
    manifest = shardflow.open(source).manifest
    shards, longer = manifest.splits["train"], []
    for number in range(samples * len(shards) // manifest.samples):
        shard = shards[number % len(shards)]
        longer.append(dataclasses.replace(shard, name=f"train/{number:06d}.tar"))
        os.link(source / shard.name, target / longer[-1].name)
        os.link(source / shard.index_name, target / longer[-1].index_name)
    changed = {"splits": {"train": tuple(longer)}, "inputs": sum(shard.samples for shard in longer)}
    manifest = dataclasses.replace(manifest, **changed, statistics=None, sharding=None)
    (target / FILE_NAME).write_bytes(manifest.to_bytes())
    return target


def _table(title: str, cases: Mapping[int, dict[str, Any]], url: Path, rounds: int) -> str:
    """Return the CPU time per image of all processes, over epochs of some 6,400 images."""
    epochs = {}
    for value, changed in cases.items():
        options: dict[str, Any] = {"url": url, "batch_size": 64, "num_workers": 2, **changed}
        images = IMAGES // options["batch_size"] * options["batch_size"]
        epochs[value] = partial(epoch_us, shardflow.Loader(samples_per_epoch=images, **options))
    spent = medians(epochs, rounds)
    return markdown((title, *map("{:,}".format, spent)), [("µs per image", *map("{:.0f}".format, spent.values()))])
