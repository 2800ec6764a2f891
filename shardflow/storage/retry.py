"""Attempts: the one loop that tries a request again, and how long anything is waited for.

Clients of stores have retries of their own, at several layers, and they multiply. All of them are turned off, and what
is worth another try is decided here alone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from shardflow.errors import DeadlineError, ShardflowError, StoreError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long a remote store is waited for. Every wait ends, whatever the other side does."""

    attempts: int = 8  # in a row without progress
    give_up_s: float = 120.0  # after the last progress; no new attempt starts later
    answer_s: float = 15.0  # from a request to the head of its answer
    # Bytes that flow slower than this have stalled: a drip is a failure, not patience.
    pace_bytes: int = 256 << 10
    pace_s: float = 8.0
    backoff_s: float = 0.25  # before the second attempt; then twice as long each time
    longest_backoff_s: float = 15.0

    def transfer_s(self, size: int) -> float:
        """Return how long a request that carries `size` bytes may take to be answered."""
        return self.answer_s + self.pace_s * size / self.pace_bytes


class ChangedError(StoreError):
    """The blob is not in the state that the request was conditional on. Never leaves the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What a failed request means: the error to raise, whether trying again is worth it, and how soon it is allowed."""

    error: ShardflowError
    again: bool = False
    after_s: float = 0.0


async def retry(
    request: Callable[[], Awaitable[T]],
    judge: Callable[[Exception], Failure],
    patience: RetryPolicy,
    held: Callable[[], int] = lambda: 0,
) -> T:
    """Make a request until it succeeds, or trying again is no use, or patience is at its end.

    Args:
        request: Makes one attempt, from where the last one got to.
        judge: Says what an exception of it means.
        patience: When to stop.
        held: How many bytes have arrived so far. With every `pace_bytes` of them patience starts anew.
    """
    # The operating system's randomness: backing off must not touch a generator that training has seeded.
    jitter = random.SystemRandom()
    clock = asyncio.get_running_loop().time
    since, before, attempts = clock(), held(), 0
    while True:
        try:
            return await request()
        except Exception as error:
            failure = judge(error)
        if held() - before >= patience.pace_bytes:
            since, before, attempts = clock(), held(), 0
        attempts += 1
        if not failure.again:
            raise failure.error
        pause_s = min(patience.backoff_s * 2 ** (attempts - 1), patience.longest_backoff_s)
        pause_s = max(failure.after_s, jitter.uniform(pause_s / 2, pause_s))
        passed_s = clock() - since
        if attempts >= patience.attempts or passed_s + pause_s > patience.give_up_s:
            kind = type(failure.error)
            times = "once" if attempts == 1 else f"{attempts} times"
            final = kind(f"{failure.error}; tried {times} in {passed_s:.0f} s: run it again when the store answers")
            raise final from failure.error.__cause__
        await asyncio.sleep(pause_s)


async def with_timeout(work: Awaitable[T], limit_s: float, what: str) -> T:
    """Wait for something, no longer than a limit.

    Raises:
        DeadlineError: The limit has passed.
    """
    try:
        return await asyncio.wait_for(work, limit_s)
    except (asyncio.TimeoutError, TimeoutError) as error:  # two classes before Python 3.11
        raise DeadlineError(f"{what} within {limit_s:g} s") from error
