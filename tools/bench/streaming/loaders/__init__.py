"""The loaders, a file each: `open_loader(place, variant)` returns a function that starts an epoch.

An epoch yields batches of images, uint8 [B, 3, 224, 224], and the numbers of their samples.
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
