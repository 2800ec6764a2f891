"""What all transports share: however a store is asked, requests are repeated and answers treated in one way.

A transport has a method for each kind of request. These raise the client's own exceptions.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from shardflow.errors import BucketNotFoundError, DatasetExistsError, NotFoundError, ShardflowError, StoreError

from .interface import ListedBlob
from .ranged_read import Answer, read_range
from .retry import Retries
from .transport import ChangedError, Connection, Fetched, Head, if_found
from .urls import blob_url


class BaseTransport(abc.ABC):
    """The blobs below a path; see Transport. The abstract methods make one request each.

    Attributes:
        _bucket, _prefix: The first name of the path, and what is before the names of blobs in it.
    """

    def __init__(self, connection: Connection, path: str) -> None:
        self._policy = connection.policy
        self._url = partial(blob_url, connection.shown)
        self._retry = Retries(connection.classify, connection.policy, connection.blob)
        self._bucket, _, prefix = path.strip("/").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""

    @abc.abstractmethod
    def _ask(self, name: str, start: int, stop: int, tag: str | None) -> AbstractAsyncContextManager[Answer]:
        """Request a range; see `ranged_read.Request`."""

    @abc.abstractmethod
    async def _describe(self, name: str) -> Head:
        """Return the head of a blob."""

    @abc.abstractmethod
    async def _send(
        self, name: str, data: bytes, metadata: Mapping[str, str], *, new: bool, replaces: str | None
    ) -> None:
        """Send a blob with its metadata."""

    @abc.abstractmethod
    async def _page(self, token: str) -> tuple[dict[str, ListedBlob], str]:
        """Return a part of the listing, and the token of the next part, "" after the last."""

    @abc.abstractmethod
    async def _delete(self, name: str) -> None:
        """Delete a blob."""

    async def fetch(self, name: str, start: int, stop: int, head: Head | None) -> Fetched:
        retry = self._retry.of_range(name, start)
        return await read_range(partial(self._ask, name), retry, self._policy, start, stop, head)

    async def head(self, name: str) -> Head | None:
        return await if_found(self._retry(lambda: self._describe(name), name))

    async def put(self, name: str, data: bytes, *, new: bool = False, replaces: str | None = None) -> None:
        metadata = blob_metadata(hashlib.sha256(data).hexdigest())
        send = partial(self._publish, name, data, metadata, new=new, replaces=replaces)
        await write(send, lambda: self.head(name), metadata, self._url(name), new=new, replaces=replaces)

    async def _publish(
        self, name: str, data: bytes, metadata: Mapping[str, str], *, new: bool, replaces: str | None
    ) -> None:
        await self._retry(lambda: self._send(name, data, metadata, new=new, replaces=replaces), name)

    async def upload(self, name: str, source: Path) -> None:
        await self.put(name, await asyncio.to_thread(source.read_bytes))

    async def listing(self) -> dict[str, ListedBlob]:
        """Return all blobs below the prefix by name, but for those that stand for folders."""
        found: dict[str, ListedBlob] = {}
        token = ""
        while True:
            page, token = await self._retry(partial(self._page, token), "")
            for key, blob in page.items():
                if key.startswith(self._prefix) and key != self._prefix and not key.endswith("/"):
                    found[key.removeprefix(self._prefix)] = blob
            if not token:
                return found

    async def remove(self, name: str) -> None:
        with contextlib.suppress(NotFoundError):
            await self._retry(lambda: self._delete(name), name)

    async def abort_uploads(self, names: Collection[str]) -> None:  # noqa: B027 - most have none
        """Do nothing: unfinished uploads leave nothing that could become part of a blob."""

    async def close(self) -> None:  # noqa: B027 - some clients close themselves
        """Do nothing."""


def blob_metadata(sha256: str) -> dict[str, str]:
    """Return the metadata of a blob: the SHA-256 of its content, and a mark of the call that wrote it."""
    return {"sha256": sha256, "writer": secrets.token_hex(8)}


async def has_metadata(head: Awaitable[Head | None], metadata: Mapping[str, str]) -> bool:
    """Return whether a blob is the one with this mark; False too if the store does not answer."""
    try:
        found = await head
    except ShardflowError:
        return False
    return found is not None and found.metadata == metadata


async def write(
    send: Callable[[], Awaitable[object]],
    head: Callable[[], Awaitable[Head | None]],
    metadata: Mapping[str, str],
    url: str,
    *,
    new: bool,
    replaces: str | None,
) -> None:
    """Publish a blob by `send`, which repeats its request: done, refused, or done although the answer was lost.

    The request may have succeeded although its answer was lost, and its repetition is refused then. The blob's `head`
    with the `metadata` of this call tells.
    """
    try:
        await send()
    except StoreError as error:
        if await has_metadata(head(), metadata):
            return
        is_gone = (
            replaces is not None and isinstance(error, NotFoundError) and not isinstance(error, BucketNotFoundError)
        )
        if not is_gone and not isinstance(error, ChangedError):
            raise
        changed = "was changed by another process meanwhile; run the same command again"
        message = f"{url} {'exists already; nothing is ever overwritten' if new else changed}"
        raise DatasetExistsError(message) from error.__cause__
