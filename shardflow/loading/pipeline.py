"""The pipeline of a loader: the stages that a batch passes in a worker.

sampler → read → decode → annotate → augment → collate → send_errors → sender
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import webdataset as wds
from torch.utils.data import IterableDataset

from shardflow.dataset.dataset import Split
from shardflow.errors import ConfigError, ShardflowError

from .annotation_fields import AnnotationFields
from .decoders.decoder import Allocator, Decoder, allocate
from .padding import Padding
from .pixel_cache import PixelCache
from .sampler import Batch
from .shared_memory import BatchSender, SlotPool
from .stages import Annotate, Augment, Collate, Decode, Read, Transforms
from .workers import send_errors

Stage = Callable[[Iterator[Batch]], Iterator[Batch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSource:
    """How the samples of one split are read, decoded and transformed. A mix has several."""

    split: Split
    decoder: Decoder
    pixel_cache: PixelCache | None
    annotations: AnnotationFields
    transform: Transforms


def build_pipeline(
    sampler: IterableDataset[Batch],
    sources: Sequence[PipelineSource],
    *,
    fields: Sequence[str],
    classes: int,
    batch_transform: Callable[..., Any] | None,
    substitute: bool,
    slots: int,
) -> wds.DataPipeline:
    """Return the pipeline that each worker runs, with shared memory for as many batches as there are slots."""
    pool, caches = SlotPool(slots), [source.pixel_cache for source in sources]
    are_transformed = any(source.transform is not None for source in sources)
    # A transform may keep its input, so images that meet one are not decoded into memory on loan.
    allocator = allocate if are_transformed or batch_transform is not None else pool.borrow
    decoders = [source.decoder for source in sources]
    return wds.DataPipeline(
        sampler,
        Read(*(source.split for source in sources), fields=fields, substitute=substitute, pixel_caches=caches),
        *(sample_stages(sources, allocate=allocator, substitute=substitute) if "image" in fields else []),
        Collate([source.split for source in sources], fields, batch_transform, classes, _padding(decoders)),
        send_errors,
        BatchSender(pool),
    )


def sample_stages(sources: Sequence[PipelineSource], *, allocate: Allocator, substitute: bool) -> list[Stage]:
    """Return the stages that decode, annotate and transform samples that were read."""
    decoders, annotations = [source.decoder for source in sources], [source.annotations for source in sources]
    transforms, caches = [source.transform for source in sources], [source.pixel_cache for source in sources]
    stages: list[Stage] = [Decode(decoders, allocate, substitute=substitute, pixel_caches=caches)]
    if annotations[0].names:
        stages.append(Annotate(annotations, decoders, substitute=substitute))
    if any(transform is not None for transform in transforms):
        stages.append(Augment(transforms))
    return stages


def _padding(decoders: Sequence[Decoder]) -> Padding:
    first, *others = (decoder.padding for decoder in decoders)
    if any(other != first for other in others):
        raise ConfigError("the loaders' decoders stack or pad batches differently; give all of them the same")
    return first


def describe_batches(batches: Mapping[int, Batch], splits: Sequence[Split]) -> str:
    """Return which batch each worker began last, by the number of the worker."""
    described = []
    for worker, batch in batches.items():
        reader = splits[batch.sources[0] if batch.sources else 0].reader
        shard, record = int(batch.shards[0]), int(batch.records[0])
        # A missing shard may be what the worker died of: an error message must not wait for it.
        sample = f"record {record}"
        if reader.is_local(shard):
            with contextlib.suppress(ShardflowError):  # nor must damage hide what happened
                sample = f"sample {reader.key(shard, record)}"
            reader.close(shard)  # this process reads no shards: an open one stays on the disk after its eviction
        others = f" and {len(batch.keys) - 1} more" if len(batch.keys) > 1 else ""
        described.append(f"worker {worker}: {reader.url(shard)}, {sample}{others}")
    return f"Batches in progress: {'; '.join(described)}" if described else "No batch was in progress"
