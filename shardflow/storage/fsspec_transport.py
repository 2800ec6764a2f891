"""The transport for schemes without a special one, on the methods that all of fsspec's file systems have.

These methods do not read conditionally, so only the checksum shows that a file was replaced while it was read.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import fsspec

from shardflow._imports import import_large
from shardflow.errors import IntegrityError, NotFoundError, StoreError, TransientError

from .interface import BlobVersion
from .retry import current_wait
from .transport import Answer, Connection, Transport, Write, if_found

_MOST_LEVELS = 100  # a server that answers every path with the same page has no end


class FsspecTransport(Transport):
    """The files below a path of one of fsspec's file systems, which close their connections themselves."""

    def __init__(self, connection: Connection, fs: Any, path: str) -> None:
        super().__init__(connection, path)
        self._fs, self._of_thread = fs, threading.local()
        # Over HTTP a query can hold a signature, which every request must carry.
        root, mark, query = path.partition("?")
        self._prefix, self._query = root.rstrip("/") + "/", mark + query

    @contextlib.asynccontextmanager
    async def _ask(self, name: str, start: int, stop: int, tag: str) -> AsyncIterator[Answer]:  # noqa: ARG002 - there are none
        head = await self._describe(name)
        stop = min(stop, head.size)
        data = b""
        if start < stop:
            data = await self._call("cat_file", name, stop - start, start=start, end=stop)
        if len(data) > max(0, stop - start):
            raise TransientError(f"{self._url(name)}: expected {stop - start} bytes, found {len(data)}")
        body = io.BytesIO(data)

        async def read(most_bytes: int) -> bytes:
            return body.read(most_bytes)

        yield Answer(head=head, read=read)

    async def _describe(self, name: str) -> BlobVersion:
        info = await self._call("info", name)
        if info.get("type") == "directory":
            raise NotFoundError(f"{self._url(name)}: does not exist; check the path")
        if info.get("size") is None:
            raise StoreError(f"{self._url(name)}: the server does not send its size; copy the dataset to a disk")
        return BlobVersion(size=info["size"])

    async def _send(self, write: Write) -> None:
        """Write a file without metadata, which most file systems lack; create a new file exclusively if supported."""
        name, data = write.name, write.data
        if not self._fs.async_impl:  # the asynchronous file systems are object stores, which have no folders
            await self._call("makedirs", name.rpartition("/")[0], len(data), exist_ok=True)
        await self._call("pipe_file", name, len(data), data, **({"mode": "create"} if write.new else {}))

    async def upload(self, name: str, source: Path) -> None:
        """Publish a local file; raise IntegrityError if the size of the published file differs."""
        data = await asyncio.to_thread(source.read_bytes)
        size = len(data)
        await self.put(name, data)
        head = await self.head(name)
        if head is None or head.size != size:
            raise IntegrityError(f"{self._url(name)}: {size} bytes were written, but the size differs; write it again")

    async def listing(self, most: int | None = None) -> dict[str, BlobVersion]:
        """Return all files below the root by name; a size is -1 if the server does not send it.

        With `most`, return an empty listing: such a server can only list all files at once.
        """
        if most is not None:
            return {}
        if self._query:  # the links of a page lack the query
            message = f"{self._url('')}: a place with a query in its URL, such as a signature, cannot be listed"
            raise StoreError(f"{message}; name the files, as in {{00000..00099}}.tar, or in a table")
        return await if_found(super().listing()) or {}

    async def _page(self, token: str) -> tuple[dict[str, BlobVersion], str]:
        """Return the files of a folder. The token has the folders that are left, separated by zero bytes.

        fsspec's `find` is used only where a file system has its own, because the common one leaves out folders that
        cannot be listed.
        """
        if type(self._fs).find is not fsspec.AbstractFileSystem.find:
            found = (await self._call("find", "", detail=True)).values()
            return dict(map(_entry, found)), ""
        folder, _, left = token.partition("\0")
        if folder.count("/") > _MOST_LEVELS:
            raise StoreError(f"{self._url('')} has folders more than {_MOST_LEVELS} levels deep; name a folder in it")
        try:
            listed = await self._call("ls", folder, detail=True)
        except FileNotFoundError as error:
            if not folder:
                raise
            raise StoreError(f"{self._url(folder)} is listed as a folder, but does not exist; try again") from error
        current_wait().progress()
        names = [each["name"].rstrip("/") for each in listed if each["type"] == "directory"]
        below = dict.fromkeys(name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix))
        folders = [*(name for name in below if name != folder), *([left] if left else [])]
        return dict(_entry(each) for each in listed if each["type"] != "directory"), "\0".join(folders)

    async def _delete(self, name: str) -> None:
        await self._call("rm_file", name)

    async def _call(self, method: str, name: str, size: int = 0, *data: bytes, **arguments: Any) -> Any:
        """Call a method of the file system. A blocking method runs in a thread, which continues after a timeout."""
        place = (self._prefix + name if name else self._prefix.rstrip("/")) + self._query
        if self._fs.async_impl:
            self._fs.invalidate_cache()  # or `info` would answer from cached listings
            work = getattr(self._fs, f"_{method}")(place, *data, **arguments)
        else:
            work = asyncio.to_thread(self._call_in_thread, method, place, *data, **arguments)
        return await self._in_time(work, name, size)

    def _call_in_thread(self, method: str, place: str, *data: bytes, **arguments: Any) -> Any:
        """Call a method of this thread's file system: paramiko's client loses answers if threads share it."""
        fs = getattr(self._of_thread, "fs", None)
        if fs is None:
            options = {**self._fs.storage_options, "skip_instance_cache": True}
            fs = self._of_thread.fs = type(self._fs)(*self._fs.storage_args, **options)
        fs.invalidate_cache()
        return getattr(fs, method)(place, *data, **arguments)


def _entry(info: Mapping[str, Any]) -> tuple[str, BlobVersion]:
    """Return path and size of a file; -1 if the server does not send the size."""
    return info["name"], BlobVersion(-1 if info.get("size") is None else info["size"])


def connect(connection: Connection) -> FsspecTransport:
    """Return the transport for any URL that fsspec serves."""
    return FsspecTransport(connection, *file_system(connection))


def file_system(connection: Connection, client: str = "", **ours: Any) -> tuple[Any, str]:
    """Return fsspec's file system for a URL and the path in it; `ours` are options that override the caller's.

    `client` is the large module that the file system needs, imported first.

    Raises:
        ImportError: A package is missing.
    """
    if client:
        import_large(client)
    options = {**connection.options, "skip_instance_cache": True, **ours}
    return fsspec.core.url_to_fs(connection.url, **options)  # type: ignore[no-any-return]
