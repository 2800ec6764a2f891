"""Subset: epochs of selected samples of a split."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow.errors import ConfigError

from .keyed_rng import I64
from .sampler import EpochPlan, EpochSampler, Facts, ListPlan, fulfilling
from .shuffle_plan import ShuffledEpochs
from .weights import Weights, as_numbers


class Subset:
    """Selects samples of a split by a condition, by path or id, or by their numbers, which may be repeated.

    With `shuffle=False` samples come in the given order, as with PyTorch's `Subset`; an order that jumps between shards
    keeps many of them open. A checkpoint fits only the same samples.

    >>> sharp = shardflow.samplers.Subset("score > 0.5 and class in ('cat', 'dog')")
    >>> loader = shardflow.Loader("photos256", batch_size=2, sampler=shardflow.samplers.Subset(index=[3, 8]))

    Args:
        where: A condition, as for `shardflow.subset(where=...)`, evaluated when the loader is made; or a pandas Series
            of True and False by path or id.
        index: Numbers of samples, 0 … N-1, as the field "index" has them: integers, shape [M]. They are not rows of a
            table, since `pack` shuffles: `Split.sources()` lists the inputs in order.

    Raises:
        ConfigError: Neither or both are given, or they are of another type.
    """

    def __init__(self, where: Any = None, *, index: npt.ArrayLike | None = None) -> None:
        self.where = where if isinstance(where, str) else None
        self._series: Any = where if hasattr(where, "reindex") else None
        if self._series is not None and str(getattr(where, "dtype", "")) not in ("bool", "boolean"):
            message = f"Subset takes a pandas Series of True and False by id or path, found {type(where).__name__}"
            raise ConfigError(f"{message}; write a condition over the table, table.set_index('id')['fold'] != 0")
        if (self.where is None and self._series is None) == (index is None):
            given = type(where).__name__ if index is None else "both"
            raise ConfigError(
                f"Subset takes a condition, a pandas Series or index=, found {given}; for rows of a table "
                "write Subset(pd.Series(np.isin(range(len(table)), rows), index=table['id'])), for numbers in the "
                "order of the packed samples, as the field 'index' has them, index="
            )
        self.indices = as_numbers("Subset takes a list of sample numbers", [] if index is None else index)
        if self.indices.ndim != 1 or (self.indices.dtype.kind not in "iu" and len(self.indices)):
            found = f"dtype {self.indices.dtype} of shape {self.indices.shape}"
            remedy = "; write np.flatnonzero(mask), of a mask in the order of Split.sources()"
            remedy *= self.indices.dtype == np.bool_
            raise ConfigError(f"Subset takes a list of sample numbers, found {found}{remedy}")

    def __repr__(self) -> str:
        return f"Subset({self.where!r})" if self.where is not None else f"Subset({len(self.indices)} samples)"

    def bind(self, facts: Facts) -> EpochSampler:
        """Return epochs of the selected samples that a limit does not leave out."""
        bad = np.flatnonzero((self.indices < 0) | (self.indices >= facts.split_samples))
        if len(bad):
            raise ConfigError(
                f"Subset names sample {self.indices[bad[0]]}, but split {facts.split!r} has samples "
                f"0 … {facts.split_samples - 1}: numbers count packed samples, which Split.sources() lists in order"
            )
        if len(self.indices) == facts.split_samples > 2 and self.indices.max() < 2:
            raise ConfigError("Subset has a 0 or 1 for each sample, as a mask has: write np.flatnonzero(mask)")
        numbers = self.indices.astype(np.int64)
        if self.where is not None:
            numbers = np.flatnonzero(fulfilling(facts, self.where))
        if self._series is not None:
            numbers = np.flatnonzero(facts.load(self._series))
        numbers = numbers[numbers < facts.samples]
        if not len(numbers):
            raise ConfigError(f"{self!r} selects no sample of split {facts.split!r}")
        if facts.shuffle is None and (np.diff(numbers) < 0).any():  # ascending: the split's order
            return ListedEpochs(numbers, facts.shard_samples)
        weights = Weights(np.bincount(numbers, minlength=facts.samples), facts.shard_samples)
        epochs = ShuffledEpochs(facts, weights)
        epochs.chosen = numbers
        return epochs


class ListedEpochs(EpochSampler):
    """Epochs that all have the same samples in the same order."""

    def __init__(self, numbers: I64, shard_samples: I64) -> None:
        self.length, self.chosen = len(numbers), numbers
        self.identity = {"subset": hashlib.sha256(numbers.astype("<i8", copy=False).data).hexdigest()}
        self._plan = ListPlan.of_samples(numbers, shard_samples)

    def drawn(self) -> I64 | None:
        """Return the numbers of its samples."""
        return self.chosen

    def plan(self, *, seed: int, epoch: int, streams: int) -> EpochPlan:  # noqa: ARG002 - the same in every epoch
        """Return the plan, the same for every epoch."""
        return self._plan
