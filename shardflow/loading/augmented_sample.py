"""One sample as a worker makes it: its pixels and its annotations, before they are stacked into a batch.

The stages are those of the workers, so a preview of a loader shows the pixels that training gets.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from shardflow.dataset.sample import Sample
from shardflow.errors import ConfigError
from shardflow.order.epochs import Visit

from .decoders.decoder import allocate
from .loader import Loader
from .pipeline import PipelineSource, sample_stages
from .sampler import Batch


class AugmentedSample(NamedTuple):
    """A sample, decoded, annotated and transformed.

    Attributes:
        images: Each view of its image, as the transform returns it, or else uint8 [C, H, W].
        masks: Field → mask [C, H, W].
        objects: Field → boxes, fields of boxes, keypoints.
    """

    images: tuple[Any, ...]
    masks: dict[str, torch.Tensor]
    objects: dict[str, torch.Tensor]


def of_loader(loader: Loader, sample: Sample, number: int, epoch: int) -> AugmentedSample | None:
    """Return sample `number` of the split as a loader's workers make it in an epoch; None if it does not come there.

    With `samples_per_epoch`, as they make it in a pass over the split. Of one that comes several times, the first.

    Raises:
        ConfigError: The loader returns no images.
    """
    if "image" not in loader.fields:
        raise ConfigError(f"the loader returns no images; add 'image' to its fields, found {loader.fields}")
    visit = loader.order.visit(number, epoch, loader.first_start().lanes)
    return None if visit is None else of_source(loader.pipeline_source(), sample, visit)


def of_source(source: PipelineSource, sample: Sample, visit: Visit) -> AugmentedSample:
    """Return a sample of a source as a worker makes it at a visit."""
    nothing = np.zeros(1, dtype=np.int64)
    batch = Batch(
        epoch=visit.epoch,
        shape=visit.shape,
        key=0,
        keys=np.array([visit.key], dtype=np.uint64),
        shards=nothing + sample.shard,
        records=nothing + sample.record,
        valid=nothing == 0,
        empty=False,
        samples=[sample],
        pixels=[None],
    )
    batches = iter([batch])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker: sums over pixels may depend on it in the last bit
    try:
        for stage in sample_stages([replace(source, pixel_cache=None)], allocate=allocate, substitute=False):
            batches = stage(batches)
        (batch,) = batches
    finally:
        torch.set_num_threads(threads)
    views = batch.images if isinstance(batch.images, tuple) else (batch.images,)
    return AugmentedSample(
        tuple(view[0] for view in views),
        {field: masks[0] for field, masks in batch.masks.items()},
        {field: values[0] for field, values in batch.objects.items()},
    )
