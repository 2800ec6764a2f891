"""webdataset's ShardWriter behind a pool that resizes, which is how most shards of images are made."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import webdataset

from . import SHARD_SAMPLES, WORKERS, files
from .resizing import RESIZERS


def pack(source: Path, destination: Path, variant: str) -> None:
    """`variant` names the resizer."""
    destination.mkdir()
    paths = files(source)
    shards = str(destination / "%06d.tar")
    with multiprocessing.Pool(WORKERS) as pool, webdataset.ShardWriter(shards, SHARD_SAMPLES, verbose=0) as writer:
        for path, jpeg in zip(paths, pool.imap(RESIZERS[variant], paths, chunksize=4), strict=True):
            writer.write({"__key__": Path(path).stem, "jpg": jpeg, "cls": int(Path(path).parent.name == "portrait")})
        pool.close()
        pool.join()


def pictures(destination: Path) -> Iterator[tuple[str, bytes]]:
    """The keys are the originals' names."""
    shards = sorted(map(str, destination.glob("*.tar")))
    for sample in webdataset.WebDataset(shards, shardshuffle=False, empty_check=False):
        yield sample["__key__"], sample["jpg"]
