"""What a transport is made of, and what its requests return."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from shardflow.errors import BucketNotFoundError, NotFoundError, StoreError, TransientError

from .interface import BlobVersion

if TYPE_CHECKING:
    from .retry import Failure, RetryPolicy

T = TypeVar("T")


class ChangedError(StoreError):
    """The blob is not in the state that the request was conditional on. Never leaves the storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to the request of a range: the blob's head, and its bytes as they arrive.

    `read(most_bytes)` returns some of them, and nothing at their end.
    """

    head: BlobVersion
    read: Callable[[int], Awaitable[bytes]]


class Write(NamedTuple):
    """A blob to be written, with its metadata, and the condition, see `Storage.put`."""

    name: str
    data: bytes
    metadata: Mapping[str, str]
    new: bool
    replaces: str | None


class Fetched(NamedTuple):
    """A range of a blob, in chunks: joining them would be one more copy."""

    head: BlobVersion
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


async def if_found(work: Awaitable[T]) -> T | None:
    """Return what a request returns, None if the blob does not exist; a missing bucket is an error all the same."""
    try:
        return await work
    except BucketNotFoundError:
        raise
    except NotFoundError:
        return None


async def no_bytes(most_bytes: int) -> bytes:  # noqa: ARG001 - as of Answer.read
    """Return nothing: the body of an answer without one."""
    return b""


def range_size(content_range: str, start: int) -> int:
    """Return the size of a blob from the header of an answer, which must begin at `start`.

    Raises:
        TransientError: The answer is another range, or none.
    """
    unit, _, of = content_range.partition("/")
    if unit.partition("-")[0] != f"bytes {start}" or not of.isdecimal():
        raise TransientError("the answer is not the requested range")
    return int(of)
