"""How well a split mixes: what docs/mixing.md measures of orders in general, measured of one dataset.

Class noise is the variance of a batch's class counts as a multiple of what it is under a full shuffle (chi-square over
its degrees of freedom). It needs the labels of the samples in some batches, which are read where the shards are at
hand; elsewhere the shards in a batch have to do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from shardflow.dataset.dataset import Split
from shardflow.errors import ShardflowError
from shardflow.formats.shard_index import IMAGE_PARTS
from shardflow.order.plan import I64, WINDOW, Plan, default_lanes
from shardflow.order.schedule import Schedule

from .sample_reader import labels_of

BATCH = 256

_BATCHES = 48
_LEAST_BATCHES = 4
_RAMP = (55, 48, 128), (44, 110, 146), (60, 160, 125), (240, 210, 80)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """What was measured of an epoch on one rank.

    Attributes:
        batch_size: Samples per batch: 256, fewer in a split of less than a thousand.
        batches: How many were looked at, evenly from the whole epoch.
        shards: Distinct shards in a batch, on average.
        shuffled_shards: The same under a full shuffle.
        noise: Class noise, 1 under a full shuffle; None where it was not measured.
        places: float [batches, batch_size], where in the split each sample lies, 0 … 1, sorted within each batch.
    """

    batch_size: int
    batches: int
    shards: float
    shuffled_shards: float
    noise: float | None
    places: npt.NDArray[np.float64]

    def strip(self) -> Image.Image:
        """Return the picture: a row per batch, and in it the samples by where they lie, from blue to yellow."""
        stops = np.linspace(0, 1, len(_RAMP))
        channels = [np.interp(self.places, stops, channel) for channel in np.array(_RAMP).T]
        return Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8))


def measure_mixing(split: Split, *, lanes: int | None = None, window: int = WINDOW) -> Mixing | None:
    """Measure a split, read with these lanes and window; None when it has too few samples for anything to be said."""
    batch = min(BATCH, len(split) // _LEAST_BATCHES)
    if batch < 2:
        return None
    plan = Plan(split.shard_samples, seed=0, epoch=0, lanes=lanes or default_lanes(1, True), window=window)
    schedule = Schedule(length=len(split), batch_size=batch, rank=0, world_size=1)
    steps = np.unique(np.linspace(0, schedule.steps() - 1, _BATCHES).astype(np.int64)).tolist()
    located = [plan.locate(schedule.positions(0, step)[0]) for step in steps]
    shards, records = (np.stack(column) for column in zip(*located, strict=True))
    places = np.sort((split.first_sample(shards) + records) / len(split), axis=1)
    weights = split.shard_samples / len(split)
    return Mixing(
        batch_size=batch,
        batches=len(steps),
        shards=float(np.mean([len(np.unique(row)) for row in shards])),
        shuffled_shards=float((1 - (1 - weights) ** batch).sum()),
        noise=_noise(split, shards, records),
        places=places,
    )


def class_noise(classes: I64, shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the class noise of each row of an array of class numbers, shape [rows, samples].

    Args:
        classes: 0 … C-1.
        shares: [C], the share of each class of all samples, above 0.
    """
    rows, samples = classes.shape
    cells = np.arange(rows)[:, None] * len(shares) + classes
    counts = np.bincount(cells.ravel(), minlength=rows * len(shares)).reshape(rows, -1)
    expected = samples * shares
    noise: npt.NDArray[np.float64] = ((counts - expected) ** 2 / expected).sum(1) / (len(shares) - 1)
    return noise


def _noise(split: Split, shards: I64, records: I64) -> float | None:
    if not all(split.reader.is_local(number) for number in np.unique(shards).tolist()):
        return None
    labels = np.empty(shards.shape, dtype=np.int64)
    for shard in np.unique(shards).tolist():  # each is opened once
        for row, column in np.argwhere(shards == shard).tolist():
            try:
                sample = split.reader.read(shard, int(records[row, column]), unchecked=IMAGE_PARTS)
            except ShardflowError:
                return None  # verification says what is wrong with it
            own = labels_of(sample.parts)
            if len(own) != 1:
                return None
            labels[row, column] = own[0]
    # The classes' shares are those among the samples looked at: those of all of them are not always known.
    _, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(counts) < 2:
        return None
    seen, batch = labels.size, len(labels[0])
    noise = class_noise(numbers.reshape(labels.shape), counts / seen).mean()
    # Batches that are a part of what the shares were counted over vary less than independent ones.
    return float(noise) * (seen - 1) / (seen - batch) if seen > batch else None
