"""A batch on its way through the stages of a worker's pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow.dataset.sample import Sample
from shardflow.order.keyed_rng import U64

from .geometry import Geometry


@dataclass(slots=True, kw_only=True)
class Batch:
    """A batch in a worker's pipeline; each stage fills in its part."""

    key: int  # the batch's own 64-bit key
    keys: U64  # [B], the samples' keys: from (seed, epoch, sample) alone
    shards: npt.NDArray[np.int64]  # [B], where the samples lie
    records: npt.NDArray[np.int64]
    valid: npt.NDArray[np.bool_]  # [B], False for the repeats that fill a padded tail
    empty: bool  # no sample for this rank: the batch carries one, for its shapes and dtypes, and `Collate` removes it
    samples: list[Sample] = field(default_factory=list)
    pixels: list[npt.NDArray[np.uint8] | None] = field(default_factory=list)  # [H, W, 3], those in the pixel cache
    images: Any = None  # from the decoder, then from the transform
    geometry: Geometry | None = None
    substituted: list[str] = field(default_factory=list)  # the problem of each sample that another one replaces
