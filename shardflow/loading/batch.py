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
    """A batch in a worker's pipeline; each stage fills in its part.

    Attributes:
        key: The batch's own 64-bit key.
        keys: uint64 [B], the samples' keys: from (seed, epoch, sample) alone.
        shards, records: int64 [B], where the samples lie.
        valid: bool [B], False for the repeats that fill a padded tail.
        empty: This rank has no sample in this step. The batch then carries one, so that shapes and dtypes are right,
            and the last stage removes it.
        samples: The samples that were read.
        pixels: Their decoded images from the pixel cache, uint8 [H, W, 3]; None for images that it does not have.
        images: The images from the decoder, then from the transform.
        geometry: How the decoder cropped them; None for a decoder that does not say.
        substituted: The problem of each sample that another one of the batch replaces.
    """

    key: int
    keys: U64
    shards: npt.NDArray[np.int64]
    records: npt.NDArray[np.int64]
    valid: npt.NDArray[np.bool_]
    empty: bool
    samples: list[Sample] = field(default_factory=list)
    pixels: list[npt.NDArray[np.uint8] | None] = field(default_factory=list)
    images: Any = None
    geometry: Geometry | None = None
    substituted: list[str] = field(default_factory=list)
