"""Class batches: epochs whose batches have P classes with K samples each, as losses over pairs and triplets need them.

    groups    the samples of a class, permuted by hash(seed, epoch), are cut into groups of K
    epoch     as many batches as the groups can fill; no class has more groups in it than it has batches
    batches   classes in the order of hash(seed, epoch); their groups, one class after the other, are dealt to the
              batches in turn, so that two groups of one class never meet

Every sample comes at most once in an epoch. Which ones are left out, because they fill no group or no batch, changes
with the epoch. The order is one array, made anew for each epoch: positions are found by lookup.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow.errors import ConfigError

from . import keyed_rng
from .plan import shard_spans
from .window_shuffle import I64


class ClassBatches:
    """The batches of P classes with K samples that can be made of a split.

    Args:
        labels: The class of each sample, an integer from 0, shape [N].
        classes: P, classes in a batch, 1 or more.
        samples_per_class: K, samples of each of them, 1 or more.

    Attributes:
        batches: Batches in an epoch.
        length: Samples in an epoch.

    Raises:
        ConfigError: Fewer than P classes have K samples.
    """

    def __init__(self, labels: npt.NDArray[Any], classes: int, samples_per_class: int) -> None:
        self.labels = np.ascontiguousarray(labels)
        self.classes, self.samples_per_class = classes, samples_per_class
        self.sizes = np.bincount(self.labels)
        self.groups = self.sizes // samples_per_class
        if (enough := int((self.groups > 0).sum())) < classes:
            raise ConfigError(
                f"batches of {classes} classes with {samples_per_class} samples each need {classes} classes of that "
                f"size; {enough} have it: lower batch_size or samples_per_class"
            )
        # The groups that N batches can use, sum(min(groups, N)), grow ever slower with N; those they need, P N, do not.
        most, beyond = 1, int(self.groups.sum()) // classes + 1
        while beyond - most > 1:
            middle = (most + beyond) // 2
            if int(np.minimum(self.groups, middle).sum()) >= classes * middle:
                most = middle
            else:
                beyond = middle
        self.batches = most
        self.length = most * classes * samples_per_class


class ClassBatchPlan:
    """The order of one epoch: the pure function from (seed, epoch, position) to (shard, record); see `Plan`.

    A batch is P K positions in a row.
    """

    def __init__(self, class_batches: ClassBatches, shard_samples: npt.ArrayLike, *, seed: int, epoch: int) -> None:
        made, per_class = class_batches, class_batches.samples_per_class
        self.length = made.length
        sizes = np.asarray(shard_samples, dtype=np.int64)
        self._ends = np.cumsum(sizes)
        self._starts = self._ends - sizes
        shuffled = keyed_rng.permutation(keyed_rng.key(seed, "class samples", epoch), len(made.labels))
        by_class = shuffled[np.argsort(made.labels[shuffled], kind="stable")]
        class_starts = np.cumsum(made.sizes) - made.sizes
        classes = keyed_rng.permutation(keyed_rng.key(seed, "classes", epoch), len(made.sizes))
        kept = np.minimum(made.groups, made.batches)[classes]
        # The first sample of each group, class after class.
        numbers = np.arange(int(kept.sum())) - np.repeat(np.cumsum(kept) - kept, kept)
        firsts = np.repeat(class_starts[classes], kept) + numbers * per_class
        firsts = firsts[: made.batches * made.classes].reshape(made.classes, made.batches).T
        self._samples = by_class[(firsts[:, :, None] + np.arange(per_class)).ravel()]

    def visits(self, positions: npt.NDArray[Any]) -> tuple[I64, I64, I64]:
        """Return (shard, record, repeat) of positions 0 … length-1, in int64; each record comes once at most."""
        samples = self._samples[positions]
        shards = np.searchsorted(self._ends, samples, side="right")
        return shards, samples - self._starts[shards], np.zeros_like(samples)

    def needs(self, rank: int, world_size: int) -> tuple[I64, I64, I64]:  # noqa: ARG002 - see below
        """Return when the shards are needed, as `Plan.needs` does: batches have samples from all over the split."""
        return shard_spans(np.searchsorted(self._ends, self._samples, side="right"))
