"""The pipeline of a loader: the stages that a batch passes in a worker.

sampler → read → decode → augment → collate → send_errors → sender
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import webdataset as wds

from shardflow.dataset.dataset import Split

from .decoders import Decoder, new
from .pixel_cache import PixelCache
from .sampler import PlanSampler
from .shared_memory import BatchSender, SlotPool
from .stages import Augment, Collate, Decode, Read
from .workers import send_errors


def build_pipeline(
    sampler: PlanSampler,
    split: Split,
    *,
    fields: Sequence[str],
    classes: int,
    decoder: Decoder,
    pixel_cache: PixelCache | None,
    transform: Callable[[torch.Tensor], Any] | None,
    batch_transform: Callable[..., Any] | None,
    substitute: bool,
    slots: int,
) -> wds.DataPipeline:
    """Return the pipeline that each worker runs, with shared memory for as many batches as there are slots."""
    images, pool = "image" in fields, SlotPool(slots)
    # A transform may keep its input, so images that meet one are not decoded into memory on loan.
    empty = pool.borrow if transform is None and batch_transform is None else new
    return wds.DataPipeline(
        sampler,
        Read(split, fields=fields, substitute=substitute, pixel_cache=pixel_cache),
        Decode(decoder, empty, substitute=substitute, pixel_cache=pixel_cache) if images else None,
        Augment(transform) if images and transform is not None else None,
        Collate(split, fields, batch_transform, classes),
        send_errors,
        BatchSender(pool),
    )
