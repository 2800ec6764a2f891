"""The Storage protocol: where a dataset's files lie.

A storage holds named blobs below one root. Names use forward slashes. What a writer publishes appears whole under its
final name, or not at all; a crash can leave files whose names start with `TEMPORARY`, never a half-written blob.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple, Protocol

TEMPORARY = ".tmp-"


class ListedBlob(NamedTuple):
    """An entry of a listing.

    Attributes:
        size: In bytes.
        tag: A text that changes with the content; "" where the storage has none.
        modified_ns: When the blob was published, by the clock of the storage, in ns since 1970; None if unknown.
    """

    size: int
    tag: str = ""
    modified_ns: int | None = None


class Storage(Protocol):
    """Named blobs below one root.

    Every method may be called from any thread, and in a process forked from the one that made the store. Whatever fails
    raises a StoreError or one of its kinds, IntegrityError or DatasetExistsError; what may be tried again has been.
    """

    def __str__(self) -> str:
        """Return the root as messages show it: never with credentials or a query."""
        ...

    def url(self, name: str) -> str:
        """Return how messages name a blob."""
        ...

    def read(self, name: str) -> bytes:
        """Return a blob: for small ones.

        Raises:
            NotFoundError: There is none of that name.
        """
        ...

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes of a blob from `start` to `stop`, fewer where it ends before. They are not checked.

        Raises:
            NotFoundError: There is none of that name; of a range that is empty a store may not find that out.
        """
        ...

    def size(self, name: str) -> int | None:
        """Return the size of a blob in bytes, None when there is none."""
        ...

    def modified_ns(self, name: str) -> int | None:
        """Return when a blob was published, by the store's own clock, in ns since 1970; None where it does not say.

        Raises:
            NotFoundError: There is none of that name.
        """
        ...

    def get(self, name: str, target: Path, *, size: int, sha256: str) -> None:
        """Copy a blob of known content into a local file that must not exist yet. It is not synced to the disk.

        Raises:
            IntegrityError: The blob has another size or SHA-256, also when it was read anew.
            NotFoundError: There is none of that name.
            StoreError: It could not be read, or the file not be written. As after any error, no file is left.
        """
        ...

    def put(self, name: str, data: bytes) -> None:
        """Publish a blob, in place of any of that name. Only for what no committed dataset names yet."""
        ...

    def put_new(self, name: str, data: bytes) -> None:
        """Publish a blob that must not exist yet.

        Raises:
            DatasetExistsError: There is one of that name; it is untouched.
        """
        ...

    def upload(self, name: str, source: Path) -> None:
        """Publish a local file as a blob, in place of any of that name: whole, or not at all. The file is used up."""
        ...

    def names(self) -> list[str]:
        """Return the names of all blobs and leftovers, sorted."""
        ...

    def listing(self) -> dict[str, ListedBlob]:
        """Return name → size and tag of all blobs and leftovers, sorted by name."""
        ...

    def remove(self, name: str) -> None:
        """Delete a blob or a leftover, if there is one."""
        ...

    def close_uploads(self, names: Collection[str]) -> None:
        """Give up the uploads of these blobs that writers which were killed have left open, where a store has such.

        Those of writers at work cannot be told from them, and fail: so only when nothing of these names is needed.
        """
        ...
