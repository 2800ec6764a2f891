"""Class counts of weighted epochs, and bytes that hosts fetch per epoch: the plan alone, without an image.

The classes are about as long-tailed as in ImageNet-LT (Liu et al., "Large-scale long-tailed recognition in an open
world", CVPR 2019): 1,000 classes with 1,280 images and less along a Pareto curve, shuffled into shards of 256.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.report import markdown
from shardflow.order import keyed_rng
from shardflow.order.plan import LANES_PER_RANK, WINDOW, Plan
from shardflow.order.weights import ShardWeights, Weights

I64 = npt.NDArray[np.int64]

CLASSES = 1000
LARGEST = 1280
SHARD_SAMPLES = 256
SAMPLES = 1_281_167
"""Of the dataset whose fetches are counted."""
EPOCHS = 5
POWERS = {"plain": 0.0, "sqrt": 0.5, "balanced": 1.0}
NODES = 8
CACHES = (0.25, 0.5)
"""Shares of the dataset for which a host has room."""


def class_sizes() -> I64:
    """Return the number of images of each class, the largest first."""
    ranks = np.arange(CLASSES)
    sizes: I64 = (LARGEST * (1 + ranks / 100) ** -2.05).astype(np.int64)
    return sizes


def class_counts(labels: I64, sizes: I64, power: float, epoch: int) -> I64:
    """Return how many images of each class an epoch has."""
    counts = np.bincount(labels, minlength=CLASSES)
    weights = counts**-power
    weights *= len(labels) / np.dot(weights, counts)
    plan = Plan(
        sizes,
        seed=0,
        epoch=epoch,
        lanes=LANES_PER_RANK,
        window=WINDOW,
        weights=ShardWeights(Weights(weights, labels), sizes),
    )
    shards, records = plan.locate(np.arange(plan.length))
    return np.bincount(labels[(np.cumsum(sizes) - sizes)[shards] + records], minlength=CLASSES)


def shard_sizes(samples: int) -> I64:
    """Return the number of samples of each shard."""
    return np.minimum(SHARD_SAMPLES, samples - np.arange(0, samples, SHARD_SAMPLES))


def fetched(sizes: I64, node: int, cache: float, *, sticky: bool) -> list[float]:
    """Return the share of the dataset that a host fetches in each epoch; the least recently used shard is evicted."""
    room, held, used = int(cache * sizes.sum()), OrderedDict[int, int](), 0
    shares = []
    for epoch in range(EPOCHS):
        plan = Plan(sizes, seed=0, epoch=epoch, lanes=NODES * LANES_PER_RANK, window=WINDOW, sticky=sticky)
        total = 0
        for shard in plan.needs(node, NODES)[0].tolist():
            if shard not in held:
                held[shard] = int(sizes[shard])
                total += held[shard]
                used += held[shard]
            held.move_to_end(shard)
            while used > room:
                used -= held.popitem(last=False)[1]
        shares.append(total / float(sizes.sum()))
    return shares


def measure(path: str) -> str:
    """Measure both; write what the chart needs, and return the tables."""
    per_class = class_sizes()
    labels = np.repeat(np.arange(CLASSES), per_class)[keyed_rng.permutation(1, int(per_class.sum()))]
    counts = {name: class_counts(labels, shard_sizes(len(labels)), power, 0) for name, power in POWERS.items()}
    title = f"One epoch of {len(labels):,} images of {CLASSES:,} classes; the largest has {LARGEST:,}, the smallest "
    title += f"{per_class.min()}"
    Path(path).write_text(json.dumps({"title": title, "counts": {name: c.tolist() for name, c in counts.items()}}))
    rows = [
        [name, *(f"{share:,.0f}" for share in (c.max(), np.median(c), c.min())), f"{c.sum():,}"]
        for name, c in counts.items()
    ]
    first = markdown(("weights", "largest class", "median", "smallest", "samples in the epoch"), rows)
    rows = []
    sizes = shard_sizes(SAMPLES)
    for cache in CACHES:
        for name, sticky in (("default", False), ("sticky", True)):
            nodes = np.array([fetched(sizes, node, cache, sticky=sticky) for node in range(NODES)])
            rows.append([f"{cache:.0%}", name, *(f"{share:.1%}" for share in NODES * nodes.mean(0))])
    headers = ("room per host", "lanes", *(f"epoch {epoch}" for epoch in range(EPOCHS)))
    return f"{first}\n{markdown(headers, rows)}"
