"""What Megatron Energon needs to read a dataset: `.nv-meta`, and beside each tar the places of its samples, `.tar.idx`.

That is what `energon prepare` writes (megatron-energon 7), but for `index.sqlite`, which is for finding samples by key,
and cannot be made where two splits use the same keys. The files named `.yaml` are JSON, which is YAML as well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from shardflow.dataset.dataset import Dataset
from shardflow.dataset.shard_files import beside_shards
from shardflow.errors import ConfigError
from shardflow.formats import ustar
from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.formats.shard_index import Index

_META = ".nv-meta"


def write_energon(dataset: Dataset, directory: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """Write an index per shard and then the description of the whole, and yield the path of each as it is written.

    No tar is read. Samples are images with the number of their class, or images alone where there are no labels.

    Args:
        dataset: Whose shards.
        directory: Where to write; by default beside the shards, where Energon looks. Files that went elsewhere have to
            be copied there.

    Raises:
        ConfigError: There is no directory, and the shards are not on a local disk; or they belong to other datasets.
        StoreError: An index is missing, or a file cannot be written.
        IntegrityError: An index is damaged.
    """
    if dataset.manifest.roots:
        raise ConfigError(f"{dataset.url} has no shards of its own, and Energon reads whole ones; `shardflow sync` it")
    root = beside_shards(dataset.storage, directory)
    images: set[str] = set()
    for split in dataset.values():
        for number, shard in enumerate(split.shards):
            index = split.index(number)
            images |= {part.decode() for part in np.unique(index["part"]).tolist()} & IMAGE_PARTS
            root.put(f"{shard.name}.idx", _places(index))
            yield root.local_path(f"{shard.name}.idx")
    if len(images) != 1:
        raise ConfigError(f"{dataset.url}: Energon reads one kind of images, and here are {sorted(images)}")
    for name, content in _described(dataset, images.pop()).items():
        root.put(f"{_META}/{name}", json.dumps(content, indent=1).encode() + b"\n")
        yield root.local_path(f"{_META}/{name}")


def _places(index: Index) -> bytes:
    """Return where each sample begins in the tar, with its first header, and where the last one ends: uint64."""
    first = np.flatnonzero(np.diff(index["record"].astype(np.int64), prepend=-1))
    begins = index["offset"][first] - ustar.BLOCK
    last = index[-1]
    end = int(last["offset"]) + int(last["size"]) + ustar.padding(int(last["size"]))
    return np.append(begins, end).astype("<u8").tobytes()


def _described(dataset: Dataset, image: str) -> dict[str, object]:
    labelled = dataset.classes is not None
    return {
        ".info.json": {
            "shard_counts": {shard.name: shard.samples for shard in dataset.shards},
        },
        "split.yaml": {
            "split_parts": {name: [shard.name for shard in split.shards] for name, split in dataset.items()},
            "exclude": [],
        },
        "dataset.yaml": {
            "sample_type": {
                "__module__": "megatron.energon",
                "__class__": "ImageClassificationSample" if labelled else "ImageSample",
            },
            "field_map": {"image": image, **({"label": "cls"} if labelled else {})},
        },
    }
