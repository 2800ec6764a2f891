"""Answers of HTTP servers to the requests that a transport makes with aiohttp."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import fsspec

from shardflow.errors import StoreError

from .error_mapping import AnswerError
from .interface import BlobVersion
from .retry import with_timeout
from .transport import Answer, no_bytes, range_size

_MOST_TEXT = 2000  # bytes to read of the body of an error
_EXPANDED = ("gzip", "deflate", "br", "zstd")  # by aiohttp; other codings, as wrong as "utf-8", change no byte
RANGE_HEADERS = {"Accept-Encoding": "identity"}  # the length of a compressed body differs from the range


def web_file_system() -> Any:
    """Return a file system of fsspec whose aiohttp session (`await set_session()`) makes requests for any URL."""
    return fsspec.filesystem("https", skip_instance_cache=True, asynchronous=True)


async def close_session(fs: Any) -> None:
    """Close the session of a file system, if it has opened one."""
    if fs._session is not None:
        await fs._session.close()


@contextlib.asynccontextmanager
async def answer_to(
    send: Awaitable[Any], timeout_s: float, url: str, code: Callable[[Mapping[str, str], str], str] = lambda *_: ""
) -> AsyncIterator[Any]:
    """Yield the answer to a request as soon as its headers arrive; close its body afterwards.

    Raises:
        AnswerError: The status is an error; `code` finds the error's code in headers and text.
        DeadlineError: The answer takes longer than the timeout.
    """
    answer = await with_timeout(send, timeout_s, f"{url}: expected an answer")
    try:
        if answer.status >= 400:
            body = await with_timeout(answer.content.read(_MOST_TEXT), timeout_s, f"{url}: expected an answer")
            text = body.decode(errors="replace")
            raise AnswerError(answer.status, answer.headers, code(answer.headers, text), text)
        yield answer
    finally:
        answer.close()


@contextlib.asynccontextmanager
async def range_answer(
    answering: contextlib.AbstractAsyncContextManager[Any],
    start: int,
    head: Callable[[int, Mapping[str, str]], BlobVersion],
    head_at_end: Callable[[], Awaitable[BlobVersion | None]],
) -> AsyncIterator[Answer]:
    """Yield the answer to a request for a range that begins at `start`.

    `head` returns the head of a blob from its size and the headers of the answer. `head_at_end` returns the head if the
    server refuses the range without the size of the blob, which must end at `start` or before.

    Raises:
        StoreError: The server compressed the file.
        WholeFileError: The server sent the whole file.
    """
    async with contextlib.AsyncExitStack() as stack:
        try:
            answer = await stack.enter_async_context(answering)
        except AnswerError as error:
            if error.status != 416:
                raise
            said = error.headers.get("Content-Range", "").rpartition("*/")[2]
            at_end = BlobVersion(size=int(said)) if said.isdecimal() else await head_at_end()
            if at_end is None or at_end.size > start:
                raise
            yield Answer(head=at_end, read=no_bytes)
            return
        refuse_compressed(answer.headers)
        if answer.status == 200 and "Content-Range" not in answer.headers:
            raise WholeFileError("the server sent the whole file")
        size = range_size(answer.headers.get("Content-Range", ""), start)
        yield Answer(head=head(size, answer.headers), read=answer.content.read)


def refuse_compressed(headers: Mapping[str, str]) -> None:
    """Raise StoreError if a body is compressed: aiohttp expands it, so it has more bytes than the headers say."""
    if (coding := headers.get("Content-Encoding", "").lower()) in _EXPANDED:
        message = f"the server sends it compressed (Content-Encoding: {coding}), so sizes and ranges do not fit"
        raise StoreError(f"{message}; remove this header from the stored file, or copy the file to a disk")


class WholeFileError(StoreError):
    """The server sent the whole file instead of a range."""
