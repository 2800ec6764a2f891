"""The wrapper of a storage, which passes each call on; a class that adds behaviour changes some of the calls."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from pathlib import Path

from .interface import MAX_READ_BYTES, BlobVersion, Storage, Writer


class StorageWrapper:
    """The storage that it wraps; see Storage."""

    def __init__(self, inner: Storage) -> None:
        self._inner = inner

    def __str__(self) -> str:
        return str(self._inner)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inner!r})"

    def _locate(self, name: str) -> tuple[Storage, str]:
        """Return the storage that holds a blob, and its name there."""
        return self._inner, name

    @property
    def idle_timeout_s(self) -> float:
        return self._inner.idle_timeout_s

    def url(self, name: str) -> str:
        """Return the URL at which a blob really is."""
        storage, name = self._locate(name)
        return storage.url(name)

    def local_path(self, name: str) -> Path | None:
        storage, name = self._locate(name)
        return storage.local_path(name)

    def read(self, name: str, *, most_bytes: int = MAX_READ_BYTES) -> bytes:
        storage, name = self._locate(name)
        return storage.read(name, most_bytes=most_bytes)

    def read_range(self, name: str, start: int, stop: int, *, version: BlobVersion | None = None) -> bytes:
        storage, name = self._locate(name)
        return storage.read_range(name, start, stop, version=version)

    def version(self, name: str) -> BlobVersion | None:
        storage, name = self._locate(name)
        return storage.version(name)

    def get(self, name: str, target: Path, *, size: int, sha256: str) -> None:
        storage, name = self._locate(name)
        storage.get(name, target, size=size, sha256=sha256)

    def put(self, name: str, content: bytes | Path, *, new: bool = False, replaces: str | None = None) -> None:
        storage, name = self._locate(name)
        storage.put(name, content, new=new, replaces=replaces)

    def listing(self, *, most: int | None = None) -> dict[str, BlobVersion]:
        """Return the blobs of the wrapped storage by name, sorted."""
        return self._inner.listing(most=most)

    def remove(self, name: str) -> None:
        storage, name = self._locate(name)
        storage.remove(name)

    def abort_uploads(self, names: Collection[str]) -> None:
        self._inner.abort_uploads(names)

    def exclusive_writer(self) -> AbstractContextManager[Writer]:
        """Keep other writers out of the wrapped storage."""
        return self._inner.exclusive_writer()
