from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest

from shardflow.errors import AccessDeniedError, DeadlineError, TransientError
from shardflow.storage.retry import Failure, RetryPolicy, retry, with_timeout

PATIENCE = RetryPolicy(attempts=6, give_up_s=100.0, pace_bytes=1000, backoff_s=1.0, longest_backoff_s=5.0)
AGAIN = Failure(error=TransientError("s3://b/x: the store failed"), retry=True)


class Hours:
    """An event loop's time, in which waiting costs nothing."""

    def __init__(self) -> None:
        self.now = 0.0

    def run(self, work: Awaitable[Any]) -> Any:
        """Run something in it."""

        class Selector(selectors.DefaultSelector):
            def select(_, timeout: float | None = None) -> Any:  # noqa: N805 - `self` is the clock here
                self.now += timeout or 0.0
                return super().select(0)

        class Loop(asyncio.SelectorEventLoop):
            def time(_) -> float:  # noqa: N805
                return self.now

        loop = Loop(Selector())
        try:
            return loop.run_until_complete(work)
        finally:
            loop.close()


class ToldError(Exception):
    """What a client raises."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure


def judge(error: Exception) -> Failure:
    """Return what was told."""
    assert isinstance(error, ToldError)
    return error.failure


class Store:
    """Requests that fail as they are told to, and when they were made."""

    def __init__(self, *failures: Failure | None, arriving: int = 0, taking_s: float = 0.0) -> None:
        self._failures: Iterator[Failure | None] = iter(failures)
        self._arriving, self._taking_s = arriving, taking_s
        self.hours, self.began, self.held = Hours(), list[float](), 0

    async def request(self) -> str:
        """Fail, or not."""
        self.began.append(self.hours.now)
        await asyncio.sleep(self._taking_s)
        self.held += self._arriving
        failure = next(self._failures, None)
        if failure is not None:
            raise ToldError(failure)
        return "done"

    def retry(self, patience: RetryPolicy = PATIENCE) -> Any:
        """Make the request."""
        return self.hours.run(retry(self.request, judge, patience, lambda: self.held))

    @property
    def pauses(self) -> list[float]:
        """The seconds between the beginnings of the requests."""
        return [after - before for before, after in zip(self.began, self.began[1:], strict=False)]


def after(seconds: float) -> Failure:
    """A failure with a time before which the store does not want to be asked."""
    return Failure(error=TransientError("s3://b/x: the store is busy"), retry=True, after_s=seconds)


def test_pauses_double_up_to_a_limit() -> None:
    """Each pause is between half and all of a length that doubles up to the longest; then the request succeeds."""
    storage = Store(*[AGAIN] * 5)
    assert storage.retry() == "done"
    assert len(storage.pauses) == 5
    for pause, longest in zip(storage.pauses, (1.0, 2.0, 4.0, 5.0, 5.0), strict=True):
        assert longest / 2 <= pause <= longest


def test_pauses_differ() -> None:
    """Clients that fail at once do not come back at once, and the generator that training seeded is left alone."""
    state = random.getstate()
    pauses = []
    for _ in range(20):
        storage = Store(AGAIN)
        storage.retry()
        pauses += storage.pauses
    assert len(set(pauses)) > 15
    assert random.getstate() == state


def test_the_store_may_ask_for_a_longer_pause() -> None:
    """Before what the store said has passed it is not asked again; a shorter time than our own changes nothing."""
    storage = Store(after(30.0), after(0.1))
    assert storage.retry() == "done"
    assert storage.pauses[0] == 30.0
    assert 1.0 <= storage.pauses[1] <= 2.0


def test_attempts_are_limited() -> None:
    """After the last attempt allowed, the error says how often and how long it was tried, and keeps type and cause."""
    cause = ConnectionError("broken")
    error = TransientError("s3://b/x: the connection failed")
    error.__cause__ = cause
    storage = Store(*[Failure(error=error, retry=True)] * 10)
    with pytest.raises(TransientError, match=r"^s3://b/x: the connection failed; tried 6 times in \d+ s: ") as caught:
        storage.retry()
    assert len(storage.began) == PATIENCE.attempts
    assert caught.value.__cause__ is cause


def test_time_is_limited() -> None:
    """No attempt begins after the time is over, also when the store asks for a pause that would not end before."""
    slow = Store(*[AGAIN] * 10, taking_s=45.0)
    with pytest.raises(TransientError, match=r"tried 3 times in 13\d s"):
        slow.retry()
    assert max(slow.began) < PATIENCE.give_up_s
    busy = Store(after(PATIENCE.give_up_s + 1))
    with pytest.raises(TransientError, match="tried once in 0 s"):
        busy.retry()


def test_progress_renews_the_budget() -> None:
    """Attempts and time are counted from the last `pace_bytes` that arrived; less than that is no progress."""
    moving = Store(*[AGAIN] * 20, arriving=PATIENCE.pace_bytes, taking_s=30.0)
    assert moving.retry() == "done"
    assert moving.hours.now > 5 * PATIENCE.give_up_s
    assert max(moving.pauses) <= 30.0 + PATIENCE.backoff_s  # backing off starts anew as well
    creeping = Store(*[AGAIN] * 20, arriving=PATIENCE.pace_bytes // PATIENCE.attempts - 1)
    with pytest.raises(TransientError):
        creeping.retry()
    assert len(creeping.began) == PATIENCE.attempts


def test_what_cannot_be_mended_is_tried_once() -> None:
    """A failure for good is raised as it was judged, at once."""
    error = AccessDeniedError("s3://b/x: no right to do this")
    storage = Store(Failure(error=error))
    with pytest.raises(AccessDeniedError) as caught:
        storage.retry()
    assert caught.value is error
    assert storage.began == [0.0]


def test_cancelling_is_no_failure() -> None:
    """A request that is cancelled is neither judged nor made again."""
    made = []

    async def request() -> None:
        made.append(True)
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        Hours().run(retry(request, judge, PATIENCE))
    assert made == [True]


def test_waiting_ends_in_time() -> None:
    """What takes longer than its limit is a DeadlineError that says what was waited for; the rest is its result."""
    hours = Hours()
    with pytest.raises(DeadlineError, match="no answer within 7 s"):
        hours.run(with_timeout(asyncio.sleep(8), 7.0, "no answer"))
    assert hours.now == 7.0
    assert hours.run(with_timeout(asyncio.sleep(6, "answer"), 7.0, "no answer")) == "answer"


def test_a_large_request_may_take_longer() -> None:
    """What carries bytes has time for them at the least pace."""
    patience = RetryPolicy(answer_s=15.0, pace_bytes=1000, pace_s=8.0)
    assert (patience.transfer_s(0), patience.transfer_s(5000)) == (15.0, 55.0)
