"""Views: the store of a dataset whose tars lie in other places, its bases.

Whoever reads a dataset asks its store for a shard by name; here the names of tars lead to where the tars are. Nothing
else has to know. Bases are for reading alone.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from shardflow.errors import ConfigError
from shardflow.formats.roots import Root, split_shard_name

from .local import LocalStorage
from .resolve import open_storage
from .storage import ListedBlob, Storage
from .urls import is_remote


class LocalVirtualStorage(LocalStorage):
    """A view on a local disk whose bases are local as well."""

    def __init__(self, root: Path, bases: Mapping[str, Path]) -> None:
        super().__init__(root)
        self._bases = dict(bases)

    def path(self, name: str) -> Path:
        """Return where a blob lies: tars in their bases."""
        if not name.endswith(".tar"):
            return super().path(name)
        base, path = split_shard_name(name)
        return self._bases[base] / path


class VirtualStorage:
    """Any other view: tars are read from the stores of their bases, everything else is in the view's own."""

    def __init__(self, own: Storage, bases: Mapping[str, Storage]) -> None:
        self._own, self._bases = own, dict(bases)

    def __str__(self) -> str:
        return str(self._own)

    def _at(self, name: str) -> tuple[Storage, str]:
        if not name.endswith(".tar"):
            return self._own, name
        base, path = split_shard_name(name)
        return self._bases[base], path

    def url(self, name: str) -> str:
        """Return how messages name a blob: where it really is."""
        storage, path = self._at(name)
        return storage.url(path)

    def read(self, name: str) -> bytes:
        """Return a blob."""
        storage, path = self._at(name)
        return storage.read(path)

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes of a blob from `start` to `stop`, fewer where it ends before."""
        storage, path = self._at(name)
        return storage.read_range(path, start, stop)

    def size(self, name: str) -> int | None:
        """Return the size of a blob in bytes, None when there is none."""
        storage, path = self._at(name)
        return storage.size(path)

    def modified_ns(self, name: str) -> int | None:
        """Return when a blob was published, in ns since 1970."""
        storage, path = self._at(name)
        return storage.modified_ns(path)

    def get(self, name: str, target: Path, *, size: int, sha256: str) -> None:
        """Copy a blob of known content into a new local file."""
        storage, path = self._at(name)
        storage.get(path, target, size=size, sha256=sha256)

    def put(self, name: str, data: bytes) -> None:
        """Publish a blob, in place of any of that name."""
        storage, path = self._at(name)
        storage.put(path, data)

    def put_new(self, name: str, data: bytes) -> None:
        """Publish a blob that must not exist yet."""
        storage, path = self._at(name)
        storage.put_new(path, data)

    def upload(self, name: str, source: Path) -> None:
        """Publish a local file as a blob."""
        storage, path = self._at(name)
        storage.upload(path, source)

    def names(self) -> list[str]:
        """Return the names of all blobs that are the view's own, sorted."""
        return self._own.names()

    def listing(self) -> dict[str, ListedBlob]:
        """Return name → size and tag of all blobs that are the view's own."""
        return self._own.listing()

    def remove(self, name: str) -> None:
        """Delete a blob of the view's own."""
        self._own.remove(name)

    def close_uploads(self, names: Collection[str]) -> None:
        """Give up the uploads of these blobs that were begun and not completed."""
        places = [self._at(name) for name in names]
        for storage in (self._own, *self._bases.values()):
            if mine := {path for at, path in places if at is storage}:
                storage.close_uploads(mine)


def virtual_storage(
    storage: Storage, bases: Mapping[str, Root], storage_options: Mapping[str, Any] | None = None
) -> Storage:
    """Return the store of a dataset with these bases: the store itself where there are none.

    Args:
        store: Where the manifest is.
        bases: By name, as the manifest has them.
        storage_options: For bases behind URLs, as `open_store` takes them.

    Raises:
        ConfigError: A base is where this dataset may not lead to, or the options have no use, or more than one.
    """
    places = {name: root_url(str(storage), base) for name, base in bases.items()}
    hosts = {urlsplit(url)[:2] for url in places.values() if is_remote(url)}
    if storage_options and isinstance(storage, LocalStorage) and len(hosts) != 1:
        found = f"its tars are in {len(hosts)} places" if hosts else "leave them out for a directory"
        raise ConfigError(f"{storage}: storage_options are for one place such as s3://bucket/prefix; {found}")
    if not bases:
        return storage
    if isinstance(storage, LocalStorage) and not hosts:
        return LocalVirtualStorage(storage.root, {name: Path(path) for name, path in places.items()})
    storages = {name: open_storage(url, storage_options if is_remote(url) else None) for name, url in places.items()}
    return VirtualStorage(storage, storages)


def root_url(root: str, base: Root) -> str:
    """Return the path or URL of a base of a dataset below a path or URL.

    Raises:
        ConfigError: A remote dataset leads out of its own bucket or host.
    """
    if not is_remote(root):
        return str(Path(root, base.url)) if base.is_relative else base.url
    scheme, host, path, _, _ = urlsplit(root)
    parts = path.strip("/").split("/") if path.strip("/") else []
    if not base.is_relative or base.url.split("/").count("..") > len(parts):
        raise ConfigError(
            f"{root}: its shards are in {base.url}, and a dataset behind a URL may only lead to its own bucket or "
            "host; copy its manifest and indexes to a local disk if you trust it"
        )
    joined = posixpath.normpath(posixpath.join("/", *parts, base.url)).rstrip("/")
    return urlunsplit((scheme, host, joined, "", ""))


def relative_root(storage: Storage, target: Storage) -> str:
    """Return the URL by which a dataset in `store` can name what is in `target` as a base.

    Raises:
        ConfigError: There is none that a reader would follow.
    """
    if isinstance(target, LocalStorage):
        if not isinstance(storage, LocalStorage):
            raise ConfigError(f"{storage} cannot name {target} on this machine; `shardflow sync` that there first")
        # Resolved, because what is relative to a link is relative to where it leads.
        return os.path.relpath(os.path.realpath(target.root), os.path.realpath(storage.root))
    if isinstance(storage, LocalStorage):
        return str(target)
    ours, theirs = urlsplit(str(storage)), urlsplit(str(target))
    if ours[:2] != theirs[:2]:
        raise ConfigError(
            f"{storage} cannot name shards of another bucket or host, {target}; choose a place beside them or on a disk"
        )
    return posixpath.relpath(theirs.path or "/", ours.path or "/")
