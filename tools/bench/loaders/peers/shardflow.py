"""shardflow: with its native kernel, and with torchvision's decoder in its place.

Uses only arguments that older versions have as well, for `--against`.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import shardflow
from shardflow import native
from shardflow.formats import seek_table

from . import Place, Start
from .recipe import BATCH, WORKERS

SHARD_SAMPLES = 500


def prepare(pictures: Path, data: Path, shard_samples: int = SHARD_SAMPLES) -> None:
    """Pack, adding nothing but seek tables; a class per picture, so that labels are the samples' numbers."""
    with tempfile.TemporaryDirectory(dir=data) as folder:
        for path in pictures.rglob("*.jpg"):
            (Path(folder) / "train" / path.stem).mkdir(parents=True)
            os.link(path, Path(folder) / "train" / path.stem / path.name)
        shardflow.pack(folder, data / "packed", format="keep", seek_tables="all", shard_samples=shard_samples)
    before = {path.read_bytes() for path in pictures.rglob("*.jpg")}
    after = {_without_seek_table(sample["jpg"]) for sample in shardflow.open(data / "packed")["train"]}
    if before != after:
        raise AssertionError("expected the bytes of the images as they were, found others")


def _without_seek_table(jpeg: bytes) -> bytes:
    return jpeg.replace(seek_table.find(jpeg) or b"", b"", 1)


def open_loader(data: Path, variant: str) -> Start:
    """`variant` is "kernel", or "fallback" without native code."""
    if variant == "fallback":
        native.available = lambda: False
    elif not native.available():
        raise RuntimeError("the native kernel is not available")
    loader = shardflow.Loader(data / "packed", batch_size=BATCH, tail="short", num_workers=WORKERS)
    return lambda: iter(loader)


def open_remote(place: Place, variant: str) -> Start:
    """`variant` is "s3" or "local": from the bucket, or from the directory that was uploaded."""
    url = place.url if variant == "s3" else place.local
    loader = shardflow.Loader(url, batch_size=BATCH, tail="short", num_workers=WORKERS)
    return lambda: iter(loader)
