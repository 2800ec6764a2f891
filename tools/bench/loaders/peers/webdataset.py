"""webdataset: on the very shards that shardflow packed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import webdataset as wds

from .recipe import AUGMENTATIONS, BATCH, BUFFER, WORKERS
from .shardflow import prepare as prepare


def open_loader(data: Path, variant: str) -> Callable[[], Iterator[Any]]:
    """`variant` is the augmentation, or "collated": tensors that the DataLoader makes batches of, not the pipeline."""
    augmentation = AUGMENTATIONS["tensors" if variant == "collated" else variant]
    shards = sorted(map(str, (data / "packed" / "train").glob("*.tar")))
    dataset = (
        wds.WebDataset(shards, shardshuffle=len(shards))
        .shuffle(BUFFER)
        .to_tuple("jpg", "cls")
        .map_tuple(augmentation, int)
    )
    if variant == "collated":
        loader = wds.WebLoader(dataset, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True)
    else:
        loader = wds.WebLoader(dataset.batched(BATCH), batch_size=None, num_workers=WORKERS, persistent_workers=True)
    return lambda: iter(loader)
