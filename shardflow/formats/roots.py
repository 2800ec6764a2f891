"""A base: a place where tars lie that a dataset uses and does not own. A dataset with bases is a *view*.

The shards of a view are named SPLIT/BASE/PATH.tar. The tar is PATH.tar in the base of that name; beside the manifest,
under the shard's own name, lies nothing but an index, of those records of the tar that belong to the view. So a record
of a view is a slice of a tar as any other, and a tar may give records to several splits.

Where a base is does not belong to what the dataset is: a view that was moved, or given copies of its bases, keeps its
fingerprint. A base is named by whoever wrote the manifest, and read with the reader's own rights. So the manifest of a
dataset behind a URL can lead no further than to its own bucket or host, and none leads to an absolute path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from shardflow.errors import ManifestError

SCHEMES = frozenset({"abfs", "abfss", "az", "gcs", "gs", "hf", "http", "https", "s3", "s3a"})
"""What an absolute URL may begin with: no scheme that leads to this machine's own files, or into an archive."""

_FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """One place of tars.

    Args:
        url: A path relative to the manifest's directory, "../photos256", "." for that itself, or a URL without
            credentials, "s3://bucket/photos256".
        fingerprint: Of the dataset there when the view was made; None where there was none.

    Raises:
        ManifestError: The URL is neither, or the fingerprint is none.
    """

    url: str
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.url, str) and (_is_relative(self.url) or _is_remote(self.url))):
            raise ManifestError(
                f"base {self.url!r} is neither a relative path such as '../photos256' nor a URL of "
                f"{', '.join(sorted(SCHEMES))} without credentials, query and '..'"
            )
        if self.fingerprint is not None and not (
            isinstance(self.fingerprint, str) and _FINGERPRINT.fullmatch(self.fingerprint)
        ):
            raise ManifestError(f"base {self.url!r}: {self.fingerprint!r} is no fingerprint")

    @property
    def is_relative(self) -> bool:
        """Whether it is a path relative to the manifest."""
        return "://" not in self.url

    def to_json(self) -> dict[str, Any]:
        """Return what `json` can write."""
        return {"url": self.url, "fingerprint": self.fingerprint}


def split_shard_name(name: str) -> tuple[str, str]:
    """Return the base of a view's shard, and the path of its tar there.

    Raises:
        ManifestError: It is not named as the shards of a view are.
    """
    parts = name.split("/", 2)
    if len(parts) < 3:
        raise ManifestError(f"shard {name!r} of a dataset with bases is not named SPLIT/BASE/PATH.tar")
    return parts[1], parts[2]


def _is_relative(url: str) -> bool:
    """Whether it is a relative path that goes up at its beginning alone."""
    parts = url.split("/")
    while len(parts) > 1 and parts[0] == "..":
        parts.pop(0)
    plain = not ({"", ".", ".."} & set(parts)) or parts in (["."], [".."])
    return plain and "://" not in url and url.isprintable() and not (parts == ["."] and url != ".")


def _is_remote(url: str) -> bool:
    try:
        scheme, place, path, _, _ = urlsplit(url)
    except ValueError:
        return False
    clean = url.isprintable() and not any(text in url for text in ("@", "?", "#", "::", "\\"))
    return scheme in SCHEMES and bool(place) and clean and ".." not in path.split("/")
