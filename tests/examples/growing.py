"""A dataset that is extended between the two halves of a run."""

from __future__ import annotations

from pathlib import Path

import shardflow
from making import jpeg

CLASSES = "cat", "dog"


def pack_some(folder: Path) -> Path:
    """Pack 24 pictures of two classes."""
    _draw(folder / "photos", range(24))
    url = folder / "photos256"
    shardflow.pack(folder / "photos", url, shard_samples=8, executor="serial")
    return url


def grow(folder: Path) -> None:
    """Extend the dataset by 16 pictures, which makes a new version of it."""
    _draw(folder / "photos", range(24, 40))
    shardflow.extend(folder / "photos", folder / "photos256", executor="serial")


def _draw(folder: Path, numbers: range) -> None:
    for number in numbers:
        path = folder / CLASSES[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
