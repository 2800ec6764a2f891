"""The transport for https:// and other read-only files over HTTP.

Connections, headers and credentials come from fsspec's file systems. The transport makes the requests itself, because
fsspec returns no byte before a body is complete, sends no `If-Match`, and has its own retries.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from shardflow.errors import TransientError

from .fsspec_transport import FsspecTransport, file_system
from .http_answer import RANGE_HEADERS, WholeFileError, answer_to, close_session, range_answer, refuse_compressed
from .interface import BlobVersion
from .transport import Answer, Connection, Fetched

_WHOLE_FILES = 4  # as many as `sync` transfers at the same time


class HttpTransport(FsspecTransport):
    """The files below a URL; see Transport. Listings come through fsspec.

    Args:
        connection, fs, path: See FsspecTransport.
        web: fsspec's file system whose session of aiohttp makes the requests.
        locate: Returns the URL of a name, and the headers of requests for it.
    """

    _heads_by_range = True

    def __init__(
        self,
        connection: Connection,
        fs: Any,
        path: str,
        web: Any,
        locate: Callable[[str], Awaitable[tuple[str, Mapping[str, str]]]],
    ) -> None:
        super().__init__(connection, fs, path)
        self._web, self._locate = web, locate
        self._sends_ranges = True
        self._whole: dict[str, bytes] = {}  # files from a server without ranges, until their last bytes are requested
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def fetch(self, name: str, start: int, stop: int, head: BlobVersion | None) -> Fetched:
        if self._sends_ranges:
            try:
                return await super().fetch(name, start, stop, head)
            except WholeFileError:
                self._sends_ranges = False
        # Every answer is the whole file, so one request serves all ranges of it.
        async with self._locks[name]:
            if head is None:
                head = await self._retry(partial(self._describe, name), name)
            data = self._whole.get(name, b"")
            if len(data) != head.size:  # not fetched yet, or replaced since
                data = await self._retry(partial(self._read, name, head.size), name)
            self._whole[name] = data
            if stop >= head.size or len(self._whole) > _WHOLE_FILES:
                del self._whole[name if stop >= head.size else next(iter(self._whole))]
        return Fetched(head, [data[start:stop]])

    async def close(self) -> None:
        await close_session(self._web)

    def _ask(  # type: ignore[override]
        self, name: str, start: int, stop: int, tag: str
    ) -> AbstractAsyncContextManager[Answer]:
        headers = {"Range": f"bytes={start}-{stop - 1}", **({"If-Match": tag} if tag else {})}
        return range_answer(self._get(name, headers), start, _head, lambda: self._describe(name))

    async def _read(self, name: str, size: int) -> bytes:
        """Return a whole file; read at most one byte beyond `size`, and raise TransientError if the size differs."""
        async with self._get(name, {}) as answer:
            refuse_compressed(answer.headers)

            async def read() -> bytes:
                chunks, left = [], size + 1
                while left > 0 and (chunk := await answer.content.read(left)):
                    chunks.append(chunk)
                    left -= len(chunk)
                return b"".join(chunks)

            data = await self._in_time(read(), name, size)
        if len(data) != size:
            raise TransientError(f"{self._url(name)}: expected {size} bytes, found {len(data)}")
        return data

    def _get(self, name: str, headers: Mapping[str, str]) -> AbstractAsyncContextManager[Any]:
        async def send() -> Any:
            session = await self._web.set_session()
            url, own = await self._locate(name)
            return await session.get(url, **{**self._web.kwargs, "headers": {**RANGE_HEADERS, **own, **headers}})

        return answer_to(send(), self._policy.answer_timeout_s(), self._url(name))


def connect(connection: Connection) -> HttpTransport:
    """Return the transport for a URL of fsspec's HTTPFileSystem."""
    fs, path = file_system(connection)
    root, mark, query = path.partition("?")  # a query can hold a signature, which every request must carry

    async def locate(name: str) -> tuple[str, Mapping[str, str]]:
        place = f"{root.rstrip('/')}/{name}" if name else root
        return fs.encode_url(place + mark + query), fs.kwargs.get("headers", {})

    return HttpTransport(connection, fs, path, fs, locate)


def _head(size: int, headers: Mapping[str, str]) -> BlobVersion:
    """Return the head of a file. A weak ETag is ignored: other bytes may have the same one."""
    tag = headers.get("ETag", "")
    return BlobVersion(size=size, tag="" if tag.startswith("W/") else tag)
