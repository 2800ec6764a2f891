"""The record of a batch on its way through a worker's pipeline; each stage fills in its part."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shardflow.dataset.sample import Sample
from shardflow.geometry.crops import Crops
from shardflow.order import keyed_rng
from shardflow.order.keyed_rng import I64
from shardflow.order.sampler import Shape


@dataclass(slots=True, kw_only=True)
class Batch:
    """A batch in a worker's pipeline; each stage fills in its part."""

    epoch: int
    shape: Shape | I64 | None  # if the sampler decides it: of all images, or [B, 2], height and width of each
    key: int  # the batch's own 64-bit key
    keys: keyed_rng.U64  # [B], the samples' keys, of (seed, epoch, sample) alone
    shards: I64  # [B], the samples' shards and records
    records: I64
    valid: npt.NDArray[np.bool_]  # [B], False for repeats: in a padded tail, or for damaged samples
    bins: I64  # [B], the number of each sample's bin in the batch; one per sample if they are not packed
    sources: list[int]  # [B], the number of each sample's source
    empty: bool = False  # no sample for this rank: the one here gives shapes and dtypes, and `Collate` removes it
    samples: list[Sample] = field(default_factory=list)
    pixels: list[npt.NDArray[np.uint8] | None] = field(default_factory=list)  # [H, W, 3], if in the pixel cache
    images: Any = None  # from the decoder, then from the transform
    crops: Crops | tuple[Crops, ...] | None = None  # a tuple for views
    annotations: tuple[dict[str, list[torch.Tensor]], ...] = ()  # of each view: masks, boxes, ...: field → [B]
    returned: dict[str, Any] = field(default_factory=dict)  # the other fields that a transform of whole samples returns
    left_out: set[int] = field(default_factory=set)  # the damaged samples of bins, until `leave_out`
    read_bytes: int = 0  # of the samples' parts
    network_bytes: int = 0  # of the shards downloaded since the previous batch
    replaced: list[str] = field(default_factory=list)  # the problem of each sample that was replaced or left out
