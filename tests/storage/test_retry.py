from __future__ import annotations

import asyncio
import dataclasses
import gc
import pickle
import random
import selectors
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest
from fsspec.asyn import get_loop

from shardflow.errors import AccessDeniedError, ConfigError, DeadlineError, IntegrityError, TransientError
from shardflow.storage.retry import Contact, Failure, Retries, RetryPolicy, current_wait, one_wait, with_timeout

POLICY = RetryPolicy(attempts=6, idle_timeout_s=100.0, min_throughput=125, backoff_s=1.0, longest_backoff_s=5.0)
AGAIN = Failure(error=TransientError("s3://b/x: the store failed"), retry=True)


class VirtualTime:
    """The clock of an event loop, in which waiting takes no real time."""

    def __init__(self) -> None:
        self.now = 0.0

    def run(self, work: Awaitable[Any]) -> Any:
        """Run work on the loop."""

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


class ClientError(Exception):
    """An exception of a client, with the failure that it means."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure


def classify(error: Exception) -> Failure:
    """Return the failure of the exception."""
    assert isinstance(error, ClientError)
    return error.failure


class Server:
    """Requests with given failures, and the times at which they were made."""

    def __init__(self, *failures: Failure | None, arriving: int = 0, taking_s: float = 0.0) -> None:
        self._failures: Iterator[Failure | None] = iter(failures)
        self._arriving, self._taking_s = arriving, taking_s
        self.time, self.began, self.held = VirtualTime(), list[float](), 0

    async def request(self) -> str:
        """Fail, or not."""
        self.began.append(self.time.now)
        await asyncio.sleep(self._taking_s)
        self.held += self._arriving
        failure = next(self._failures, None)
        if failure is not None:
            raise ClientError(failure)
        return "done"

    def retry(self, policy: RetryPolicy = POLICY) -> Any:
        """Make the request."""
        retries = Retries(lambda error, _: classify(error), policy, str)
        return self.time.run(retries(self.request, "x", lambda: self.held))

    @property
    def pauses(self) -> list[float]:
        """The seconds between the beginnings of the requests."""
        return [after - before for before, after in zip(self.began, self.began[1:], strict=False)]


def after(seconds: float) -> Failure:
    """A failure with the least time before the next request."""
    return Failure(error=TransientError("s3://b/x: the store is busy"), retry=True, after_s=seconds)


def test_pauses_double_up_to_a_limit() -> None:
    """Each pause is between half and all of a length that doubles up to the longest; then the request succeeds."""
    storage = Server(*[AGAIN] * 5)
    assert storage.retry() == "done"
    assert len(storage.pauses) == 5
    for pause, longest in zip(storage.pauses, (1.0, 2.0, 4.0, 5.0, 5.0), strict=True):
        assert longest / 2 <= pause <= longest


def test_a_store_that_was_never_reached_is_given_up_soon() -> None:
    """A wrong endpoint fails in seconds; a store that was reached before is waited for, as with a given deadline."""
    nobody = dataclasses.replace(AGAIN, unreachable=True)
    wrong, deadline = Server(*[nobody] * 99), Server(*[nobody] * 99)
    with pytest.raises(DeadlineError):
        wrong.retry(RetryPolicy())
    assert len(wrong.began) > 2
    assert wrong.time.now <= 5
    with pytest.raises(DeadlineError):
        deadline.retry(RetryPolicy().within(60.0))
    assert deadline.time.now > 30
    contact, known = pickle.loads(pickle.dumps(Contact())), Server(None, *[nobody] * 99)
    retries = Retries(lambda error, _: classify(error), RetryPolicy(), str, contact)
    known.time.run(retries(known.request, "x"))
    assert contact.is_made
    later = Retries(lambda error, _: classify(error), RetryPolicy(), str, pickle.loads(pickle.dumps(contact)))
    with pytest.raises(DeadlineError):
        known.time.run(later(known.request, "x"))
    assert known.time.now > 30


def test_pauses_differ() -> None:
    """Clients that fail together retry at different times, and the generator that training seeded is unchanged."""
    state = random.getstate()
    pauses = []
    for _ in range(20):
        storage = Server(AGAIN)
        storage.retry()
        pauses += storage.pauses
    assert len(set(pauses)) > 15
    assert POLICY.backoff_s / 2 <= min(pauses) <= max(pauses) <= POLICY.backoff_s
    assert random.getstate() == state


def test_the_server_may_ask_for_a_longer_pause() -> None:
    """A pause that the server asks for is kept; one that is shorter than our own changes nothing."""
    storage = Server(after(30.0), after(0.1))
    assert storage.retry() == "done"
    assert storage.pauses[0] == 30.0
    assert 1.0 <= storage.pauses[1] <= 2.0


def test_attempts_are_limited() -> None:
    """After the last attempt, the error names the number of attempts and the time, and keeps type and cause."""
    cause = ConnectionError("broken")
    error = TransientError("s3://b/x: the connection failed")
    error.__cause__ = cause
    storage = Server(*[Failure(error=error, retry=True)] * 10)
    with pytest.raises(
        TransientError, match=r"^s3://b/x: the connection failed; tried 6 times in \d+ s: run"
    ) as caught:
        storage.retry()
    assert len(storage.began) == POLICY.attempts
    assert caught.value.__cause__ is cause
    damaged = Server(*[Failure(error=IntegrityError("other bytes; restore them"), retry=True)] * 10)
    with pytest.raises(IntegrityError, match=r"other bytes; restore them; tried 6 times in \d+ s$"):
        damaged.retry()


def test_attempts_without_a_limit() -> None:
    """A policy that allows thousands of attempts pauses for its longest time between them, however many there were."""
    policy = dataclasses.replace(POLICY, attempts=10_000, idle_timeout_s=1e9)
    storage = Server(*[AGAIN] * 2000)
    assert storage.retry(policy) == "done"
    assert policy.longest_backoff_s / 2 <= min(storage.pauses[3:]) <= max(storage.pauses) <= policy.longest_backoff_s


def test_time_is_limited() -> None:
    """No attempt begins after the time limit, also when the server asks for a pause; the error says how long it was."""
    slow = Server(*[AGAIN] * 10, taking_s=45.0)
    with pytest.raises(DeadlineError, match=r"^s3://b/x: the store failed; tried 3 times in 13\d s"):
        slow.retry()
    assert max(slow.began) < POLICY.idle_timeout_s
    busy = Server(after(POLICY.idle_timeout_s + 1))
    with pytest.raises(DeadlineError, match=r"tried.*0"):
        busy.retry()


def test_progress_renews_the_budget() -> None:
    """Attempts and time are counted from the last `window_bytes` that arrived; less is not progress."""
    moving = Server(*[AGAIN] * 20, arriving=POLICY.window_bytes, taking_s=30.0)
    assert moving.retry() == "done"
    assert moving.time.now > 5 * POLICY.idle_timeout_s
    assert max(moving.pauses) <= 30.0 + POLICY.backoff_s  # backing off starts anew as well
    creeping = Server(*[AGAIN] * 20, arriving=POLICY.window_bytes // POLICY.attempts - 1)
    creeping.held = POLICY.window_bytes  # of an earlier request
    with pytest.raises(TransientError):
        creeping.retry()
    assert len(creeping.began) == POLICY.attempts


def test_a_transport_names_the_blob_and_counts_progress() -> None:
    """The retries of a transport are those of a request; a failure is that of the blob's URL."""
    urls = set()

    def classify_at(error: Exception, url: str) -> Failure:
        urls.add(url)
        return classify(error)

    moving = Server(*[AGAIN] * 20, arriving=POLICY.window_bytes)
    retries = Retries(classify_at, POLICY, "s3://b/{}".format)
    assert moving.time.run(retries(moving.request, "x", lambda: moving.held)) == "done"
    assert urls == {"s3://b/x"}


