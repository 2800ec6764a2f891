"""Transports: the requests of a remote storage.

Modules named after a kind of store make its requests; `fsspec_transport` serves all others. This base class retries
requests and handles answers in the same way for all.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from shardflow.errors import (
    BucketNotFoundError,
    DatasetExistsError,
    NotFoundError,
    ShardflowError,
    StoreError,
    TransientError,
)

from .interface import BlobVersion
from .retry import Contact, Failure, Retries, RetryPolicy, current_wait, with_timeout
from .stores import ChangedError
from .urls import blob_url

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to the request of a range: the blob's head, and `read(most_bytes)`, which returns b"" at the end."""

    head: BlobVersion
    read: Callable[[int], Awaitable[bytes]]


class Write(NamedTuple):
    """A blob to be written, its metadata and condition, see `Storage.put`."""

    name: str
    data: bytes
    metadata: Mapping[str, str]
    new: bool
    replaces: str | None


class Fetched(NamedTuple):
    """A range of a blob, in chunks, because joining them costs a copy."""

    head: BlobVersion
    chunks: list[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The settings of a transport."""

    url: str  # of the root, with credentials and query
    shown: str  # the same for messages, without credentials and query
    options: Mapping[str, Any]  # the caller's
    classify: Callable[[Exception, str], Failure]  # maps an exception of the client for a URL
    policy: RetryPolicy
    piece_bytes: int  # size of a request in uploads in parts
    contact: Contact

    def blob(self, name: str) -> str:
        """Return the URL of a blob, with the query in its name if any; the root for ""."""
        return f"{self.shown}/{name}" if name else self.shown


class Transport(abc.ABC):
    """Requests for the blobs below one root, each repeated until it succeeds or fails permanently.

    All run on the event loop of the process that created the transport, and raise errors of `shardflow.errors`. The
    abstract methods, which make one request each, also raise errors of the client.
    """

    _heads_by_range = False  # whether the head of a blob is read with its first byte instead of by `_describe`

    def __init__(self, connection: Connection, path: str) -> None:
        self._policy = connection.policy
        self._url = partial(blob_url, connection.shown)
        self._retry = Retries(connection.classify, connection.policy, connection.blob, connection.contact)
        self._bucket, _, prefix = path.strip("/").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""  # of the names of blobs in the bucket

    @abc.abstractmethod
    def _ask(self, name: str, start: int, stop: int, tag: str) -> AbstractAsyncContextManager[Answer]:
        """Request a range, if the blob still has the tag; the context closes the body.

        If the range begins at or after the blob's end, the answer has the head and no bytes.
        """

    @abc.abstractmethod
    async def _describe(self, name: str) -> BlobVersion:
        """Return the head of a blob."""

    @abc.abstractmethod
    async def _send(self, write: Write) -> None:
        """Send a blob with its metadata, under its condition."""

    @abc.abstractmethod
    async def _page(self, token: str) -> tuple[dict[str, BlobVersion], str]:
        """Return a part of the listing, and the token of the next part, "" after the last."""

    @abc.abstractmethod
    async def _delete(self, name: str) -> None:
        """Delete a blob."""

    async def fetch(self, name: str, start: int, stop: int, head: BlobVersion | None) -> Fetched:
        """Return the bytes from `start` to `stop`, or to the blob's end, and the head of the answer.

        If the connection breaks, the rest is requested again, from the same version.

        Args:
            name, start, stop: The blob, its first byte, and the byte after the last.
            head: From an earlier request, so that all bytes are of one version; without a tag if only the size is
                known, None if nothing is.

        Raises:
            ChangedError: The blob was replaced after `head` was received.
        """
        chunks: list[bytes] = []
        received = 0
        found: BlobVersion | None = None  # in the first answer
        tag = head.tag if head else ""

        async def attempt() -> BlobVersion:
            nonlocal found, tag, stop
            async with self._ask(name, start + received, stop, tag) as answer:
                found = found or answer.head
                tag = tag or found.tag
                # Some servers have no tags, and some ignore the condition.
                if answer.head.size != found.size or answer.head.tag not in ("", tag):
                    raise ChangedError("the blob has changed")
                stop = min(stop, found.size)
                while received < stop - start:
                    goal = min(stop - start, received + self._policy.window_bytes)
                    expected = f"expected {goal - received} more bytes of an answer"
                    await with_timeout(receive(answer, goal), self._policy.window_timeout_s(), expected)
                    current_wait().progress()
                return found

        async def receive(answer: Answer, goal: int) -> None:
            nonlocal received
            while received < goal:
                if not (chunk := await answer.read(goal - received)):
                    raise TransientError("the body of an answer ended early")
                chunks.append(chunk)
                received += len(chunk)

        return Fetched(await self._retry(attempt, name, lambda: received), chunks)

    async def head(self, name: str) -> BlobVersion | None:
        """Return the head of a blob; None if it does not exist."""
        if not self._heads_by_range:
            return await if_found(self._retry(lambda: self._describe(name), name))
        try:
            found = await if_found(self.fetch(name, 0, 1, None))
        except ChangedError:  # it was replaced between two attempts
            return await self.head(name)
        return found.head if found else None

    async def put(self, name: str, data: bytes, *, new: bool = False, replaces: str | None = None) -> None:
        """Publish a blob; see `Storage.put`. For a store without conditional writes, `replaces` is None.

        If the answer to a successful request is lost, its repetition is refused; the blob's metadata then show that it
        is ours.
        """
        write = Write(name, data, blob_metadata(hashlib.sha256(data).hexdigest()), new, replaces)
        try:
            await self._publish(write)
        except StoreError as error:
            if await self._has_metadata(name, write.metadata):
                return
            is_gone = isinstance(error, NotFoundError) and not isinstance(error, BucketNotFoundError)
            if not isinstance(error, ChangedError) and (replaces is None or not is_gone):
                raise
            changed = "was changed by another process meanwhile; run the same command again"
            message = f"{self._url(name)} {'exists already; nothing is ever overwritten' if new else changed}"
            raise DatasetExistsError(message) from error.__cause__

    async def _publish(self, write: Write) -> None:
        await self._retry(lambda: self._send(write), write.name)

    async def upload(self, name: str, source: Path) -> None:
        """Publish a local file as a blob."""
        await self.put(name, await asyncio.to_thread(source.read_bytes))

    async def listing(self, most: int | None = None) -> dict[str, BlobVersion]:
        """Return all blobs below the prefix by name, but for those that stand for folders; or the first."""
        found: dict[str, BlobVersion] = {}
        token = ""
        while True:
            page, token = await self._retry(partial(self._page, token), "")
            for key, blob in page.items():
                if key.startswith(self._prefix) and key != self._prefix and not key.endswith("/"):
                    found[key.removeprefix(self._prefix)] = blob
            if not token or (most is not None and len(found) >= most):
                return found

    async def remove(self, name: str) -> None:
        """Delete a blob. A missing one is not an error."""
        with contextlib.suppress(NotFoundError):
            await self._retry(lambda: self._delete(name), name)

    async def abort_uploads(self, names: Collection[str]) -> None:  # noqa: B027 - most have none
        """Abort the unfinished uploads of these blobs, where they could become part of a blob."""

    async def _in_time(self, work: Awaitable[T], name: str = "", size: int = 0) -> T:
        """Return the answer to a request that sends `size` bytes; DeadlineError if it takes too long."""
        return await with_timeout(work, self._policy.answer_timeout_s(size), f"{self._url(name)}: expected an answer")

    async def _has_metadata(self, name: str, metadata: Mapping[str, str]) -> bool:
        """Return whether a blob is the one with this mark; False too if the store does not answer."""
        with contextlib.suppress(ShardflowError):
            found = await self.head(name)
            return found is not None and found.metadata == metadata
        return False

    async def close(self) -> None:  # noqa: B027 - some clients close themselves
        """Close the connections."""


def blob_metadata(sha256: str) -> dict[str, str]:
    """Return the metadata of a blob: the SHA-256 of its content, and a mark of the call that wrote it."""
    return {"sha256": sha256, "writer": secrets.token_hex(8)}


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
    place, _, of = content_range.partition("/")
    first, _, last = place.partition("-")
    is_within = last.isdecimal() and of.isdecimal() and int(last) < int(of)
    if first != f"bytes {start}" or not (is_within or of == "0"):  # of an empty blob, servers send bytes 0-0/0, 0--1/0
        raise TransientError("the answer is not the requested range")
    return int(of)
