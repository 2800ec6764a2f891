"""Index files for the webdataset reader of NVIDIA DALI, which otherwise walks through every tar before it starts.

The format is that of DALI's `wds2idx` script, version 1.2: a line with the version and the number of samples, then a
line per sample with extension, offset of the payload, size and member name of each of its parts, separated by blanks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from shardflow.dataset.dataset import Dataset
from shardflow.dataset.mapped_shard import MappedShard
from shardflow.dataset.shard_files import beside_shards
from shardflow.errors import ConfigError
from shardflow.formats.tar_samples import split_member_name

_VERSION = "v1.2"


def write_dali_indexes(dataset: Dataset, directory: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """Write an index file per shard, and yield the path of each as it is written.

    The names are those of the shards, "train/000000.idx" for "train/000000.tar". Of the tars, only headers are read;
    shards that are not on a local disk are fetched into the cache for that. What is there already is written anew.

    Args:
        dataset: Whose shards.
        directory: Where to write them; by default beside the shards.

    Raises:
        ConfigError: There is no directory, and the shards are not on a local disk; or a member's name has a blank.
        StoreError: A shard is missing, or a file cannot be written.
        IntegrityError: A shard is damaged.
    """
    root = beside_shards(dataset.storage, directory)
    for split in dataset.values():
        for number, shard in enumerate(split.shards):
            name = str(PurePosixPath(shard.name).with_suffix(".idx"))
            root.put(name, _index(split.shard(number), shard.samples).encode())
            yield root.local_path(name)


def _index(shard: MappedShard, samples: int) -> str:
    lines = [f"{_VERSION} {samples}"]
    for record in range(samples):
        fields: list[str] = []
        for member in shard.members(record):
            if any(character.isspace() for character in member.name):
                raise ConfigError(f"{shard.url}: DALI cannot read member {member.name!r}, whose name has a blank")
            _, part = split_member_name(member.name) or ("", "")
            fields += [part, str(member.offset), str(member.size), member.name]
        lines.append(" ".join(fields))
    return "\n".join(lines) + "\n"
