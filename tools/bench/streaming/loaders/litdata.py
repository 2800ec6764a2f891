"""LitData: chunks of the size of the others' shards, kept in a local folder from epoch to epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import litdata
from litdata.streaming import downloader

from bench.loaders.peers.litdata import Pictures
from bench.loaders.peers.recipe import BATCH, WORKERS

from . import Place


def open_loader(place: Place, _: str) -> Callable[[], Iterator[Any]]:
    """Return a function that starts an epoch."""
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # otherwise it fails where the endpoint is not https
    dataset = Pictures("tensors", place.url, cache_dir=str(place.cache), shuffle=True, drop_last=False)
    loader = litdata.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True)
    return lambda: iter(loader)
