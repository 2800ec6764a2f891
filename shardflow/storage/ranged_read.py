"""The reading of a range of a blob: several answers, if the connection breaks, whose bytes must be of one version.

The transports differ only in how they request a range: that function is an argument.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from shardflow.errors import TransientError

from .retry import RetryPolicy, with_timeout
from .transport import ChangedError, Fetched, Head, if_found


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to the request of a range: the blob's head, and its bytes as they arrive.

    `read(most_bytes)` returns some of them, and nothing at their end.
    """

    head: Head
    read: Callable[[int], Awaitable[bytes]]


Request = Callable[[int, int, str | None], AbstractAsyncContextManager[Answer]]
"""Requests the bytes from a start to a stop, if the blob still has the tag; the context closes the body.

Of a blob that ends at the start or before, the answer is its head and no bytes.
"""


async def read_range(
    request: Request,
    retry: Callable[[Callable[[], Awaitable[None]], Callable[[], int]], Awaitable[None]],
    policy: RetryPolicy,
    start: int,
    stop: int,
    head: Head | None,
) -> Fetched:
    """Return a range, and the head in its first answer; see `Transport.fetch`.

    `retry` repeats an attempt; its second argument counts the bytes that have arrived, which are not requested again.
    """
    chunks: list[bytes] = []
    received = 0
    found: Head | None = None  # in the first answer
    tag = head.tag if head else None

    async def attempt() -> None:
        nonlocal found, tag, stop, received
        async with request(start + received, stop, tag) as answer:
            if found is None:
                found = answer.head
                tag = tag or found.tag
            if answer.head.size != found.size:  # where there are no tags
                raise ChangedError("the blob has changed")
            stop = min(stop, found.size)
            while received < stop - start:
                goal = min(stop - start, received + policy.window_bytes)
                expected = f"expected {goal - received} more bytes of an answer"
                await with_timeout(receive(answer, goal), policy.window_s, expected)

    async def receive(answer: Answer, goal: int) -> None:
        nonlocal received
        while received < goal:
            if not (chunk := await answer.read(goal - received)):
                raise TransientError("the body of an answer ended early")
            chunks.append(chunk)
            received += len(chunk)

    await retry(attempt, lambda: received)
    assert found is not None
    return Fetched(found, chunks)


async def head_by_range(fetch: Callable[[str, int, int, Head | None], Awaitable[Fetched]], name: str) -> Head | None:
    """Return the head of a blob from the answer to a request of its first byte, None if it does not exist."""
    try:
        found = await if_found(fetch(name, 0, 1, None))
    except ChangedError:  # it was replaced between two attempts
        return await head_by_range(fetch, name)
    return found.head if found else None


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
