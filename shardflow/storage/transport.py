"""A transport: the requests that a remote store is made of. `s3` and `anyscheme` have the two that there are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from .storage import ListedBlob


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a store says of a blob.

    The tag, where there is one, changes with the content; times are the store's. What was written here has
    `sha256` among its metadata.
    """

    size: int
    tag: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    modified_ns: int | None = None


class Transport(Protocol):
    """Requests for the blobs below one root, each tried until it succeeds or fails for good.

    All run on the event loop of the process that made the transport. Errors are the project's own.
    """

    async def fetch(
        self, name: str, start: int, stop: int, head: Head | None, heard: Callable[[Head], None]
    ) -> list[bytes]:
        """Return the bytes from `start` to `stop`, or to the end where that comes first, in chunks.

        Args:
            name: The blob.
            start: The first byte.
            stop: The byte after the last.
            head: What earlier requests found, so that all bytes are of one blob; without a tag where the size is known
                and nothing was asked yet, None where not even that.
            heard: Called with what was found where there was no tag, before the bytes are there.

        Raises:
            ChangedError: The blob is no longer the one of `head`.
        """
        ...

    async def head(self, name: str) -> Head | None:
        """Return what is known of a blob, None when there is none."""
        ...

    async def put(self, name: str, data: bytes, *, new: bool) -> None:
        """Publish a blob; DatasetExistsError when it must be new and is not."""
        ...

    async def upload(self, name: str, source: Path) -> None:
        """Publish a file."""
        ...

    async def listing(self) -> dict[str, ListedBlob]:
        """Return the names of all blobs, in any order, with what a listing says of each."""
        ...

    async def close_uploads(self, names: Collection[str]) -> None:
        """Give up the uploads of these blobs that were begun and not completed."""
        ...

    async def remove(self, name: str) -> None:
        """Delete a blob, if there is one."""
        ...

    async def close(self) -> None:
        """Let the connections go."""
        ...
