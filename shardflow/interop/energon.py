"""Files for Megatron Energon: metadata in `.nv-meta`, and for each tar the offsets of its samples in `.tar.idx`.

`energon prepare` (megatron-energon 7) writes the same files, and `index.sqlite`, which finds samples by key and is
impossible if two splits share keys. The `.yaml` files are JSON, which is YAML too.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from shardflow.dataset.open_dataset import Dataset
from shardflow.errors import ConfigError
from shardflow.formats import ustar
from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.formats.labels import CLASS_PART
from shardflow.formats.shard_index import Index

from . import SEAL, beside_shards, write_sealed

logger = logging.getLogger(__name__)

_META = ".nv-meta"


def write_energon(dataset: Dataset, directory: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """Write an index per shard and then the metadata into a directory, by default next to the shards; yield the paths.

    No tar is read. Samples are images with class numbers, or only images if some samples have several classes or none.

    Raises:
        ConfigError: The dataset is virtual, its images have several formats, or a `.yaml` file was edited or was not
            written by this function.
    """
    if dataset.manifest.roots:
        raise ConfigError(
            f"{dataset.url} has parts of another dataset's shards, but Energon reads whole shards; "
            f"export the dataset that `shardflow pack {dataset.url} DST --preset original` makes"
        )
    root = beside_shards(dataset.storage, directory)
    images: set[str] = set()
    labelled = dataset.classes is not None
    for split in dataset.values():
        for number, shard in enumerate(split.shards):
            index = split.reader.index(number)
            images |= {part.decode() for part in np.unique(index["part"]).tolist()} & IMAGE_PARTS
            labelled &= int((index["part"] == CLASS_PART.encode()).sum()) == shard.samples
            root.put(f"{shard.name}.idx", _offsets(index))
            yield root.local_path(f"{shard.name}.idx")
    if len(images) != 1:
        raise ConfigError(f"{dataset.url}: Energon needs images of one format, found {sorted(images)}")
    if dataset.classes and not labelled:
        logger.warning("%s: not every sample has one class, so dataset.yaml has images without labels", dataset.url)
    metadata = _metadata(dataset, images.pop(), labelled=labelled).items()
    yield from write_sealed(root, {f"{_META}/{name}": _file(name, content) for name, content in metadata})


def _file(name: str, content: object) -> str:
    """Return a file of the metadata. YAML files, which people edit, get a seal."""
    return f"# shardflow {SEAL}\n" * name.endswith(".yaml") + json.dumps(content, indent=1) + "\n"


def _offsets(index: Index) -> bytes:
    """Return the offset of each sample's first header, and the end of the last sample, as little-endian uint64."""
    first = np.flatnonzero(np.diff(index["record"].astype(np.int64), prepend=-1))
    begins = index["offset"][first] - ustar.BLOCK
    last = index[-1]
    end = int(last["offset"]) + int(last["size"]) + ustar.padding(int(last["size"]))
    return np.append(begins, end).astype("<u8").tobytes()


def _metadata(dataset: Dataset, image: str, *, labelled: bool) -> dict[str, object]:
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
