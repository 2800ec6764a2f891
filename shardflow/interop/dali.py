"""Index files for the webdataset reader of NVIDIA DALI, which otherwise scans every tar before it starts.

The format is that of DALI's `wds2idx` script, version 1.2: a line with the version and the number of samples, then a
line per sample, with extension, payload offset, size and member name of each part, separated by spaces.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from shardflow.dataset.open_dataset import Dataset
from shardflow.dataset.reader import ShardReader
from shardflow.errors import ConfigError
from shardflow.formats.tar_samples import split_member_name

from . import beside_shards

_VERSION = "v1.2"


def write_dali_indexes(dataset: Dataset, directory: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """Write an index file per shard into a directory, by default next to the shards; yield the path of each.

    The file for "train/000000.tar" is "train/000000.idx"; an existing file is replaced. Only the headers of the tars
    are read, but remote shards are downloaded whole into the cache.
    """
    root = beside_shards(dataset.storage, directory)
    for split in dataset.values():
        for number, shard in enumerate(split.shards):
            name = str(PurePosixPath(shard.name).with_suffix(".idx"))
            root.put(name, _index(split.reader, number).encode())
            yield root.local_path(name)


def _index(reader: ShardReader, shard: int) -> str:
    samples = reader.shards[shard].samples
    lines = [f"{_VERSION} {samples}"]
    for record in range(samples):
        fields: list[str] = []
        for member in reader.members(shard, record):
            if any(character.isspace() for character in member.name):
                message = f"DALI cannot read member {member.name!r}, because its name has a space; rename it"
                raise ConfigError(f"{reader.url(shard)}: {message}")
            _, part = split_member_name(member.name) or ("", "")
            fields += [part, str(member.offset), str(member.size), member.name]
        lines.append(" ".join(fields))
    return "\n".join(lines) + "\n"
