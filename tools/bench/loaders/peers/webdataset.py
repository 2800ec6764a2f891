"""webdataset: on the very shards that shardflow packed."""

from __future__ import annotations

from pathlib import Path

import webdataset as wds

from . import Start
from .augmentations import AUGMENTATIONS
from .recipe import BATCH, BUFFER, WORKERS
from .shardflow import prepare as prepare


def open_loader(data: Path, variant: str) -> Start:
    """`variant` is the augmentation, or "collated": tensors that the DataLoader makes batches of, not the pipeline."""
    augmentation = AUGMENTATIONS["tensors" if variant == "collated" else variant]
    shards = sorted(map(str, (data / "packed" / "train").glob("*.tar")))
    dataset = wds.WebDataset(shards, shardshuffle=len(shards)).shuffle(BUFFER)
    dataset = dataset.to_tuple("jpg", "cls").map_tuple(augmentation, int)
    if variant == "collated":
        loader = wds.WebLoader(dataset, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True)
    else:
        loader = wds.WebLoader(dataset.batched(BATCH), batch_size=None, num_workers=WORKERS, persistent_workers=True)
    return lambda: iter(loader)
