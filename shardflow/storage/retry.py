"""Retries: the limits of every wait, and the loop that repeats a request.

Clients of object stores retry too, at several layers, and their retries multiply. All of them are turned off. Only
`error_mapping` decides which failed request is worth a retry, and `retry` repeats it. A blob that arrives whole but
with wrong bytes is read anew by its storage. Both have the same patience: `Attempts`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from shardflow.errors import DeadlineError, IntegrityError, ShardflowError, StoreError

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


class Attempts:
    """The failed attempts in a row without progress."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy, self._failed = policy, 0
        # The operating system's randomness: the generator that training has seeded must not change.
        self._jitter = random.SystemRandom()

    def restart(self) -> None:
        """Count anew, because there was progress."""
        self._failed = 0

    def pause_s(self, failure: Failure, passed_s: float) -> float:
        """Count a failed attempt, `passed_s` after the last progress; return the pause before the next one.

        Raises:
            ShardflowError: The failure's error: it is permanent, or a limit of the policy is reached, which it says.
        """
        policy = self._policy
        self._failed += 1
        if not failure.retry:
            raise failure.error
        pause_s = min(policy.backoff_s * 2 ** (self._failed - 1), policy.longest_backoff_s)
        pause_s = max(failure.after_s, self._jitter.uniform(pause_s / 2, pause_s))
        if self._failed >= policy.attempts or passed_s + pause_s > policy.give_up_s:
            self.give_up(failure.error, passed_s)
        return pause_s

    def give_up(self, error: ShardflowError, passed_s: float) -> NoReturn:
        """Raise an error that also says how often it was tried."""
        times = "once" if self._failed == 1 else f"{self._failed} times"
        remedy = "" if isinstance(error, IntegrityError) else ": run it again when the store answers"
        raise type(error)(f"{error}; tried {times} in {passed_s:.0f} s{remedy}") from error.__cause__


async def retry(
    request: Callable[[], Awaitable[T]],
    classify: Callable[[Exception], Failure],
    policy: RetryPolicy,
    received_bytes: Callable[[], int] = lambda: 0,
) -> T:
    """Repeat a request until it succeeds, fails permanently, or reaches a limit of the policy.

    `received_bytes` returns how many bytes have arrived so far. After `pace_bytes` more, the limits start anew.
    """
    clock = asyncio.get_running_loop().time
    since, before, attempts = clock(), received_bytes(), Attempts(policy)
    while True:
        try:
            return await request()
        except Exception as error:
            failure = classify(error)
        if received_bytes() - before >= policy.pace_bytes:
            since, before = clock(), received_bytes()
            attempts.restart()
        await asyncio.sleep(attempts.pause_s(failure, clock() - since))


async def with_timeout(work: Awaitable[T], timeout_s: float, expected: str) -> T:
    """Wait for a result; after the timeout raise a DeadlineError whose message begins with `expected`."""
    try:
        return await asyncio.wait_for(work, timeout_s)
    except (asyncio.TimeoutError, TimeoutError) as error:  # two classes before Python 3.11
        raise DeadlineError(f"{expected} within {timeout_s:g} s") from error
