"""A packed dataset for previews: photo-like images of a few classes, and inputs in quarantine."""

from __future__ import annotations

from pathlib import Path

import shardflow
from tests.helpers.making import jpeg

CLASSES = "bridge", "cat & <dog>", "fern"


def pack_some(root: Path) -> tuple[Path, Path]:
    """Return the folder of the sources and the dataset: 36 samples in 4 shards, 3 inputs in quarantine."""
    source, url = root / "source", root / "dataset"
    for number in range(36):
        folder = source / "train" / CLASSES[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:02}.jpg").write_bytes(jpeg(number, 150 + 3 * number, 100 + number))
    (source / "train/fern/cut.jpg").write_bytes(jpeg(99, 300, 200)[:4000])
    (source / "train/fern/words.jpg").write_bytes(b"no picture at all")
    (source / "train/fern/nothing.png").touch()
    shardflow.pack(source, url, short_side=96, shard_samples=10, executor="serial", max_bad=3)
    return source, url
