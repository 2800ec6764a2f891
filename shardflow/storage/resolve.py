"""The resolution of a path or URL to its storage."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from shardflow.errors import ConfigError

from .file_names import given_path, name_of
from .interface import Storage
from .local import LocalStorage
from .urls import is_remote, split_name, strip_file_scheme, url_text


def open_storage(
    url: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    to_write: bool = False,
    may_be_local: bool = False,
) -> Storage:
    """Return the storage at a path, a `file:` URL, or a URL of any scheme that fsspec serves: `s3://bucket/prefix`.

    The options are arguments of fsspec's file system for that scheme (`endpoint_url`, `key`, `anon`, …). One is ours:
    `deadline_s`, the seconds without progress after which requests are given up, 60 by default. The client takes
    anything else from its usual places: environment, profiles, instance roles. For a directory they are refused, or
    left out if the place `may_be_local`.

    Raises:
        ConfigError: The URL is none, or its scheme needs another package or can only be read and not `to_write`.
    """
    text = url_text(url)
    if is_remote(text):
        from .remote import remote_storage  # imported here because it loads the clients of the clouds

        return remote_storage(text, storage_options, to_write=to_write)
    if storage_options and not may_be_local:
        remedy = "leave them out for a directory"
        raise ConfigError(f"{text}: storage_options are for URLs such as s3://bucket/prefix; {remedy}")
    return LocalStorage(given_path(strip_file_scheme(text)))


def open_folder_of(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> tuple[Storage, str, str]:
    """Return the storage of the folder that a file is in, the folder, and the name of the file there.

    The options are for a URL; they are left out for a file on this machine.
    """
    folder, name = split_name(strip_file_scheme(url))
    storage = open_storage(folder, storage_options, may_be_local=True)
    return storage, folder, name if is_remote(folder) else name_of(name)
