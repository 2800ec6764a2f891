"""A running store other than S3, whichever kind it is: how tests reach it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardflow.storage.interface import Storage
from shardflow.storage.remote import remote_storage
from shardflow.storage.retry import RetryPolicy
from tests.helpers.s3_server import PATIENT, PIECE_BYTES


@dataclass(frozen=True)
class Store:
    """A store: its endpoint, the URL of its bucket, and the storage_options that lead to an endpoint."""

    endpoint: str
    bucket: str
    options_for: Callable[[str], dict[str, Any]]

    def options(self, endpoint: str | None = None) -> dict[str, Any]:
        """Return the storage_options that lead to it, or to a proxy before it."""
        return self.options_for(endpoint or self.endpoint)

    def url(self, prefix: str) -> str:
        """Return the URL of a prefix in the bucket."""
        return f"{self.bucket}/{prefix}"

    def storage(self, prefix: str, endpoint: str | None = None, policy: RetryPolicy = PATIENT) -> Storage:
        """Return a storage on it; through a proxy, one with few attempts and small pieces."""
        if endpoint is None:
            return remote_storage(self.url(prefix), self.options())
        return remote_storage(self.url(prefix), self.options(endpoint), retry_policy=policy, piece_bytes=PIECE_BYTES)

    def contents(self, prefix: str) -> dict[str, bytes]:
        """Return every blob below a prefix."""
        storage = self.storage(prefix)
        return {name: storage.read(name) for name in storage.listing()}

    def put(self, prefix: str, folder: Path) -> str:
        """Put the files of a folder below a prefix, and return its URL."""
        storage = self.storage(prefix)
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            storage.put(path.relative_to(folder).as_posix(), path.read_bytes())
        return self.url(prefix)
