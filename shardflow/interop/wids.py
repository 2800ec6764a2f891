"""What wids, the random-access part of WebDataset, needs to read a dataset: one JSON file per split.

It lists the tars and their numbers of samples (wids_version 1); wids finds the samples in them by itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from shardflow.dataset.dataset import Dataset
from shardflow.dataset.shard_files import beside_shards
from shardflow.errors import ConfigError
from shardflow.storage.virtual import relative_root


def write_wids(dataset: Dataset, directory: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """Write `SPLIT.wids.json` for each split, and yield the path of each as it is written.

    The tars are named relative to these files, or by their URLs.

    Args:
        dataset: Whose shards.
        directory: Where to write; by default beside the shards.

    Raises:
        ConfigError: There is no directory, and the shards are not on a local disk; or they belong to other datasets.
        StoreError: A file cannot be written.
    """
    if dataset.manifest.roots:
        raise ConfigError(f"{dataset.url} has no shards of its own, and wids reads whole ones; `shardflow sync` it")
    root = beside_shards(dataset.storage, directory)
    place = relative_root(root, dataset.storage)
    for name, split in dataset.items():
        shards = [
            {"url": f"{place}/{shard.name}", "nsamples": shard.samples, "filesize": shard.bytes}
            for shard in split.shards
        ]
        described = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": name, "shardlist": shards}
        root.put(f"{name}.wids.json", json.dumps(described, indent=1).encode() + b"\n")
        yield root.local_path(f"{name}.wids.json")
