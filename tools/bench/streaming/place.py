"""Where a loader finds its data. Endpoint and credentials are in the environment, where the AWS tools look for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a loader is told.

    Attributes:
        url: The prefix in the bucket that its format was uploaded to.
        local: The folder that it was uploaded from.
        cache: An empty folder on the local disk for what it wants to keep.
    """

    url: str
    local: Path
    cache: Path

    def shards(self) -> list[str]:
        """Return the URLs of the tar shards, which only packed data has."""
        return [f"{self.url}/train/{path.name}" for path in sorted((self.local / "train").glob("*.tar"))]
