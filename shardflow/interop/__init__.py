"""Interop: the small files by which other loaders read our shards."""

from __future__ import annotations

import os

from shardflow.errors import ConfigError
from shardflow.storage.local import LocalStorage
from shardflow.storage.storage import Storage


def beside_shards(storage: Storage, directory: str | os.PathLike[str] | None) -> LocalStorage:
    """Return where files for other readers go: a directory, or by default beside the shards.

    Raises:
        ConfigError: No directory is named, and the shards are not on a local disk.
    """
    if directory is not None:
        return LocalStorage(directory)
    root = storage.local_path("")
    if root is None:
        raise ConfigError(f"{storage} is not a local directory; name one for these files")
    return LocalStorage(root)