def test_permanent_failure_is_tried_once() -> None:
    """A permanent failure is raised at once, unchanged."""
    error = AccessDeniedError("s3://b/x: no right to do this")
    storage = Server(Failure(error=error))
    with pytest.raises(AccessDeniedError) as caught:
        storage.retry()
    assert caught.value is error
    assert storage.began == [0.0]


def test_cancelling_is_no_failure() -> None:
    """A cancelled request is neither classified nor repeated."""
    made = []

    async def request() -> None:
        made.append(True)
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        VirtualTime().run(Retries(lambda error, _: classify(error), POLICY, str)(request, "x"))
    assert made == [True]


def test_waiting_ends_in_time() -> None:
    """Work beyond its timeout is a DeadlineError that names what was expected; otherwise its result is returned."""
    hours = VirtualTime()
    with pytest.raises(DeadlineError, match=r"answer.*7"):
        hours.run(with_timeout(asyncio.sleep(8), 7.0, "no answer"))
    assert hours.now == 7.0
    assert hours.run(with_timeout(asyncio.sleep(6, "answer"), 7.0, "no answer")) == "answer"


def test_a_cancellation_as_the_work_ends_is_not_lost() -> None:
    """Work is given up even if its cancellation comes in the moment in which its answer arrived."""

    async def late() -> None:
        answer = asyncio.get_running_loop().create_future()
        wait = asyncio.ensure_future(with_timeout(answer, 7.0, "no answer"))
        await asyncio.sleep(0)  # it waits
        answer.set_result(None)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait

    VirtualTime().run(late())


