"""Retries: the one loop that repeats a request, and the limits of every wait.

Clients of object stores retry too, at several layers, and their retries multiply. All of them are turned off. Only
`error_mapping` decides which failure is worth a retry, and only this loop retries.
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
    """The limits of waits and retries. Every wait ends, whatever the server does."""

    attempts: int = 8  # in a row without progress
    give_up_s: float = 120.0  # after the last progress; no new attempt starts later
    answer_s: float = 15.0  # from a request to the head of its answer
    pace_bytes: int = 256 << 10  # in `pace_s`; bytes that arrive more slowly count as stalled
    pace_s: float = 8.0
    backoff_s: float = 0.25  # before the second attempt; then twice as long each time
    longest_backoff_s: float = 15.0

    def transfer_s(self, size: int) -> float:
        """Return the time limit for the answer to a request that sends `size` bytes."""
        return self.answer_s + self.pace_s * size / self.pace_bytes


class ChangedError(StoreError):
    """The blob is not in the state that the request was conditional on. Never leaves the storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failed request: the error to raise, whether a retry may succeed, and the least time before it."""

    error: ShardflowError
    retry: bool = False
    after_s: float = 0.0


async def retry(
    request: Callable[[], Awaitable[T]],
    classify: Callable[[Exception], Failure],
    policy: RetryPolicy,
    received_bytes: Callable[[], int] = lambda: 0,
) -> T:
    """Repeat a request until it succeeds, fails permanently, or reaches a limit of the policy.

    `received_bytes` returns how many bytes have arrived so far. After `pace_bytes` more, the limits start anew.
    """
    # The operating system's randomness: the generator that training has seeded must not change.
    jitter = random.SystemRandom()
    clock = asyncio.get_running_loop().time
    since, before, attempts = clock(), received_bytes(), 0
    while True:
        try:
            return await request()
        except Exception as error:
            failure = classify(error)
        if received_bytes() - before >= policy.pace_bytes:
            since, before, attempts = clock(), received_bytes(), 0
        attempts += 1
        if not failure.retry:
            raise failure.error
        pause_s = min(policy.backoff_s * 2 ** (attempts - 1), policy.longest_backoff_s)
        pause_s = max(failure.after_s, jitter.uniform(pause_s / 2, pause_s))
        passed_s = clock() - since
        if attempts >= policy.attempts or passed_s + pause_s > policy.give_up_s:
            times = "once" if attempts == 1 else f"{attempts} times"
            message = f"{failure.error}; tried {times} in {passed_s:.0f} s: run it again when the store answers"
            raise type(failure.error)(message) from failure.error.__cause__
        await asyncio.sleep(pause_s)


async def with_timeout(work: Awaitable[T], timeout_s: float, expected: str) -> T:
    """Wait for a result; after the timeout raise a DeadlineError whose message begins with `expected`."""
    try:
        return await asyncio.wait_for(work, timeout_s)
    except (asyncio.TimeoutError, TimeoutError) as error:  # two classes before Python 3.11
        raise DeadlineError(f"{expected} within {timeout_s:g} s") from error
