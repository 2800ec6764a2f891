"""MosaicML Streaming: MDS shards of the size of the others', kept in a local folder from epoch to epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

from bench.loaders.peers.mosaicml import Pictures
from bench.loaders.peers.recipe import BATCH, WORKERS

from . import Place


def open_loader(place: Place, _: str) -> Callable[[], Iterator[Any]]:
    """Return a function that starts an epoch."""
    clean_stale_shared_memory()
    dataset = Pictures("tensors", remote=place.url, local=str(place.cache / "mds"), shuffle=True, batch_size=BATCH)
    loader = DataLoader(dataset, BATCH, num_workers=WORKERS, persistent_workers=True)
    return lambda: iter(loader)