def test_work_that_is_given_up_has_cleaned_up() -> None:
    """After its timeout or a cancellation, work has run its clean-up before the wait ends."""
    cleaned: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(1)
            cleaned.append(name)

    async def give_up() -> None:
        with pytest.raises(DeadlineError):
            await with_timeout(work("timeout"), 7.0, "no answer")
        wait = asyncio.ensure_future(with_timeout(work("cancelled"), 7.0, "no answer"))
        await asyncio.sleep(1)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait

    VirtualTime().run(give_up())
    assert cleaned == ["timeout", "cancelled"]


def test_a_large_request_may_take_longer() -> None:
    """A request that carries bytes has time for them at the least pace."""
    policy = RetryPolicy(request_timeout_s=15.0, min_throughput=125, window_s=8.0)
    assert (policy.answer_timeout_s(), policy.answer_timeout_s(5000)) == (15.0, 55.0)


class Store:
    """A store of which some names never answer, and requests for them in virtual time."""

    def __init__(self, *silent: str) -> None:
        self.silent, self.time = silent, VirtualTime()
        self.retries = Retries(lambda error, _: Failure(error=error, retry=True), RetryPolicy(), str)  # type: ignore[arg-type]

    async def read(self, name: str) -> None:
        """Read a blob, which takes a second."""

        async def request() -> None:
            answer = asyncio.sleep(1000.0 if name in self.silent else 1.0)
            await with_timeout(answer, RetryPolicy().answer_timeout_s(), f"{name}: expected an answer")

        await self.retries(request, name)

    def ends(self, *names: str, waited_s: float = 0.0) -> float:
        """Return when one wait for something else, and then for several names, ends; the last is silent."""

        async def work() -> None:
            with one_wait(lambda: self.time.now):
                await asyncio.sleep(waited_s)
                for name in names:
                    await self.read(name)

        with pytest.raises(DeadlineError, match=f"^{names[-1]}: expected an answer .*; tried .* in 60 s"):
            self.time.run(work())
        return self.time.now


def test_one_wait_has_one_limit_of_time() -> None:
    """A wait for a lock, and then for a shard, ends after 60 s without progress, with an error that names the shard."""
    for waited_s in (0.0, 10.0, 45.0):
        assert Store("shard").ends("shard", waited_s=waited_s) == pytest.approx(60.0)


def test_a_wait_for_others_leaves_time_for_an_own_attempt() -> None:
    """After a wait that took longer than three quarters of the limit, one quarter of it is left."""
    assert Store("shard").ends("shard", waited_s=59.0) == pytest.approx(74.0)
    assert Store("shard").ends("shard", waited_s=500.0) == pytest.approx(515.0)


def test_progress_gives_a_wait_its_time_again() -> None:
    """A blob that arrives gives what the same wait needs next all of its time."""
    assert Store("shard").ends("index", "shard", waited_s=50.0) == pytest.approx(111.0)


def test_waits_are_nested() -> None:
    """A wait within another is part of it, also in a thread of the event loop; afterwards each is its own again."""
    with one_wait() as outer:
        with one_wait() as inner:
            assert inner is outer
        assert current_wait() is outer
        coroutine = asyncio.run_coroutine_threadsafe(_current(), get_loop())
        assert coroutine.result(10) is outer
    assert current_wait() is not outer


async def _current() -> object:
    return current_wait()


def test_a_cancellation_that_meets_an_error_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    """A request that fails just as it is cancelled prints no traceback: another one has failed before it."""

    async def cancel() -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        wait = asyncio.ensure_future(with_timeout(answer, 7.0, "no answer"))
        await asyncio.sleep(1)
        answer.set_exception(OSError("no such bucket"))
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait

    VirtualTime().run(cancel())
    gc.collect()
    assert not caplog.messages


def test_an_outage_that_lasts_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """After five seconds without success a warning says why; it is repeated only after the store has answered."""
    server = Server(AGAIN, None, AGAIN, AGAIN, AGAIN, None, AGAIN, AGAIN, taking_s=4.0)
    retries = Retries(lambda error, _: classify(error), POLICY, str)
    for warnings in (0, 1, 2):  # one failure, three, two
        assert server.time.run(retries(server.request, "x")) == "done"
        assert len(caplog.messages) == warnings
    assert all(text.startswith("s3://b/x: the store failed; still trying, after ") for text in caplog.messages)


def test_a_shorter_patience_shortens_the_waits_within_it() -> None:
    """A deadline below the time for an answer bounds that too, and the time for its bytes; no deadline is refused."""
    policy = RetryPolicy().within(2.0)
    assert (policy.idle_timeout_s, policy.answer_timeout_s(), policy.window_timeout_s()) == pytest.approx(
        (2.0, 2.0, 2.0), abs=0.1
    )
    assert policy.min_throughput == RetryPolicy().min_throughput
    assert RetryPolicy().within(600.0).answer_timeout_s() == RetryPolicy().request_timeout_s
    for wrong in (0, -1, "60", float("inf"), float("nan")):
        with pytest.raises(ConfigError, match=r"deadline_s.*0"):
            RetryPolicy().within(wrong)  # type: ignore[arg-type]
