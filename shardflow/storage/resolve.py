"""Resolve: which storage a path or URL means."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from shardflow.errors import ConfigError

from .local import LocalStorage
from .storage import Storage
from .urls import is_remote, strip_file_scheme


def open_storage(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Storage:
    """Return the store behind a path or URL.

    Args:
        url: A path, a `file:` URL, or a URL of any scheme that fsspec serves: `s3://bucket/prefix`.
        storage_options: What fsspec's file system of that scheme takes (`endpoint_url`, `key`, `anon`, …). What is not
            said here comes from where its client looks by itself: environment, profiles, instance roles.

    Raises:
        ConfigError: The URL's scheme is not served, or there are options for a directory.
    """
    text = os.fspath(url)
    if is_remote(text):
        from .remote import RemoteStorage  # here alone, because it brings the clients of the clouds along

        return RemoteStorage(text, storage_options)
    if storage_options:
        raise ConfigError(
            f"{text}: storage_options are for URLs such as s3://bucket/prefix; leave them out for a directory"
        )
    return LocalStorage(strip_file_scheme(text))
