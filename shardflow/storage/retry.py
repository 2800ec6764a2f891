"""Retries: the limits of every wait, and the loop that repeats a request.

The retries of clients, at several layers, would multiply, so all of them are turned off. `error_mapping` decides which
failed request is worth a retry, and `Retries` repeats it. `rereading` reads a blob again that arrived with wrong bytes.
Both share the limits of `Attempts`.

A sample may need an index, a shard, the lock of a process that downloads one of them, and retries of each. Separate
limits would add up before training notices a dead store, so all of them are one `Wait`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from numbers import Real
from typing import NoReturn, TypeVar

from shardflow.errors import ConfigError, DeadlineError, IntegrityError, ShardflowError

from .interface import IDLE_TIMEOUT_S

T = TypeVar("T")
logger = logging.getLogger(__name__)

_WARN_AFTER_S = 5.0  # a shorter outage is not worth a warning


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The limits of waits and retries. Every wait ends, even if the server never answers."""

    idle_timeout_s: float = IDLE_TIMEOUT_S  # limit of a wait after its last progress
    first_contact_s: float = 4.0  # the same if a store was never reached, because the setup may be wrong
    attempts: int | None = None  # consecutive attempts without progress; None for as many as the time allows
    request_timeout_s: float = 15.0  # from a request to the head of its answer
    min_throughput: float = 32 << 10  # in bytes/s, over `window_s`; a slower body counts as stalled
    window_s: float = 8.0
    backoff_s: float = 0.25  # before the second attempt; doubled each time
    longest_backoff_s: float = 15.0

    @property
    def window_bytes(self) -> int:
        """The number of bytes that must arrive within `window_s`, and count as progress."""
        return math.ceil(self.min_throughput * self.window_s)

    def within(self, idle_timeout_s: float) -> RetryPolicy:
        """Return the policy with another idle timeout."""
        if not isinstance(idle_timeout_s, Real) or not 0 < idle_timeout_s < math.inf:
            raise ConfigError(f"deadline_s must be a number of seconds above 0, found {idle_timeout_s!r}")
        return replace(self, idle_timeout_s=idle_timeout_s, first_contact_s=idle_timeout_s)

    def answer_timeout_s(self, size: int = 0) -> float:
        """Return the time limit of the current wait for the answer to a request of `size` bytes."""
        return self._within_wait(self.request_timeout_s) + size / self.min_throughput

    def window_timeout_s(self) -> float:
        """Return the time limit of the current wait for the next `window_bytes`."""
        return self._within_wait(self.window_s)

    def _within_wait(self, limit_s: float) -> float:
        return max(0.0, min(limit_s, self.idle_timeout_s - current_wait().idle_s()))


class Wait:
    """A wait, whose steps share one limit of the time without progress. Thread-safe.

    Progress is an event that cannot repeat forever: a finished request, a part of its bytes, a file that has grown.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or time.monotonic
        self.progress()

    def idle_s(self) -> float:
        """Return the seconds since the last progress."""
        return self._clock() - self._since

    def progress(self) -> None:
        """Note that there was progress."""
        self._since = self._clock()

    def add(self, passed_s: float) -> None:
        """Count seconds without progress that passed before the wait began."""
        self._since -= passed_s

    def leave_quarter(self, limit_s: float) -> None:
        """Leave at least a quarter of a limit, so that an attempt is made after a long wait for other processes."""
        self._since = max(self._since, self._clock() - 0.75 * limit_s)


_wait: ContextVar[Wait] = ContextVar("wait")


def current_wait() -> Wait:
    """Return the current wait of this context; a new one if there is none."""
    return _wait.get(None) or Wait()


@contextlib.contextmanager
def one_wait(clock: Callable[[], float] | None = None) -> Iterator[Wait]:
    """Make the body one wait, or part of the current one.

    It includes the body's requests, which run in the thread of the event loop, but not threads that the body starts.
    """
    wait = _wait.get(None) or Wait(clock)
    token = _wait.set(wait)
    try:
        yield wait
    finally:
        _wait.reset(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failed request: the error to raise, whether a retry may succeed, and the minimum time before it.

    `unreachable` means that there was no connection: the server's name is unknown, or nothing listens there.
    """

    error: ShardflowError
    retry: bool = False
    after_s: float = 0.0
    unreachable: bool = False


