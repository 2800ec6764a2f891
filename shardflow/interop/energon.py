"""Files for Megatron Energon: metadata in `.nv-meta`, and for each tar the offsets of its samples, `.tar.idx`.

`energon prepare` writes the same files (megatron-energon 7), and `index.sqlite`, which finds samples by key and cannot
be made if two splits use the same keys. The `.yaml` files are JSON, which is YAML too.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from shardflow.dataset.open_dataset import Dataset
from shardflow.errors import ConfigError
from shardflow.formats import ustar
from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.formats.shard_index import Index

from . import beside_shards

_META = ".nv-meta"


def write_energon(dataset: Dataset, directory: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """Write an index per shard and then the metadata into a directory, by default beside the shards; yield the paths.

    No tar is read. Samples are images with the number of their class, or only images if there are no labels. A `.yaml`
    file that was edited, or that this command did not write, is refused with a ConfigError.
    """
    if dataset.manifest.roots:
        raise ConfigError(
            f"{dataset.url} has the shards of another dataset, and Energon reads whole ones; `shardflow sync` it first"
        )
    root = beside_shards(dataset.storage, directory)
    images: set[str] = set()
    for split in dataset.values():
        for number, shard in enumerate(split.shards):
            index = split.reader.index(number)
            images |= {part.decode() for part in np.unique(index["part"]).tolist()} & IMAGE_PARTS
            root.put(f"{shard.name}.idx", _offsets(index))
            yield root.local_path(f"{shard.name}.idx")
    if len(images) != 1:
        raise ConfigError(f"{dataset.url}: Energon reads images of one format, found {sorted(images)}")
    metadata = {f"{_META}/{name}": _file(name, content) for name, content in _metadata(dataset, images.pop()).items()}
    for name in metadata:
        path = root.local_path(name)
        if name.endswith(".yaml") and path.exists() and not _is_own(root.read(name)):
            raise ConfigError(f"{path} was edited, or is not of this command; move it, or name another directory")
    for name, data in metadata.items():
        root.put(name, data)
        yield root.local_path(name)


def _file(name: str, content: object) -> bytes:
    """Return a file of the metadata; one that people edit, such as `dataset.yaml`, begins with its checksum."""
    data = json.dumps(content, indent=1).encode() + b"\n"
    return _seal(data) + data if name.endswith(".yaml") else data


def _seal(data: bytes) -> bytes:
    return f"# shardflow sha256:{hashlib.sha256(data).hexdigest()}\n".encode()


def _is_own(data: bytes) -> bool:
    content = data.partition(b"\n")[2]
    return data == _seal(content) + content


def _offsets(index: Index) -> bytes:
    """Return the offset of the first header of each sample, and the end of the last sample: little-endian uint64."""
    first = np.flatnonzero(np.diff(index["record"].astype(np.int64), prepend=-1))
    begins = index["offset"][first] - ustar.BLOCK
    last = index[-1]
    end = int(last["offset"]) + int(last["size"]) + ustar.padding(int(last["size"]))
    return np.append(begins, end).astype("<u8").tobytes()


def _metadata(dataset: Dataset, image: str) -> dict[str, object]:
    labelled = dataset.classes is not None
    return {
        ".info.json": {"shard_counts": {shard.name: shard.samples for shard in dataset.shards}},
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
