"""Virtual storage: the storage of a dataset whose tars lie elsewhere, in its roots; no other module needs to know."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from shardflow.errors import ConfigError
from shardflow.formats.roots import Root, split_shard_name

from .cache import Cache
from .file_names import is_below
from .resolve import open_storage
from .storage import MAX_READ_BYTES, ListedBlob, Storage, Writer
from .urls import divide_query, is_remote, remote_options, shown_url, url_text


class VirtualStorage:
    """Tars in their roots, named SPLIT/ROOT/PATH.tar; everything else in the dataset's own storage. See Storage."""

    def __init__(self, own: Storage, roots: Mapping[str, Storage]) -> None:
        self._own, self._roots = own, dict(roots)

    def __str__(self) -> str:
        return str(self._own)

    def _locate(self, name: str) -> tuple[Storage, str]:
        if not name.endswith(".tar"):
            return self._own, name
        root, path = split_shard_name(name)
        return self._roots[root], path

    def url(self, name: str) -> str:
        """Return the URL of a blob where it really lies."""
        storage, name = self._locate(name)
        return storage.url(name)

    def local_path(self, name: str) -> Path | None:
        """Return the path of a blob on this machine, None where it has none."""
        storage, name = self._locate(name)
        return storage.local_path(name)

    def read(self, name: str, cache: Cache | None = None, *, most_bytes: int = MAX_READ_BYTES) -> bytes:
        """Return the content of a blob."""
        storage, name = self._locate(name)
        return storage.read(name, cache, most_bytes=most_bytes)

    def read_tagged(self, name: str) -> tuple[bytes, str]:
        """Return the content of a blob, and its tag."""
        storage, name = self._locate(name)
        return storage.read_tagged(name)

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes of a blob from `start` to `stop`, fewer where the blob ends before."""
        storage, name = self._locate(name)
        return storage.read_range(name, start, stop)

    def size(self, name: str) -> int | None:
        """Return the size of a blob in bytes, None if it does not exist."""
        storage, name = self._locate(name)
        return storage.size(name)

    def get(self, name: str, target: Path, *, size: int, sha256: str) -> None:
        """Copy a blob of known content into a new local file."""
        storage, name = self._locate(name)
        storage.get(name, target, size=size, sha256=sha256)

    def put(self, name: str, data: bytes) -> None:
        """Publish a blob, and replace an existing one."""
        storage, name = self._locate(name)
        storage.put(name, data)

    def put_new(self, name: str, data: bytes) -> None:
        """Publish a blob that must not exist."""
        storage, name = self._locate(name)
        storage.put_new(name, data)

    def replace(self, name: str, data: bytes, tag: str) -> None:
        """Publish a blob in the place of the one with this tag."""
        storage, name = self._locate(name)
        storage.replace(name, data, tag)

    def upload(self, name: str, source: Path) -> None:
        """Publish a local file as a blob."""
        storage, name = self._locate(name)
        storage.upload(name, source)

    def listing(self) -> dict[str, ListedBlob]:
        """Return the blobs of the dataset's own storage by name, sorted."""
        return self._own.listing()

    def remove(self, name: str) -> None:
        """Delete a blob. A missing one is no error."""
        storage, name = self._locate(name)
        storage.remove(name)

    def abort_uploads(self, names: Collection[str]) -> None:
        """Abort the unfinished uploads of these blobs, with one call for each storage that has any."""
        located = [self._locate(name) for name in names]
        for storage in (self._own, *self._roots.values()):
            if here := {name for holder, name in located if holder is storage}:
                storage.abort_uploads(here)

    def exclusive_writer(self) -> AbstractContextManager[Writer]:
        """Keep other writers out of the dataset's own storage."""
        return self._own.exclusive_writer()


def virtual_storage(
    storage: Storage,
    url: str | os.PathLike[str],
    roots: Mapping[str, Root],
    storage_options: Mapping[str, Any] | None = None,
) -> Storage:
    """Return the storage of a dataset whose manifest is in `storage` and names these roots; itself without any.

    `url` is the one by which the storage was opened: roots are below the same container, and have the same signature.
    """
    where = url_text(url) if is_remote(url) else str(storage)
    urls = {name: root_url(where, root) for name, root in roots.items()}
    hosts = {urlsplit(url)[:2] for url in urls.values() if is_remote(url)}
    if storage_options and storage.local_path("") is not None and len(hosts) != 1:
        found = f"its tars are in {len(hosts)} places" if hosts else "leave them out for a directory"
        raise ConfigError(f"{storage}: storage_options are for one place such as s3://bucket/prefix; {found}")
    if not roots:
        return storage
    opened = {name: open_storage(url, remote_options(url, storage_options)) for name, url in urls.items()}
    return VirtualStorage(storage, opened)


def root_url(url: str, root: Root) -> str:
    """Return the path or URL of a root of the dataset at `url`; a remote one must stay in its own bucket or host."""
    if not is_remote(url):
        return str(Path(url, root.url)) if root.is_relative else root.url
    place, query = divide_query(url)
    scheme, host, path, _, _ = urlsplit(place)
    parts = path.strip("/").split("/") if path.strip("/") else []
    above = root.url.split("/").count("..")
    is_clean = is_below("/".join(part for part in root.url.split("/") if part != ".."))
    if not root.is_relative or above > len(parts) or not is_clean:
        rule = f"its shards are in {root.url}, and a dataset behind a URL may only lead to its own bucket or host"
        raise ConfigError(f"{shown_url(url)}: {rule}; copy its manifest and indexes to a local disk if you trust it")
    joined = posixpath.normpath(posixpath.join("/", *parts, root.url)).rstrip("/")
    return urlunsplit((scheme, host, joined, "", "")) + query


def relative_root(storage: Storage, target: Storage) -> str:
    """Return the path or URL by which a dataset in `storage` names `target` as a root, if a reader would follow it."""
    here, there = storage.local_path(""), target.local_path("")
    if there is not None:
        if here is None:
            raise ConfigError(f"{storage} cannot name {target} on this machine; `shardflow sync` it there first")
        # Resolved, because a path relative to a link is relative to the target of the link.
        return os.path.relpath(os.path.realpath(there), os.path.realpath(here))
    if here is not None:
        return str(target)
    ours, theirs = urlsplit(str(storage)), urlsplit(str(target))
    if ours[:2] != theirs[:2]:
        message = f"{storage} cannot name shards of another bucket or host, {target}"
        raise ConfigError(f"{message}; choose a place beside them or on a disk")
    return posixpath.relpath(theirs.path or "/", ours.path or "/")
