"""The transport for https:// and for the Hugging Face Hub: blobs that can be read, and only read.

Connections, headers and credentials come from fsspec's file systems; the requests are our own, because theirs return no
byte before a body is complete, send no `If-Match`, and have retries of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from shardflow.errors import StoreError

from .fsspec_transport import FsspecTransport
from .http_answer import RANGE_HEADERS, WholeFileError, answer_to, close_session, range_answer, web_file_system
from .ranged_read import Answer, head_by_range, read_range
from .retry import Failure, Retries, RetryPolicy, with_timeout
from .storage import ListedBlob
from .transport import Head, blob_url, request_url


class HttpTransport:
    """The files below a URL; see Transport.

    Args:
        whole: The same files through fsspec: for listings, and for servers without ranges.
        web: fsspec's file system whose session of aiohttp makes the requests.
        locate: Returns the URL of a name, and the headers of requests for it.
        url: How messages name the place.
        classify, retry_policy: See `retry`.
    """

    def __init__(
        self,
        whole: FsspecTransport,
        web: Any,
        locate: Callable[[str], Awaitable[tuple[str, Mapping[str, str]]]],
        url: str,
        classify: Callable[[Exception, str], Failure],
        retry_policy: RetryPolicy,
    ) -> None:
        self._whole, self._web, self._locate = whole, web, locate
        self._url, self._retry_policy = partial(blob_url, url), retry_policy
        self._has_ranges = True

        def classified(error: Exception, url: str) -> Failure:
            return Failure(error=_WholeFilesError()) if isinstance(error, WholeFileError) else classify(error, url)

        self._retry = Retries(classified, retry_policy, partial(request_url, url))

    async def fetch(
        self, name: str, start: int, stop: int, head: Head | None, on_head: Callable[[Head], None]
    ) -> list[bytes]:
        """Return the bytes from `start` to `stop`, or to the end of the file."""

        def request(begin: int, end: int, tag: str | None) -> AbstractAsyncContextManager[Answer]:
            headers = {"Range": f"bytes={begin}-{end - 1}", **({"If-Match": tag} if tag else {})}
            return range_answer(self._get(name, headers), begin, _head, lambda: self._whole.head(name))

        retry = self._retry.of_range(name, start)
        if self._has_ranges:
            try:
                return await read_range(request, retry, self._retry_policy, start, stop, head, on_head)
            except _WholeFilesError:
                self._has_ranges = False
        return await self._whole.fetch(name, start, stop, head, on_head, read=self._read)

    async def head(self, name: str) -> Head | None:
        """Return the head of a file, None if it does not exist."""
        return await head_by_range(self.fetch, name)

    async def put(self, name: str, data: bytes, *, new: bool = False, tag: str | None = None) -> None:  # noqa: ARG002
        """Raise a StoreError: such places can only be read."""
        raise StoreError(f"{self._url(name)}: cannot be written; write to a disk or a bucket")

    async def upload(self, name: str, source: Path) -> None:  # noqa: ARG002 - as put
        """Raise a StoreError: such places can only be read."""
        await self.put(name, b"")

    async def listing(self) -> dict[str, ListedBlob]:
        """Return all files below the root by name."""
        return await self._whole.listing()

    async def remove(self, name: str) -> None:
        """Raise a StoreError: such places can only be read."""
        await self.put(name, b"")

    async def abort_uploads(self, names: Collection[str]) -> None:
        """Do nothing: there are no uploads."""

    async def close(self) -> None:
        """Close the connections."""
        await close_session(self._web)

    async def _read(self, name: str, start: int, stop: int, size: int) -> bytes:
        """Return a range, or the whole file of a server without ranges, and at most a byte more than either has."""
        async with self._get(name, {"Range": f"bytes={start}-{stop - 1}"}) as answer:
            most = 1 + (size if answer.status == 200 else stop - start)

            async def read() -> bytes:
                chunks, left = [], most
                while left > 0 and (chunk := await answer.content.read(left)):
                    chunks.append(chunk)
                    left -= len(chunk)
                return b"".join(chunks)

            return await with_timeout(
                read(), self._retry_policy.transfer_s(most), f"{self._url(name)}: expected a file"
            )

    def _get(self, name: str, headers: Mapping[str, str]) -> AbstractAsyncContextManager[Any]:
        async def send() -> Any:
            session = await self._web.set_session()
            url, own = await self._locate(name)
            return await session.get(url, **{**self._web.kwargs, "headers": {**RANGE_HEADERS, **own, **headers}})

        return answer_to(send(), self._retry_policy.answer_s, self._url(name))


def http_transport(
    fs: Any, path: str, url: str, classify: Callable[[Exception, str], Failure], retry_policy: RetryPolicy
) -> HttpTransport:
    """Return the transport for a URL of fsspec's HTTPFileSystem."""
    root, mark, query = path.partition("?")  # a query can hold a signature, which every request must carry

    async def locate(name: str) -> tuple[str, Mapping[str, str]]:
        place = f"{root.rstrip('/')}/{name}" if name else root
        return fs.encode_url(place + mark + query), fs.kwargs.get("headers", {})

    whole = FsspecTransport(fs, path, url, classify, retry_policy)
    return HttpTransport(whole, fs, locate, url, classify, retry_policy)


def hub_transport(
    fs: Any, path: str, url: str, classify: Callable[[Exception, str], Failure], retry_policy: RetryPolicy
) -> HttpTransport:
    """Return the transport for a path of huggingface_hub's HfFileSystem.

    The Hub redirects requests of large files to another server; aiohttp does not send the token there.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    web = web_file_system()
    places: list[Any] = []

    async def locate(name: str) -> tuple[str, Mapping[str, str]]:
        if not places:  # asks the Hub whether the repository exists
            places.append(await asyncio.to_thread(fs.resolve_path, path))
        place = places[0]
        if hasattr(place, "bucket_id"):
            found = f"{fs.endpoint}/buckets/{place.bucket_id}/resolve/{quote(f'{place.path}/{name}'.lstrip('/'))}"
        else:
            within = f"{place.path_in_repo}/{name}".lstrip("/")
            kind = {"repo_type": place.repo_type, "revision": place.revision, "endpoint": fs.endpoint}
            found = hf_hub_url(place.repo_id, within, **kind)
        return web.encode_url(found), build_hf_headers(token=fs.token)

    whole = FsspecTransport(fs, path, url, classify, retry_policy)
    return HttpTransport(whole, web, locate, url, classify, retry_policy)


class _WholeFilesError(StoreError):
    """The server sends whole files."""


def _head(size: int, headers: Mapping[str, str]) -> Head:
    """Return the head of a file. A weak ETag is none: other bytes may have it too."""
    tag = headers.get("ETag", "")
    return Head(size=size, tag=tag if tag and not tag.startswith("W/") else None)
