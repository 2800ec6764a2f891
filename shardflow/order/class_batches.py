"""Class batches: batches of P classes with K samples each, for losses over pairs and triplets.

    groups    the samples of a class, permuted by hash(seed, epoch), are cut into groups of K
    epoch     as many batches as the groups can fill; a class has at most one group per batch
    batches   classes in the order of hash(seed, epoch); their groups, one class after the other, are dealt to the
              batches in turn, so that two groups of one class never meet

Every sample comes at most once in an epoch. The samples that are left out, because they fill no group or batch, change
with the epoch. A batch is P K consecutive positions.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow._validation import check_integer
from shardflow.errors import ConfigError

from . import keyed_rng
from .sampler import EpochPlan, EpochSampler, Facts, ListPlan, Together

_SHOWN_CLASSES = 5


class ClassBatches:
    """Batches of `batch_size / samples_per_class` different classes, with `samples_per_class` samples of each.

    In a batch, the samples of a class are adjacent. A sample comes at most once per epoch; the samples that fill no
    batch differ between epochs. Classes with too few samples never come, and a warning names them. Batches draw from
    the whole split.

    >>> loader = shardflow.Loader("photos256", batch_size=32, sampler=shardflow.samplers.ClassBatches(16))

    Args:
        samples_per_class: Samples of each class in a batch, 1 or more; must divide `batch_size`.
    """

    def __init__(self, samples_per_class: int) -> None:
        self.samples_per_class = check_integer("samples_per_class", samples_per_class, 1)

    def __repr__(self) -> str:
        return f"ClassBatches({self.samples_per_class})"

    def bind(self, facts: Facts) -> EpochSampler:
        """Return epochs of such batches."""
        for wrong, reason in (
            (facts.batch_size % self.samples_per_class, f"batch_size={facts.batch_size} is not a multiple of it"),
            (facts.shuffle is None, "class batches need shuffle=True"),
            (
                facts.shuffle is not None and facts.shuffle.shard_affinity,
                "shard_affinity would have no effect, because each batch draws from the whole split",
            ),
        ):
            if wrong:
                raise ConfigError(f"{self!r}: {reason}; change one of them")
        labels = facts.labels()[: facts.samples]
        epochs = ClassBatchEpochs(
            labels, facts.batch_size // self.samples_per_class, self.samples_per_class, facts.shard_samples
        )
        if too_small := np.flatnonzero((epochs.sizes > 0) & (epochs.groups == 0)).tolist():
            classes = facts.classes or ()
            names = [f"{classes[number]!r} ({epochs.sizes[number]})" for number in too_small[:_SHOWN_CLASSES]]
            more = ", …" if len(too_small) > _SHOWN_CLASSES else ""
            epochs.warnings = [
                f"{self!r}: {len(too_small)} of {int((epochs.sizes > 0).sum())} classes have fewer samples and never "
                f"come: {', '.join(names)}{more}; lower samples_per_class"
            ]
        return epochs


class ClassBatchEpochs(EpochSampler):
    """The epochs of a split in batches of P classes with K samples each.

    Args:
        labels: The class of each sample, an integer from 0, shape [N].
        classes: P, classes in a batch, 1 or more.
        samples_per_class: K, samples of each of them, 1 or more.
        shard_samples: Number of samples of each shard.

    Attributes:
        batches: Batches in an epoch.
        sizes, groups: Samples and groups of each class.

    Raises:
        ConfigError: Fewer than P classes have K samples.
    """

    together: Together = "batch"

    def __init__(
        self, labels: npt.NDArray[Any], classes: int, samples_per_class: int, shard_samples: npt.ArrayLike
    ) -> None:
        self.labels, self._shard_samples = np.ascontiguousarray(labels), shard_samples
        self.classes, self.samples_per_class = classes, samples_per_class
        self.identity = {"class_batches": [classes, samples_per_class]}
        self.sizes = np.bincount(self.labels)
        self.groups = self.sizes // samples_per_class
        if (enough := int((self.groups > 0).sum())) < classes:
            raise ConfigError(
                f"batches of {classes} classes with {samples_per_class} samples each need {classes} classes of that "
                f"size; {enough} have it: lower batch_size or samples_per_class"
            )
        # N batches can use sum(min(groups, N)) groups, concave in N, and need P N: bisection finds the largest N.
        more = range(2, int(self.groups.sum()) // classes + 1)
        self.batches = 1 + bisect_left(more, True, key=lambda n: int(np.minimum(self.groups, n).sum()) < classes * n)
        self.length = self.batches * classes * samples_per_class

    def plan(self, *, seed: int, epoch: int, streams: int = 1) -> EpochPlan:  # noqa: ARG002 - samples of all streams meet
        """Return the batches of an epoch."""
        per_class = self.samples_per_class
        shuffled = keyed_rng.permutation(keyed_rng.key(seed, "class samples", epoch), len(self.labels))
        by_class = shuffled[np.argsort(self.labels[shuffled], kind="stable")]
        class_starts = np.cumsum(self.sizes) - self.sizes
        classes = keyed_rng.permutation(keyed_rng.key(seed, "classes", epoch), len(self.sizes))
        kept = np.minimum(self.groups, self.batches)[classes]
        # The first sample of each group, class by class.
        numbers = np.arange(int(kept.sum())) - np.repeat(np.cumsum(kept) - kept, kept)
        firsts = np.repeat(class_starts[classes], kept) + numbers * per_class
        firsts = firsts[: self.batches * self.classes].reshape(self.classes, self.batches).T
        samples = by_class[(firsts[:, :, None] + np.arange(per_class)).ravel()]
        return ListPlan.of_samples(samples, self._shard_samples)
