"""shardflow: from the bucket, or from the directory that was uploaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import s3fs  # noqa: F401 - what shardflow opens s3:// with; importing is not measured

from bench.loaders.peers.recipe import BATCH, WORKERS
from shardflow import Loader

from . import Place


def open_loader(place: Place, variant: str) -> Callable[[], Iterator[Any]]:
    """`variant` is "s3" or "local"."""
    url = place.url if variant == "s3" else place.local
    loader = Loader(url, batch_size=BATCH, tail="short", num_workers=WORKERS)
    return lambda: iter(loader)
