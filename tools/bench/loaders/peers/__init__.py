"""The loaders, a file each, with up to three functions.

    prepare(pictures, data)      write the pictures in the loader's own format below `data`, an empty folder; the JPEG
                                 bytes are copied where the format allows it
    open_loader(data, variant)   return a function without arguments that starts an epoch: an iterator over pairs of
                                 images and the numbers of their samples
    open_remote(place, variant)  the same from a bucket; images are uint8

Images are [B, 3, 224, 224]: normalised float32, or uint8, which the benchmark then normalises in the main process.
Workers and threads are kept from epoch to epoch wherever the library can. Libraries are imported at the top, so that
importing is not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

Start = Callable[[], Iterator[Any]]
"""Starts an epoch."""


class Place(NamedTuple):
    """Where a loader finds its data. Endpoint and credentials are in the environment, as for the AWS tools."""

    url: str  # prefix in the bucket that its format was uploaded to
    local: Path  # folder that it was uploaded from
    cache: Path  # empty folder on the local disk, also XDG_CACHE_HOME

    def shards(self) -> list[str]:
        """Return the URLs of the tar shards, which only packed data has."""
        return [f"{self.url}/train/{path.name}" for path in sorted((self.local / "train").glob("*.tar"))]
