"""The work of every packer: its numbers, and the originals."""

from __future__ import annotations

import os
from pathlib import Path

SHORT_SIDE = 256
QUALITY = 90
WORKERS = 2
SHARD_SAMPLES = 500


def files(source: Path) -> list[str]:
    """Return the originals, which lie in one folder per class."""
    return sorted(entry.path for folder in os.scandir(source) for entry in os.scandir(folder.path))
