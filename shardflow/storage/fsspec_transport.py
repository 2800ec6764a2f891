"""The transport for schemes that have none of their own, on the methods that all of fsspec's file systems have.

They have no conditional reads, so only its checksum shows that a file was replaced while it was read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import fsspec

from shardflow._imports import import_large
from shardflow.errors import IntegrityError, NotFoundError, StoreError, TransientError

from .interface import ListedBlob
from .retry import Retries, with_timeout
from .transport import Connection, Fetched, Head
from .urls import blob_url

_WHOLE_FILES = 4  # as many as `sync` transfers at the same time


class FsspecTransport:
    """The files below a path of one of fsspec's file systems; see Transport."""

    def __init__(self, connection: Connection, fs: Any, path: str) -> None:
        self._fs = fs
        # Over HTTP a query can hold a signature, which every request must carry.
        root, mark, query = path.partition("?")
        self._root, self._query = root.rstrip("/"), mark + query
        self._url = partial(blob_url, connection.shown)
        self._policy = connection.policy
        self._retry = Retries(connection.classify, connection.policy, connection.blob)
        self._has_ranges = True
        self._whole: dict[str, bytes] = {}  # files from a server without ranges, until their last bytes are requested
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def fetch(self, name: str, start: int, stop: int, head: Head | None) -> Fetched:
        if head is None:
            head = await self._describe(name)
        if head is None:
            raise NotFoundError(f"{self._url(name)}: does not exist; check the path")
        stop, size = min(stop, head.size), head.size

        async def request() -> bytes:
            data = await self._read(name, start, stop, size)
            if len(data) not in (stop - start, size):
                raise TransientError(f"{self._url(name)}: expected {stop - start} bytes, found {len(data)}")
            return data

        if start >= stop:
            return Fetched(head, [])
        if self._has_ranges:
            data = await self._retry(request, name, start=start)
            if len(data) == stop - start:
                return Fetched(head, [data])
            self._has_ranges = False
            self._whole.setdefault(name, data)
        # Every answer is the whole file, so one is enough for all pieces of it.
        async with self._locks[name]:
            data = self._whole.get(name, b"")
            if len(data) != size:  # not fetched yet, or replaced since
                data = await self._retry(request, name, start=start)
            if len(data) != size:
                return Fetched(head, [data])  # from another server of the same name, which has ranges
            self._whole[name] = data
            if stop == size or len(self._whole) > _WHOLE_FILES:
                del self._whole[name if stop == size else next(iter(self._whole))]
        return Fetched(head, [data[start:stop]])

    async def head(self, name: str) -> Head | None:
        return await self._describe(name)

    async def _describe(self, name: str) -> Head | None:
        self._fs.invalidate_cache()  # of listings, from which it would answer
        try:
            info = await self._retry(lambda: self._call("info", name), name)
        except NotFoundError:
            return None
        if info.get("type") == "directory":
            return None
        if info.get("size") is None:
            raise StoreError(f"{self._url(name)}: the server does not send its size; copy the dataset to a disk")
        return Head(size=info["size"])

    async def put(self, name: str, data: bytes, *, new: bool = False, replaces: str | None = None) -> None:  # noqa: ARG002 - the protocol's
        """Publish a file. A new one is created exclusively by the file system, if it supports that."""
        mode = {"mode": "create"} if new else {}

        async def request() -> None:
            if not self._fs.async_impl:  # the asynchronous ones are object stores, which have no folders
                await self._call("makedirs", name.rpartition("/")[0], len(data), exist_ok=True)
            await self._call("pipe_file", name, len(data), data, **mode)

        await self._retry(request, name)

    async def upload(self, name: str, source: Path) -> None:
        """Publish a local file, and check the size that has arrived."""
        data = await asyncio.to_thread(source.read_bytes)
        size = len(data)
        await self.put(name, data)
        head = await self.head(name)
        if head is None or head.size != size:
            raise IntegrityError(f"{self._url(name)}: {size} bytes were written, but the size differs; write it again")

    async def listing(self) -> dict[str, ListedBlob]:
        """Return all files below the root by name; their size is -1 where the server does not send it."""
        if self._query:  # the links of a page have none
            message = f"{self._url('')}: a place with a query in its URL, such as a signature, cannot be listed"
            raise StoreError(f"{message}; name the files, as in {{00000..00099}}.tar, or in a table")
        self._fs.invalidate_cache()
        try:
            found = await self._retry(lambda: self._call("find", "", detail=True), "")
        except NotFoundError:
            return {}
        root = self._key("").partition("?")[0].rstrip("/") + "/"
        sizes = ((path, info.get("size")) for path, info in found.items() if path.startswith(root))
        return {path.removeprefix(root): ListedBlob(-1 if size is None else size) for path, size in sizes}

    async def remove(self, name: str) -> None:
        with contextlib.suppress(NotFoundError):
            await self._retry(lambda: self._call("rm_file", name), name)

    async def abort_uploads(self, names: Collection[str]) -> None:
        """Do nothing: each file is written with one call of the file system."""

    async def close(self) -> None:
        """Do nothing: fsspec's file systems close their connections themselves."""

    def _key(self, name: str) -> str:
        return (f"{self._root}/{name}" if name else self._root) + self._query

    async def _read(self, name: str, start: int, stop: int, size: int) -> bytes:  # noqa: ARG002 - the size is for others
        """Return a range of a file of a size, or the whole file."""
        return await self._call("cat_file", name, stop - start, start=start, end=stop)  # type: ignore[no-any-return]

    async def _call(self, method: str, name: str, size: int = 0, *data: bytes, **arguments: Any) -> Any:
        """Call a method of the file system. One that blocks runs in a thread, which goes on after a timeout."""
        if self._fs.async_impl:
            work = getattr(self._fs, f"_{method}")(self._key(name), *data, **arguments)
        else:
            work = asyncio.to_thread(getattr(self._fs, method), self._key(name), *data, **arguments)
        return await with_timeout(work, self._policy.transfer_s(size), f"{self._url('')}: expected an answer")


def connect(connection: Connection) -> FsspecTransport:
    """Return the transport for any URL that fsspec serves."""
    return FsspecTransport(connection, *file_system(connection))


def file_system(connection: Connection, client: str = "", **ours: Any) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path in it, with some options of ours.

    Its `client` is a large module, which it needs.

    Raises:
        ImportError: A package is missing.
    """
    if client:
        import_large(client)
    options = {**connection.options, "skip_instance_cache": True, **ours}
    return fsspec.core.url_to_fs(connection.url, **options)  # type: ignore[no-any-return]
