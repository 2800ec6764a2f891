"""The pipeline of a loader: which stages a batch passes, in which order.

sampler → read → decode → augment → collate → send_errors → sender
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import webdataset as wds

from shardflow.dataset.dataset import Split
from shardflow.errors import ConfigError

from .decoders import Decoder, new
from .pixel_cache import PixelCache
from .sampler import PlanSampler
from .shared_memory import BatchSender, SlotPool
from .stages import Augment, Collate, Decode, Read
from .workers import send_errors


def resolve_fields(fields: Sequence[str] | None, *, labelled: bool, tail: str) -> tuple[str, ...]:
    """Return the fields of a batch: those that were asked for, or the default ones.

    Raises:
        ConfigError: They are not different names.
    """
    if fields is None:
        return ("image", "label" if labelled else "key", *(("valid",) if tail == "pad" else ()))
    if isinstance(fields, str) or len(set(fields)) != len(fields):
        raise ConfigError(f"fields must be different names, such as ('image', 'label'); found {fields!r}")
    return tuple(fields)


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
    """Return the pipeline that each worker runs.

    Args:
        sampler: Yields the batches to make.
        split: The split that is read.
        fields: What a batch consists of.
        classes: Number of classes of the dataset.
        decoder, transform, batch_transform: As for the loader.
        pixel_cache: Where decoded images are kept; None to decode every time.
        substitute: Replace damaged samples by others of the batch.
        slots: Batches of a worker that fit into its shared memory.
    """
    images = "image" in fields
    pool = SlotPool(slots)
    # A transform may keep its input, so images that meet one are not decoded into memory on loan.
    empty = pool.borrow if transform is None and batch_transform is None else new
    return wds.DataPipeline(
        sampler,
        Read(split, fields=fields, substitute=substitute, pixel_cache=pixel_cache),
        Decode(decoder, empty, substitute=substitute, pixel_cache=pixel_cache) if images else None,
        Augment(transform) if images and transform is not None else None,
        Collate(fields, batch_transform, classes),
        send_errors,
        BatchSender(pool),
    )
