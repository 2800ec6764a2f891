"""Roots: places with tars that a dataset reads and does not own. A dataset with roots is a *virtual dataset*.

Its shards are named SPLIT/ROOT/PATH.tar. The tar is PATH.tar in the root of that name. The dataset itself has only the
index of the shard, with the records of the tar that belong to the split. So every record is a slice of a tar, as in any
dataset, and several splits can share a tar.

The place of a root is not part of the dataset's identity: a virtual dataset that was moved, or that reads copies of its
roots, keeps its fingerprint. The writer of the manifest names the roots, but the reader opens them with the reader's
rights. So the manifest of a remote dataset leads only to its own bucket or host, and no manifest leads to an absolute
path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from shardflow.errors import ManifestError

from .json_object import JsonObject

_AZURE = frozenset({"abfs", "abfss", "az"})
SCHEMES = _AZURE | {"gcs", "gs", "hf", "http", "https", "s3", "s3a"}
"""Schemes of an absolute URL. None of them opens local files or the contents of an archive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Root(JsonObject):
    """A place with tars.

    Args:
        url: A path relative to the directory of the manifest ("../photos256", or "." for that directory), or a URL
            without credentials ("s3://bucket/photos256").
        fingerprint: Fingerprint of the root's dataset at the time of writing; None if the root is not a dataset.

    Raises:
        ManifestError: The URL or the fingerprint is not valid.
    """

    url: str
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.url, str) and (_is_relative(self.url) or _is_remote(self.url))):
            shown = self.url.partition("?")[0].rpartition("@")[2] if isinstance(self.url, str) else self.url
            raise ManifestError(
                f"root {shown!r} is neither a relative path such as '../photos256' nor a URL of "
                f"{', '.join(sorted(SCHEMES))} without credentials, query and '..'"
            )
        if self.fingerprint is not None and not re.fullmatch(r"sha256:[0-9a-f]{64}", str(self.fingerprint)):
            raise ManifestError(f"root {self.url!r}: {self.fingerprint!r} is not a fingerprint")

    @property
    def is_relative(self) -> bool:
        """Whether the URL is a path relative to the manifest."""
        return "://" not in self.url


def split_shard_name(name: str) -> tuple[str, str]:
    """Return the name of the root of a virtual dataset's shard, and the path of the tar below that root."""
    parts = name.split("/", 2)
    if len(parts) < 3:
        raise ManifestError(f"shard {name!r} of a virtual dataset is not named SPLIT/ROOT/PATH.tar")
    return parts[1], parts[2]


def name_of_other_tar(roots: Mapping[str, Root], shard: str) -> str | None:
    """Return the path of a tar of another tool below its root, given the name of its shard; None for packed shards."""
    if not roots:
        return None
    root, path = split_shard_name(shard)
    return path if roots[root].fingerprint is None else None


def _is_relative(url: str) -> bool:
    """Return whether a URL is a relative path, with ".." only at its beginning."""
    parts = url.split("/")
    if ":" in parts[0]:
        return False
    while parts[:1] == [".."]:
        parts.pop(0)
    return url.isprintable() and (url == "." or not {"", ".", ".."} & set(parts))  # "" is in the parts of any "://"


def _is_remote(url: str) -> bool:
    try:
        scheme, place, path, _, _ = urlsplit(url)
    except ValueError:
        return False
    if scheme in _AZURE and re.fullmatch(r"[a-z0-9$-]+@[A-Za-z0-9.-]+", place):  # CONTAINER@ACCOUNT
        url = url.replace("@", "/", 1)
    clean = url.isprintable() and not any(text in url for text in ("@", "?", "#", "::", "\\"))
    return scheme in SCHEMES and bool(place) and clean and ".." not in path.split("/")
