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

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a loader finds its data. Endpoint and credentials are in the environment, as for the AWS tools.

    Attributes:
        url: The prefix in the bucket that its format was uploaded to.
        local: The folder that it was uploaded from.
        cache: An empty folder on the local disk for what it keeps; also XDG_CACHE_HOME.
    """

    url: str
    local: Path
    cache: Path

    def shards(self) -> list[str]:
        """Return the URLs of the tar shards, which only packed data has."""
        return [f"{self.url}/train/{path.name}" for path in sorted((self.local / "train").glob("*.tar"))]
