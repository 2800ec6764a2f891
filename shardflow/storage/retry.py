"""Retries: the limits of every wait, and the loop that repeats a request.

Clients of object stores retry too, at several layers, and their retries multiply. All of them are turned off. Only
`error_mapping` decides which failed request is worth a retry, and `Retries` repeats it. `rereading` reads a blob again
that arrives whole but with wrong bytes. Both have the same patience: `Attempts`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, replace
from numbers import Real
from typing import NoReturn, TypeVar

from shardflow.errors import ConfigError, DeadlineError, IntegrityError, ShardflowError

T = TypeVar("T")
logger = logging.getLogger(__name__)

_WARN_AFTER_S = 5.0  # a shorter outage is not worth a warning


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The limits of waits and retries. Every wait ends, whatever the server does."""

    idle_timeout_s: float = 45.0  # after the last progress; no new attempt starts later
    attempts: int | None = None  # in a row without progress; None for as many as the time allows
    request_timeout_s: float = 15.0  # from a request to the head of its answer
    min_throughput: float = 32 << 10  # in bytes/s, over `window_s`; a body that arrives more slowly counts as stalled
    window_s: float = 8.0
    backoff_s: float = 0.25  # before the second attempt; then twice as long each time
    longest_backoff_s: float = 15.0

    @property
    def window_bytes(self) -> int:
        """How many bytes have to arrive within `window_s`; that many are progress."""
        return math.ceil(self.min_throughput * self.window_s)

    def within(self, idle_timeout_s: float) -> RetryPolicy:
        """Return the policy with another patience, and with waits that are no longer than that."""
        if not isinstance(idle_timeout_s, Real) or not 0 < idle_timeout_s < math.inf:
            raise ConfigError(f"deadline_s must be a number of seconds above 0, found {idle_timeout_s!r}")
        return replace(
            self,
            idle_timeout_s=idle_timeout_s,
            request_timeout_s=min(self.request_timeout_s, idle_timeout_s),
            window_s=min(self.window_s, idle_timeout_s),
        )

    def transfer_s(self, size: int) -> float:
        """Return the time limit for the answer to a request that sends `size` bytes."""
        return self.request_timeout_s + size / self.min_throughput


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
        pause_s = min(policy.backoff_s * 2.0 ** min(self._failed - 1, 60), policy.longest_backoff_s)
        pause_s = max(failure.after_s, self._jitter.uniform(pause_s / 2, pause_s))
        if self._failed == policy.attempts or passed_s + pause_s > policy.idle_timeout_s:
            self.give_up(failure.error, passed_s)
        return pause_s

    def give_up(self, error: ShardflowError, passed_s: float) -> NoReturn:
        """Raise an error that also says how often it was tried."""
        times = "once" if self._failed == 1 else f"{self._failed} times"
        remedy = "" if isinstance(error, IntegrityError) else ": run it again when the store answers"
        raise type(error)(f"{error}; tried {times} in {passed_s:.0f} s{remedy}") from error.__cause__


class Outages:
    """Since when a store, and each piece of its blobs, has failed to answer the requests of a process.

    A shard is requested by a prefetcher and, when that has failed, by the reader that needs it. If each had a patience
    of its own, training would learn of a dead store after several times the limit. So a failed request counts the time
    since the store answered any request, or since others for the same piece began to fail. For one event loop.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._forget_s = policy.idle_timeout_s  # a store that was not asked for so long has a new chance
        self._spans: dict[Hashable, tuple[float, float]] = {}  # piece, None for the store → first and last failure
        self._answered = -math.inf
        self._warned = False  # of the outage that lasts

    def extend(self, piece: Hashable, since: float, now: float) -> float:
        """Note that a request fails that has had no progress since a time; return since when such requests fail."""
        for key, first in {piece: since, None: max(since, self._answered)}.items():
            earlier, last = self._spans.get(key, (first, now))
            self._spans[key] = (first if now - last > self._forget_s else min(first, earlier), now)
        return min(since, self._spans[piece][0], self._spans[None][0])

    def warn_if_long(self, error: ShardflowError, since: float, now: float) -> None:
        """Log the first error of an outage that has lasted so long that somebody wonders why nothing happens."""
        if now - since >= _WARN_AFTER_S and not self._warned:
            self._warned = True
            logger.warning("%s; still trying, after %.0f s", error, now - since)

    def end(self, piece: Hashable, now: float) -> None:
        """Note that the store has answered a request."""
        self._answered, self._warned = now, False
        self._spans.pop(piece, None)
        self._spans.pop(None, None)


class Retries:
    """Repeats the requests of a transport until they succeed, fail permanently, or reach a limit of the policy.

    Args:
        classify: Decides about an error, given the URL that messages name.
        policy: The limits.
        url: Returns the URL of a blob from its name.
        outages: Those that its requests share.
    """

    def __init__(
        self,
        classify: Callable[[Exception, str], Failure],
        policy: RetryPolicy,
        url: Callable[[str], str],
        outages: Outages | None = None,
    ) -> None:
        self._classify, self._policy, self._url = classify, policy, url
        self._outages = outages or Outages(policy)

    async def __call__(
        self,
        request: Callable[[], Awaitable[T]],
        name: str,
        received_bytes: Callable[[], int] = lambda: 0,
        start: int | None = None,
    ) -> T:
        """Repeat a request for a blob; one for its bytes from `start` shares the limit of time with others for them.

        `received_bytes` returns how many bytes have arrived so far. After `window_bytes` more, the limits start anew.
        """
        clock, policy, outages = asyncio.get_running_loop().time, self._policy, self._outages
        piece = None if start is None else (name, start)
        since, before, attempts = clock(), received_bytes(), Attempts(policy)
        while True:
            try:
                result = await request()
            except Exception as error:
                failure = self._classify(error, self._url(name))
            else:
                outages.end(piece, clock())
                return result
            if received_bytes() - before >= policy.window_bytes:
                since, before = clock(), received_bytes()
                attempts.restart()
                outages.end(piece, since)
            if failure.retry:
                since = outages.extend(piece, since, clock())
            else:  # a refusal is an answer
                outages.end(piece, clock())
            pause_s = attempts.pause_s(failure, clock() - since)
            outages.warn_if_long(failure.error, since, clock())
            await asyncio.sleep(pause_s)


async def with_timeout(work: Awaitable[T], timeout_s: float, expected: str) -> T:
    """Wait for a result; after the timeout raise a DeadlineError whose message begins with `expected`."""
    try:
        return await asyncio.wait_for(work, timeout_s)
    except (asyncio.TimeoutError, TimeoutError) as error:  # two classes before Python 3.11
        raise DeadlineError(f"{expected} within {timeout_s:g} s") from error
