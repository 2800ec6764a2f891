"""Keys for the tests of the stages: what a loader hands out as `random_key`."""

from __future__ import annotations

import numpy as np
import torch

from shardflow.order import keyed_rng


def random_keys(count: int, seed: int = 0) -> torch.Tensor:
    """Return int64 [count]."""
    keys = keyed_rng.fold_array(keyed_rng.key(seed, "augment", 0), np.arange(count))
    return torch.from_numpy(keys.view(np.int64))


def kolmogorov_smirnov(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the greatest distance of two empirical distributions, in units of what chance gives: rarely above 2."""
    values = torch.cat([ours, theirs]).sort().values.unique()
    first, second = (
        torch.searchsorted(x.sort().values, values, right=True) / len(x) for x in (ours.float(), theirs.float())
    )
    return float((first - second).abs().max()) * (len(ours) * len(theirs) / (len(ours) + len(theirs))) ** 0.5
