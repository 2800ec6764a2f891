"""Interop: small files with which other loaders read the shards."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from shardflow.errors import ConfigError
from shardflow.storage.interface import Storage
from shardflow.storage.local import LocalStorage
from shardflow.storage.urls import strip_file_scheme

SEAL = "urn:sha256:" + "0" * 64
"""A file's last occurrence of this text is replaced by its checksum in `write_sealed`."""

_CHECKSUM = re.compile(rb"(?<=urn:sha256:)[0-9a-f]{64}(?!.*urn:sha256:)", re.DOTALL)


def beside_shards(storage: Storage, directory: str | os.PathLike[str] | None) -> LocalStorage:
    """Return the storage for the files of other readers: a directory, or by default that of the shards."""
    if directory is not None:
        return LocalStorage(strip_file_scheme(directory))
    if (root := storage.local_path("")) is None:
        raise ConfigError(f"{storage} is not a local directory; name one for these files")
    return LocalStorage(root)


def write_sealed(root: LocalStorage, files: Mapping[str, str]) -> Iterator[Path]:
    """Write files, with a checksum in place of their `SEAL`, if they have one; yield their paths.

    Raises:
        ConfigError: A file exists that this function did not write, or that was edited since. Nothing is written.
    """
    for name, text in files.items():
        path = root.local_path(name)
        if SEAL in text and path.exists() and not _is_sealed(root.read(name)):
            message = f"{path} is not a file that this command wrote, or was edited"
            raise ConfigError(f"{message}; move it, or name another directory")
    for name, text in files.items():
        root.put(name, _sealed(text.encode()) if SEAL in text else text.encode())
        yield root.local_path(name)


def _sealed(data: bytes) -> bytes:
    """Return the content of a file with its checksum, which is computed with zeros in its own place."""
    checksum = hashlib.sha256(_CHECKSUM.sub(b"0" * 64, data)).hexdigest()
    return _CHECKSUM.sub(checksum.encode(), data)


def _is_sealed(data: bytes) -> bool:
    return _CHECKSUM.search(data) is not None and _sealed(data) == data
