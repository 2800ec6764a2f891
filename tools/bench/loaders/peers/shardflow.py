"""shardflow: with its native kernel, and with torchvision's decoder in its place.

Uses only arguments that older versions have as well, for `--against`.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import shardflow
from shardflow import native

from . import Place, Start
from .recipe import BATCH, WORKERS

SHARD_SAMPLES = 500


def prepare(pictures: Path, data: Path, shard_samples: int = SHARD_SAMPLES) -> None:
    """Pack, keeping the JPEG bytes; a class per picture, so that labels are the samples' numbers."""
    with tempfile.TemporaryDirectory(dir=data) as folder:
        for path in pictures.rglob("*.jpg"):
            (Path(folder) / "train" / path.stem).mkdir(parents=True)
            os.link(path, Path(folder) / "train" / path.stem / path.name)
        shardflow.pack(folder, data / "packed", format="keep", shard_samples=shard_samples)
    before = {path.read_bytes() for path in pictures.rglob("*.jpg")}
    after = {sample["jpg"] for sample in shardflow.open(data / "packed")["train"]}
    if before != after:
        raise AssertionError("expected the bytes of the images as they were, found others")


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