@dataclass(slots=True)
class Contact:
    """Whether a store has ever been reached; pickled with its storage."""

    is_made: bool = False


class Attempts:
    """Counts consecutive failed attempts without progress."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy, self._failed = policy, 0
        # The system's randomness, so that the generator that training has seeded does not change.
        self._jitter = random.SystemRandom()

    def restart(self) -> None:
        """Start counting again, because there was progress."""
        self._failed = 0

    def pause_s(self, failure: Failure, passed_s: float, limit_s: float | None = None) -> float:
        """Count a failed attempt, `passed_s` after the last progress; return the pause before the next one.

        `limit_s` overrides the policy's limit of the time without progress.

        Raises:
            ShardflowError: The failure's error, if it is permanent or a limit is reached.
        """
        policy = self._policy
        self._failed += 1
        if not failure.retry:
            raise failure.error
        pause_s = min(policy.backoff_s * 2.0 ** min(self._failed - 1, 60), policy.longest_backoff_s)
        pause_s = max(failure.after_s, self._jitter.uniform(pause_s / 2, pause_s))
        if self._failed == policy.attempts:
            self.give_up(failure.error, passed_s)
        if passed_s + pause_s > (policy.idle_timeout_s if limit_s is None else limit_s):
            self.give_up(failure.error, passed_s, is_late=True)
        return pause_s

    def give_up(self, error: ShardflowError, passed_s: float, *, is_late: bool = False) -> NoReturn:
        """Raise an error with the number of attempts; a DeadlineError if the time is up."""
        times = "once" if self._failed == 1 else f"{self._failed} times"
        is_wrong = isinstance(error, IntegrityError)
        kind = DeadlineError if is_late and not is_wrong else type(error)
        remedy = "" if is_wrong else ": run it again when the store answers"
        raise kind(f"{error}; tried {times} in {passed_s:.0f} s{remedy}") from error.__cause__


class Retries:
    """Repeats the requests of a transport until they succeed, fail permanently, or reach a limit of the policy.

    `classify` maps an exception and the URL of its blob, from `url`, to a failure.
    """

    def __init__(
        self,
        classify: Callable[[Exception, str], Failure],
        policy: RetryPolicy,
        url: Callable[[str], str],
        contact: Contact | None = None,
    ) -> None:
        self._classify, self._policy, self._url = classify, policy, url
        self._contact = contact or Contact()
        self._has_warned = False  # since the last answer of the store

    async def __call__(
        self, request: Callable[[], Awaitable[T]], name: str, received_bytes: Callable[[], int] = lambda: 0
    ) -> T:
        """Repeat a request for a blob, within the current wait.

        `received_bytes` returns the bytes that have arrived. After `window_bytes` more, the limits start again.
        """
        with one_wait(asyncio.get_running_loop().time) as wait:
            wait.leave_quarter(self._policy.idle_timeout_s)
            before, attempts = received_bytes(), Attempts(self._policy)
            while True:
                try:
                    result = await request()
                except Exception as error:
                    failure = self._classify(error, self._url(name))
                else:
                    wait.progress()
                    self._has_warned, self._contact.is_made = False, True
                    return result
                self._contact.is_made |= not failure.unreachable
                if received_bytes() - before >= self._policy.window_bytes:
                    wait.progress()
                    attempts.restart()
                    before = received_bytes()
                limit_s = None if self._contact.is_made else self._policy.first_contact_s
                pause_s = attempts.pause_s(failure, wait.idle_s(), limit_s)
                if wait.idle_s() >= _WARN_AFTER_S and not self._has_warned:
                    self._has_warned = True
                    logger.warning("%s; still trying, after %.0f s", failure.error, wait.idle_s())
                await asyncio.sleep(pause_s)


async def with_timeout(work: Awaitable[T], timeout_s: float, expected: str) -> T:
    """Wait for a result; after the timeout raise a DeadlineError whose message begins with `expected`.

    Before Python 3.12, `asyncio.wait_for` may lose a cancellation that comes just as the work ends.
    """
    task = asyncio.ensure_future(work)
    try:
        if (await asyncio.wait([task], timeout=timeout_s))[0]:
            return await task
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not print it after a cancellation
    raise DeadlineError(f"{expected} within {timeout_s:.3g} s")
