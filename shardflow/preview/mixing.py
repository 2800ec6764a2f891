"""The mixing of a split: how well the shuffle mixes its samples. docs/performance.md has general measurements.

Class noise is the variance of the class counts of a batch, as a multiple of the variance under a full shuffle
(chi-square over its degrees of freedom). It needs the labels of all samples, so it is measured only if all shards are
local; otherwise only the number of shards per batch is known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from shardflow.dataset.class_labels import single_classes
from shardflow.dataset.open_dataset import Split
from shardflow.errors import ShardflowError
from shardflow.order.keyed_rng import I64
from shardflow.order.rank_partition import RankPartition
from shardflow.order.shuffle_plan import ShufflePlan
from shardflow.order.shuffle_settings import BUFFER, default_streams

BATCH = 256
_BATCHES = 48
_LEAST_BATCHES = 4
_RAMP = (55, 48, 128), (44, 110, 146), (60, 160, 125), (240, 210, 80)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """The mixing of an epoch on one rank: mean shards per batch, as read and under a full shuffle; class noise.

    `places` is float [batches, batch_size]: the positions of samples in the split, 0 … 1, sorted within each batch.
    """

    shards: float
    shuffled_shards: float
    noise: float | None
    places: npt.NDArray[np.float64]

    def strip(self) -> Image.Image:
        """Return a picture with a row per batch; its samples are blue (first of the split) to yellow (last)."""
        stops = np.linspace(0, 1, len(_RAMP))
        channels = [np.interp(self.places, stops, channel) for channel in np.array(_RAMP).T]
        return Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8))


def measure_mixing(split: Split, classes: int, *, streams: int | None = None, buffer: int = BUFFER) -> Mixing | None:
    """Return the mixing of a split with these streams and this buffer; None if the split has too few samples."""
    batch = min(BATCH, len(split) // _LEAST_BATCHES)
    if batch < 2:
        return None
    plan = ShufflePlan(split.shard_samples, seed=0, epoch=0, streams=streams or default_streams(1), buffer=buffer)
    partition = RankPartition(length=len(split), batch_size=batch, rank=0, world_size=1)
    steps = np.unique(np.linspace(0, partition.steps() - 1, _BATCHES).astype(np.int64)).tolist()
    located = [plan.locate(partition.positions(0, step)[0]) for step in steps]
    shards, records = (np.stack(column) for column in zip(*located, strict=True))
    samples = split.first_sample(shards) + records
    return Mixing(
        shards=float(np.mean([len(np.unique(row)) for row in shards])),
        shuffled_shards=float((1 - (1 - split.shard_samples / len(split)) ** batch).sum()),
        noise=_noise(split, classes, samples),
        places=np.sort(samples / len(split), axis=1),
    )


def class_noise(classes: I64, shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the class noise of each row of class numbers [rows, samples], given the share of each class."""
    rows, samples = classes.shape
    cells = np.arange(rows)[:, None] * len(shares) + classes
    counts = np.bincount(cells.ravel(), minlength=rows * len(shares)).reshape(rows, -1)
    expected = samples * shares
    noise: npt.NDArray[np.float64] = ((counts - expected) ** 2 / expected).sum(1) / (len(shares) - 1)
    return noise


def _noise(split: Split, classes: int, samples: I64) -> float | None:
    if not classes or not all(split.reader.is_local(number) for number in range(len(split.shards))):
        return None
    try:
        labels = single_classes(split, classes)
    except ShardflowError:
        return None  # damaged: `verify` reports it
    found, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if found[0] < 0 or len(found) < 2:
        return None
    return float(class_noise(numbers[samples], counts / len(labels)).mean())
