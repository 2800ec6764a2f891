"""One sample as training gets it: its pixels and its annotations, before they are stacked into a batch.

The workers' own stages make it, so the result is exactly a worker's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from shardflow.dataset.sample import Sample
from shardflow.geometry.crops import Crops
from shardflow.order.epochs import Visit

from .batch import Batch
from .decoders.decoder import allocate, as_views
from .fork_rng import one_thread
from .source import Source
from .stages import sample_stages
from .whole_sample import row_of


class ExplainedSample(NamedTuple):
    """A sample, decoded, annotated and transformed.

    Attributes:
        key: Its key.
        random_key: The key of its random numbers, int64 as in a batch.
        images: Each view of its image, as the transform returns it, or else uint8 [C, H, W]; empty without "image".
        crops: The crop of each view; None where the decoder does not say.
        returned: Field → what a `WholeSample` returns in addition, and the field "images".
        annotations: For each view, field → mask [C, H, W], boxes, fields of boxes, keypoints; empty without them.
    """

    key: str
    random_key: int
    images: tuple[Any, ...]
    crops: tuple[Crops, ...] | None
    returned: dict[str, Any]
    annotations: tuple[dict[str, torch.Tensor], ...]

    def __repr__(self) -> str:
        """Return the shapes of the images in place of their pixels, and the crops as x, y, width, height."""
        images = ", ".join(str([*image.shape]) if hasattr(image, "shape") else repr(image) for image in self.images)
        crops = [crop.box[0].tolist() + ["flipped"] * bool(crop.flip[0]) for crop in self.crops or ()]
        fields = [*self.returned, *(self.annotations[0] if self.annotations else ())]
        return f"<ExplainedSample {self.key!r}: images {images}; crops {crops}; fields {fields}>"


def explain_sample(source: Source, sample: Sample, visit: Visit) -> ExplainedSample:
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
        bins=nothing,
        sources=[0],
        samples=[sample],
        pixels=[None],
    )
    batches = iter([batch])
    with one_thread():
        for stage in sample_stages([replace(source, pixel_cache=None, max_errors=0)], allocate):
            batches = stage(batches)
        (batch,) = batches
    return ExplainedSample(
        key=sample.key,
        random_key=int(batch.keys.view(np.int64)[0]),
        images=() if batch.images is None else tuple(view[0] for view in as_views(batch.images)),
        crops=None if batch.crops is None else as_views(batch.crops),
        returned={field: row_of(column, 0) for field, column in batch.returned.items()},
        annotations=tuple({field: values[0] for field, values in view.items()} for view in batch.annotations),
    )
