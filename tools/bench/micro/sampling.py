"""Class counts of weighted epochs, and bytes that hosts fetch per epoch: the plan alone, without an image.

The classes are about as long-tailed as in ImageNet-LT (Liu et al., "Large-scale long-tailed recognition in an open
world", CVPR 2019): 1,000 classes with 1,280 images and less along a Pareto curve, shuffled into shards of 256.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from bench import charts
from bench.report import markdown
from shardflow.order import keyed_rng
from shardflow.order.shuffle_plan import ShufflePlan
from shardflow.order.shuffle_settings import BUFFER, STREAMS_PER_RANK
from shardflow.order.weights import Weights

I64 = npt.NDArray[np.int64]

CLASSES = 1000
LARGEST = 1280
SHARD_SAMPLES = 256
SAMPLES = 1_281_167
"""Of the dataset whose fetches are counted."""
EPOCHS = 5
POWERS = {"plain": 0.0, "sqrt": 0.5, "balanced": 1.0}
CASES = (
    *((1, 0.5, False, keep) for keep in (False, True)),
    *((8, 0.25, False, keep) for keep in (False, True)),
    (8, 0.25, True, True),
)
"""Hosts, room of each as a share of the dataset, shard affinity, and whether the cache keeps the same shards."""
OPEN_SHARDS = 64
"""Shards that are being read or fetched ahead, which are not evicted."""


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
    plan = ShufflePlan(
        sizes,
        seed=0,
        epoch=epoch,
        streams=STREAMS_PER_RANK,
        buffer=BUFFER,
        weights=Weights(weights, sizes, labels),
    )
    shards, records = plan.locate(np.arange(plan.length))
    return np.bincount(labels[(np.cumsum(sizes) - sizes)[shards] + records], minlength=CLASSES)


def shard_sizes(samples: int) -> I64:
    """Return the number of samples of each shard."""
    return np.minimum(SHARD_SAMPLES, samples - np.arange(0, samples, SHARD_SAMPLES))


def fetched(sizes: I64, node: int, nodes: int, cache: float, *, shard_affinity: bool, keep: bool) -> list[float]:
    """Return the share of the dataset that a host fetches in each epoch.

    Evicted are the shards that were used least recently; with `keep`, of those that were read in this epoch already the
    last by their names, as shardflow's cache does.
    """
    room, held, used = int(cache * sizes.sum()), OrderedDict[int, int](), 0
    names = keyed_rng.permutation(0, len(sizes))
    shares = []
    for epoch in range(EPOCHS):
        plan = ShufflePlan(
            sizes, seed=0, epoch=epoch, streams=nodes * STREAMS_PER_RANK, buffer=BUFFER, shard_affinity=shard_affinity
        )
        total = 0
        for shard in plan.needs(node, nodes)[0].tolist():
            if shard not in held:
                held[shard] = int(sizes[shard])
                total += held[shard]
                used += held[shard]
            held.move_to_end(shard)
            while used > room:
                read = list(held)[:-OPEN_SHARDS]
                evicted = max(read, key=lambda one: names[one]) if keep else next(iter(held))
                used -= held.pop(evicted)
        shares.append(total / float(sizes.sum()))
    return shares


def measure(picture: str) -> str:
    """Measure both; draw the counts, and return the tables."""
    per_class = class_sizes()
    labels = np.repeat(np.arange(CLASSES), per_class)[keyed_rng.permutation(1, int(per_class.sum()))]
    counts = {name: class_counts(labels, shard_sizes(len(labels)), power, 0) for name, power in POWERS.items()}
    series = {"no weights" if name == "plain" else f'weights="{name}"': c.tolist() for name, c in counts.items()}
    charts.dots(picture, "images of each class in one epoch", series, "class, the largest first")
    rows = [
        [name, *(f"{share:,.0f}" for share in (c.max(), np.median(c), c.min())), f"{c.sum():,}"]
        for name, c in counts.items()
    ]
    first = markdown(("weights", "largest class", "median", "smallest", "samples in the epoch"), rows)
    rows = []
    sizes = shard_sizes(SAMPLES)
    for nodes, cache, shard_affinity, keep in CASES:
        shares = sum(
            np.array(fetched(sizes, node, nodes, cache, shard_affinity=shard_affinity, keep=keep))
            for node in range(nodes)
        )
        streams, evicted = (
            "shard_affinity" if shard_affinity else "default",
            "by name, once read" if keep else "least recently used",
        )
        rows.append([str(nodes), f"{cache:.0%}", streams, evicted, *(f"{share:.0%}" for share in shares)])
    headers = ("hosts", "room of each", "streams", "evicted first", *(f"epoch {epoch}" for epoch in range(EPOCHS)))
    return f"{first}\n{markdown(headers, rows)}"
