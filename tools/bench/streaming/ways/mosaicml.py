"""MosaicML Streaming: MDS shards of the size of the others', kept in a local folder from epoch to epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from peers.mosaicml import Pictures
from peers.recipe import BATCH, WORKERS
from place import Place
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader


def open_loader(place: Place, _: str) -> Callable[[], Iterator[Any]]:
    """Return what starts an epoch."""
    clean_stale_shared_memory()
    dataset = Pictures("tensors", remote=place.url, local=str(place.cache / "mds"), shuffle=True, batch_size=BATCH)
    loader = DataLoader(dataset, BATCH, num_workers=WORKERS, persistent_workers=True)
    return lambda: iter(loader)
