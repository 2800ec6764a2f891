"""The packers, a file each: `pack` packs a folder, `pictures` reads back the packed images with their names."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

SHORT_SIDE = 256
QUALITY = 90
WORKERS = 2
SHARD_SAMPLES = 500


def files(source: Path) -> list[str]:
    """Return the originals, which lie in one folder per class."""
    return sorted(entry.path for folder in os.scandir(source) for entry in os.scandir(folder.path))


def pack(peer: str, source: str, packed: str, variant: str) -> None:
    """Pack the originals of a folder into another, in the environment that the packer is installed in."""
    importlib.import_module(f"{__name__}.{peer}").pack(Path(source), Path(packed), variant)


def extract(peer: str, packed: str, folder: str) -> None:
    """Write every packed image as `folder/NAME.jpg`, named as its original."""
    Path(folder).mkdir(parents=True)
    for name, jpeg in importlib.import_module(f"{__name__}.{peer}").pictures(Path(packed)):
        Path(folder, f"{name}.jpg").write_bytes(jpeg)
