"""Interop: the small files by which other loaders read our shards."""

from __future__ import annotations

import os

from shardflow.errors import ConfigError
from shardflow.storage.interface import Storage
from shardflow.storage.local import LocalStorage
from shardflow.storage.urls import strip_file_scheme


def beside_shards(storage: Storage, directory: str | os.PathLike[str] | None) -> LocalStorage:
    """Return where files for other readers go: a directory, or by default beside the shards."""
    if directory is not None:
        return LocalStorage(strip_file_scheme(directory))
    if (root := storage.local_path("")) is None:
        raise ConfigError(f"{storage} is not a local directory; name one for these files")
    return LocalStorage(root)
