"""The Transport protocol: the requests that a remote storage makes.

The modules named after a kind of store implement it; `fsspec_transport` serves all the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from shardflow.errors import BucketNotFoundError, NotFoundError, StoreError

from .interface import ListedBlob

if TYPE_CHECKING:
    from .retry import Failure, RetryPolicy

T = TypeVar("T")


class ChangedError(StoreError):
    """The blob is not in the state that the request was conditional on. Never leaves the storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The properties of a blob, as the server sends them."""

    size: int  # in bytes
    tag: str | None = None  # changes with the content; None where the server has none
    metadata: Mapping[str, str] = field(default_factory=dict)  # of blobs written here to S3 or Azure, `sha256` too


class Fetched(NamedTuple):
    """A range of a blob, in chunks: joining them would be one more copy."""

    head: Head
    chunks: list[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """All that a transport is made of.

    Attributes:
        url: Of the root, with all that it may hold.
        shown: The same for messages: without credentials and query.
        options: The caller's storage_options.
        classify: Decides about an exception of the client, given the URL that messages name.
        policy: The limits of waits and retries.
        piece_bytes: That one request writes, where a file is written in parts.
    """

    url: str
    shown: str
    options: Mapping[str, Any]
    classify: Callable[[Exception, str], Failure]
    policy: RetryPolicy
    piece_bytes: int

    def blob(self, name: str) -> str:
        """Return the URL of a blob with the query that its name may have; the root itself without a name."""
        return f"{self.shown}/{name}" if name else self.shown


class Transport(Protocol):
    """Requests for the blobs below one root. Each is retried until it succeeds or fails permanently.

    All run on the event loop of the process that created the transport. They raise the project's own errors.
    """

    async def fetch(self, name: str, start: int, stop: int, head: Head | None) -> Fetched:
        """Return the bytes from `start` to `stop`, or to the end where that comes first, with the head of the blob.

        Args:
            name, start, stop: The blob, its first byte, and the byte after the last.
            head: From an earlier request, so that all bytes are of one blob. Without a tag if only the size is known,
                None if nothing is.

        Raises:
            ChangedError: The blob was replaced after `head` was received.
        """
        ...

    async def head(self, name: str) -> Head | None:
        """Return the head of a blob, None if it does not exist."""
        ...

    async def put(self, name: str, data: bytes, *, new: bool = False, replaces: str | None = None) -> None:
        """Publish a blob; see `Storage.put`. Of a store without conditional writes, `replaces` is None."""
        ...

    async def upload(self, name: str, source: Path) -> None:
        """Publish a local file as a blob."""
        ...

    async def listing(self) -> dict[str, ListedBlob]:
        """Return all blobs by name, in any order."""
        ...

    async def abort_uploads(self, names: Collection[str]) -> None:
        """Abort the unfinished uploads of these blobs."""
        ...

    async def remove(self, name: str) -> None:
        """Delete a blob. A missing one is no error."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


async def if_found(work: Awaitable[T]) -> T | None:
    """Return what a request returns, None if the blob does not exist; a missing bucket is an error all the same."""
    try:
        return await work
    except BucketNotFoundError:
        raise
    except NotFoundError:
        return None
