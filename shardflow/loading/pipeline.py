"""The pipeline of a loader: the stages that a batch passes in a worker.

sampler → read → decode → annotate → augment → collate → send_errors → sender
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import webdataset as wds
from torch.utils.data import IterableDataset

from shardflow.errors import ShardflowError

from .batch import Batch
from .collate import Collate
from .decoders.decoder import Allocator, allocate
from .shared_memory import BatchSender, SlotPool
from .source import Source
from .stages import Annotate, Augment, Decode, Read
from .workers import send_errors

Stage = Callable[[Iterator[Batch]], Iterator[Batch]]


def build_pipeline(
    sampler: IterableDataset[Batch],
    sources: Sequence[Source],
    *,
    fields: Sequence[str],
    classes: int,
    slots: int,
) -> wds.DataPipeline:
    """Return the pipeline that each worker runs, with shared memory for as many batches as there are slots."""
    pool, splits = SlotPool(slots), [source.split for source in sources]
    replaceable = [source.max_errors > 0 for source in sources]
    # A transform may keep its input, so images that meet one are not decoded into memory on loan.
    keeps = any(source.transform is not None or source.batch_transform is not None for source in sources)
    return wds.DataPipeline(
        sampler,
        Read(*splits, fields=fields, replaceable=replaceable, pixel_caches=[each.pixel_cache for each in sources]),
        *(
            sample_stages(sources, allocator=allocate if keeps else pool.borrow, replaceable=replaceable)
            if "image" in fields
            else []
        ),
        Collate(
            splits,
            fields,
            [source.batch_transform for source in sources],
            classes,
            [source.decoder.padding for source in sources],
        ),
        send_errors,
        BatchSender(pool),
    )


def sample_stages(sources: Sequence[Source], *, allocator: Allocator, replaceable: Sequence[bool]) -> list[Stage]:
    """Return the stages that decode, annotate and transform samples that were read."""
    decoders, annotations = [source.decoder for source in sources], [source.annotations for source in sources]
    transforms, caches = [source.transform for source in sources], [source.pixel_cache for source in sources]
    stages: list[Stage] = [Decode(decoders, allocator, replaceable=replaceable, pixel_caches=caches)]
    if annotations[0].names:
        stages.append(Annotate(annotations, decoders, replaceable=replaceable))
    if any(transform is not None for transform in transforms):
        stages.append(Augment(transforms))
    return stages


def describe_batches(batches: Mapping[int, Batch], sources: Sequence[Source]) -> str:
    """Return which batch each worker began last, by the number of the worker."""
    described = []
    for worker, batch in batches.items():
        reader = sources[batch.sources[0]].split.reader
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
