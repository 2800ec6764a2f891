"""webdataset: on the very shards that shardflow packed."""

from __future__ import annotations

from pathlib import Path

import webdataset as wds

import shardflow

from . import Start
from .augmentations import AUGMENTATIONS
from .recipe import BATCH, BUFFER, WORKERS
from .shardflow import prepare as prepare


def open_loader(data: Path, variant: str) -> Start:
    """`variant` is the augmentation of a pipeline that makes batches.

    Or it is "collated", where the DataLoader makes batches of tensors, or "samples", where the order is shardflow's.
    """
    augmentation = AUGMENTATIONS.get(variant, AUGMENTATIONS["tensors"])
    if variant == "samples":
        source = shardflow.samples(data / "packed")
        stages = wds.to_tuple("jpg", "cls"), wds.map_tuple(augmentation, int), wds.batched(BATCH)
        pipeline = wds.DataPipeline(source, *stages)
        loader = wds.WebLoader(pipeline, batch_size=None, num_workers=WORKERS, persistent_workers=True)
        return lambda: iter(loader)
    shards = sorted(map(str, (data / "packed" / "train").glob("*.tar")))
    dataset = wds.WebDataset(shards, shardshuffle=len(shards)).shuffle(BUFFER)
    dataset = dataset.to_tuple("jpg", "cls").map_tuple(augmentation, int)
    if variant == "collated":
        loader = wds.WebLoader(dataset, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True)
    else:
        loader = wds.WebLoader(dataset.batched(BATCH), batch_size=None, num_workers=WORKERS, persistent_workers=True)
    return lambda: iter(loader)
