"""Any other scheme: what fsspec's file systems have in common.

They know no conditional reads, so what is replaced while it is read is found out by its checksum alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

from shardflow.errors import IntegrityError, NotFoundError, StoreError, TransientError

from .retry import Failure, RetryPolicy, retry, with_timeout
from .storage import ListedBlob
from .transport import Head

T = TypeVar("T")

_WHOLE = 4  # as many files as `sync` has under way


class FsspecTransport:
    """The files below a path of one of fsspec's file systems."""

    def __init__(self, fs: Any, path: str, url: str, judge: Callable[[Exception, str], Failure], patience: RetryPolicy):
        self._fs = fs
        # Over HTTP a query can hold a signature, which every request must carry.
        root, mark, query = path.partition("?")
        self._root, self._query = root.rstrip("/"), mark + query
        self._url = url
        self._judge = judge
        self._patience = patience
        self._knows_ranges = True
        self._whole: dict[str, bytes] = {}  # what a server without ranges has sent, until its end is asked for
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def fetch(
        self, name: str, start: int, stop: int, head: Head | None, heard: Callable[[Head], None]
    ) -> list[bytes]:
        """Return the bytes from `start` to `stop`, or as far as the file goes; see Transport."""
        if head is None:
            head = await self.head(name)
            if head is None:
                raise NotFoundError(f"{self._url}/{name}: does not exist; check the path")
            heard(head)
        stop, size = min(stop, head.size), head.size

        async def request() -> bytes:
            data: bytes = await self._call("cat_file", name, stop - start, start=start, end=stop)
            if len(data) not in (stop - start, size):
                raise TransientError(f"{self._url}/{name}: expected {stop - start} bytes, found {len(data)}")
            return data

        if start >= stop:
            return []
        if self._knows_ranges:
            data = await self._persist(request, name)
            if len(data) == stop - start:
                return [data]
            self._knows_ranges = False
            self._whole.setdefault(name, data)
        # Every answer is the whole file, so one is enough for all of its pieces.
        async with self._turns[name]:
            data = self._whole.get(name, b"")
            if len(data) != size:  # there is none, or the file has changed since
                data = await self._persist(request, name)
            if len(data) != size:
                return [data]  # this one was sent by another server behind the same name
            self._whole[name] = data
            if stop == size or len(self._whole) > _WHOLE:
                del self._whole[name if stop == size else next(iter(self._whole))]
        return [data[start:stop]]

    async def head(self, name: str) -> Head | None:
        """Return what is known of a file, None when there is none."""
        try:
            about = await self._persist(lambda: self._call("info", name), name)
        except NotFoundError:
            return None
        if about.get("type") == "directory":
            return None
        if about.get("size") is None:
            raise StoreError(f"{self._url}/{name}: the server does not say how large it is; copy the dataset to a disk")
        return Head(size=about["size"])

    async def put(self, name: str, data: bytes, *, new: bool) -> None:
        """Publish a file; its creation is left to the file system, which must know how to create only."""
        mode = {"mode": "create"} if new else {}
        await self._persist(lambda: self._write("pipe_file", name, data, len(data), **mode), name)

    async def upload(self, name: str, source: Path) -> None:
        """Publish a local file, and look whether it has arrived whole."""
        size = source.stat().st_size
        data = await asyncio.to_thread(source.read_bytes)
        await self._persist(lambda: self._write("pipe_file", name, data, size), name)
        head = await self.head(name)
        if head is None or head.size != size:
            raise IntegrityError(f"{self._url}/{name}: {size} bytes were written, and others are there; write it again")

    async def listing(self) -> dict[str, ListedBlob]:
        """Return the names of all files below the root, with their sizes, -1 where the server does not say."""
        try:
            found = await self._persist(lambda: self._call("find", "", detail=True), "")
        except NotFoundError:
            return {}
        root = self._key("").partition("?")[0].rstrip("/") + "/"
        sizes = ((path, about.get("size")) for path, about in found.items())
        return {path.removeprefix(root): ListedBlob(-1 if size is None else size) for path, size in sizes}

    async def remove(self, name: str) -> None:
        """Delete a file, if there is one."""
        with contextlib.suppress(NotFoundError):
            await self._persist(lambda: self._call("rm_file", name), name)

    async def close_uploads(self, names: Collection[str]) -> None:
        """Do nothing: files are written in one call here, and what becomes of it is the file system's."""

    async def close(self) -> None:
        """Nothing: fsspec's file systems close their own connections."""

    def _key(self, name: str) -> str:
        return (f"{self._root}/{name}" if name else self._root) + self._query

    async def _persist(self, request: Callable[[], Awaitable[T]], name: str) -> T:
        url = f"{self._url}/{name}" if name else self._url
        return await retry(request, lambda error: self._judge(error, url), self._patience)

    async def _write(self, method: str, name: str, data: bytes, size: int, **arguments: Any) -> None:
        if not self._fs.async_impl:  # those are object stores, which have no folders
            await self._run("makedirs", size, self._key(name).rpartition("/")[0], exist_ok=True)
        await self._run(method, size, self._key(name), data, **arguments)

    async def _call(self, method: str, name: str, size: int = 0, **arguments: Any) -> Any:
        return await self._run(method, size, self._key(name), **arguments)

    async def _run(self, method: str, size: int, *places: Any, **arguments: Any) -> Any:
        """Call a method of the file system; one that blocks runs in a thread, which a deadline cannot end."""
        if self._fs.async_impl:
            work = getattr(self._fs, f"_{method}")(*places, **arguments)
        else:
            work = asyncio.to_thread(getattr(self._fs, method), *places, **arguments)
        return await with_timeout(work, self._patience.transfer_s(size), f"{self._url}: expected an answer")
