"""Virtual storage: the storage of a dataset whose tars are elsewhere, in its roots. Other modules need not know."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from shardflow.errors import ConfigError, NotFoundError
from shardflow.formats.virtual_roots import Root, split_shard_name

from .file_names import is_below
from .interface import Storage
from .resolve import open_storage
from .urls import divide_query, is_remote, shown_url, url_text
from .wrapper import StorageWrapper


class VirtualStorage(StorageWrapper):
    """Tars and receipts, SPLIT/ROOT/PATH.tar and .json, in their roots; all other blobs in the dataset's own storage.

    See Storage.
    """

    def __init__(self, own: Storage, roots: Mapping[str, Storage]) -> None:
        super().__init__(own)
        self._roots = dict(roots)

    def _locate(self, name: str) -> tuple[Storage, str]:
        if not name.endswith(".tar") and not (name.endswith(".json") and name.count("/") > 1):
            return self._inner, name
        root, path = split_shard_name(name)
        return self._roots[root], path

    @property
    def idle_timeout_s(self) -> float:
        """The longest timeout of the roots."""
        return max(root.idle_timeout_s for root in self._roots.values())

    def abort_uploads(self, names: Collection[str]) -> None:
        """Abort the unfinished uploads of these blobs, with one call per storage."""
        located = [self._locate(name) for name in names]
        for storage in (self._inner, *self._roots.values()):
            if here := {name for holder, name in located if holder is storage}:
                storage.abort_uploads(here)


def virtual_storage(
    storage: Storage,
    url: str | os.PathLike[str],
    roots: Mapping[str, Root],
    storage_options: Mapping[str, Any] | None = None,
    *,
    must_exist: bool = False,
) -> Storage:
    """Return the storage of a dataset with these roots, whose manifest is in `storage`; `storage` itself without roots.

    `url` is that of `storage`, whose container and signature apply to the roots too.

    Raises:
        ConfigError: `storage_options` are given, but the tars are in several places or all in directories.
        NotFoundError: With `must_exist`, a root on this machine has moved or is gone.
    """
    places = {name: root_url(url_text(url) if is_remote(url) else str(storage), root) for name, root in roots.items()}
    hosts = {urlsplit(place)[:2] for place in places.values() if is_remote(place)}
    if storage_options and storage.local_path("") is not None and len(hosts) != 1:
        found = f"its tars are in {len(hosts)} places" if hosts else "leave them out for a directory"
        raise ConfigError(f"{storage}: storage_options are for one place such as s3://bucket/prefix; {found}")
    if not roots:
        return storage
    for place in places.values():
        if must_exist and not is_remote(place) and not os.path.isdir(place):
            remedy = (
                "put that back, or make the view again with its new place (`shardflow index`, `subset`, `split`, …)"
            )
            message = f"{storage} is a view of {os.path.abspath(place)}, which was moved or removed"
            raise NotFoundError(f"{message}; {remedy}")
    opened = {name: open_storage(place, storage_options, may_be_local=True) for name, place in places.items()}
    return VirtualStorage(storage, opened)


def root_url(url: str, root: Root) -> str:
    """Return the path or URL of a root of the dataset at `url`; that of a remote dataset is in its bucket or host."""
    if not is_remote(url):
        if not root.is_relative:
            return root.url
        place = os.path.join(url, root.url)
        short = os.path.normpath(place)  # which is another place if a part of it before `..` is a link
        return short if os.path.realpath(short) == os.path.realpath(place) else place
    place, query = divide_query(url)
    scheme, host, path, _, _ = urlsplit(place)
    parts = path.strip("/").split("/") if path.strip("/") else []
    above = root.url.split("/").count("..")
    is_clean = is_below("/".join(part for part in root.url.split("/") if part != ".."))
    if not root.is_relative or above > len(parts) or not is_clean:
        rule = f"its shards are in {root.url}, but a remote dataset may only name its own bucket or host"
        raise ConfigError(f"{shown_url(url)}: {rule}; if you trust it, copy its manifest and indexes to a local disk")
    joined = posixpath.normpath(posixpath.join("/", *parts, root.url)).rstrip("/")
    return f"{scheme}://{host}{joined}{query}"


def relative_root(storage: Storage, target: Storage) -> str:
    """Return the path or URL by which a dataset in `storage` names `target` as a root.

    Raises:
        ConfigError: A reader would refuse that root.
    """
    here, there = storage.local_path(""), target.local_path("")
    if here is not None and str(target).startswith("local://"):  # fsspec's scheme for local directories
        there = Path(urlsplit(str(target)).path)
    if there is not None:
        if here is None:
            raise ConfigError(f"{storage} cannot name {target} on this machine; `shardflow sync` it there first")
        # Resolved, because `..` after a link leads to the parent of the link's target.
        return os.path.relpath(os.path.realpath(there), os.path.realpath(here))
    if here is not None:
        return str(target)
    ours, theirs = urlsplit(str(storage)), urlsplit(str(target))
    if ours[:2] != theirs[:2]:
        message = f"{storage} cannot name shards of another bucket or host, {target}"
        raise ConfigError(f"{message}; choose a place next to them or on a disk")
    return posixpath.relpath(theirs.path or "/", ours.path or "/")
