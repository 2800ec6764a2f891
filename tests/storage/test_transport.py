from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest

from shardflow.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    DatasetExistsError,
    DeadlineError,
    NotFoundError,
    ShardflowError,
    StoreError,
    TransientError,
)
from shardflow.storage.interface import BlobVersion
from shardflow.storage.retry import Contact, Failure, RetryPolicy
from shardflow.storage.stores import ChangedError
from shardflow.storage.transport import (
    Answer,
    Connection,
    Fetched,
    Transport,
    Write,
    blob_metadata,
    no_bytes,
    range_size,
)

NEW: dict[str, Any] = {"new": True, "replaces": None}
REPLACE: dict[str, Any] = {"new": False, "replaces": "a"}
PUT: dict[str, Any] = {"new": False, "replaces": None}


class Refusing(Transport):
    """A store in which publishing ends with an error, or none, and a blob is then there."""

    _ask = _describe = _send = _page = _delete = None  # type: ignore[assignment]

    def __init__(self, error: Exception | None, found: str) -> None:
        super().__init__(connection(), "b")
        self.error, self.found = error, found
        self.mark: Mapping[str, str] = {}

    async def _publish(self, write: Write) -> None:
        """Fail, or not."""
        assert (write.name, write.data) == ("x", b"1")
        self.mark = write.metadata
        if self.error is not None:
            raise self.error

    async def head(self, name: str) -> BlobVersion | None:
        """Return the head of the blob, which is ours, that of another call, or none."""
        assert name == "x"
        if self.found == "no answer":
            raise TransientError("no answer")
        marks = {"ours": self.mark, "theirs": blob_metadata(self.mark["sha256"])}
        return BlobVersion(1, metadata=marks[self.found]) if self.found in marks else None


def published(error: Exception | None, found: str, **condition: Any) -> None:
    """Publish a blob by a request that ends with an error, or none."""
    asyncio.run(Refusing(error, found).put("x", b"1", **condition))


def test_a_mark_is_that_of_one_call() -> None:
    """Two calls that write the same content are told apart, and both say its SHA-256."""
    first, second = blob_metadata("0" * 64), blob_metadata("0" * 64)
    assert first != second
    assert first.keys() == {"sha256", "writer"}
    assert first["sha256"] == second["sha256"] == "0" * 64


@pytest.mark.parametrize("error", [None, ChangedError("412"), TransientError("reset"), AccessDeniedError("403")])
def test_a_write_whose_answer_was_lost_is_done(error: Exception | None) -> None:
    """Whatever the last answer says, a write is done if the blob is that of this call."""
    published(error, "ours", **NEW)


@pytest.mark.parametrize("found", ["none", "theirs", "no answer"])
def test_a_refused_write(found: str) -> None:
    """A write whose condition does not hold says so, with the cause; a blob that is gone cannot be replaced either."""
    cause = ValueError("412")
    refusal = ChangedError("changed")
    refusal.__cause__ = cause
    with pytest.raises(DatasetExistsError, match=r"^s3://b/x exists already; nothing is ever overwritten$") as caught:
        published(refusal, found, **NEW)
    assert caught.value.__cause__ is cause
    for error in (refusal, NotFoundError("gone")):
        with pytest.raises(
            DatasetExistsError, match=r"^s3://b/x was changed by another process meanwhile; run the same"
        ):
            published(error, found, **REPLACE)


@pytest.mark.parametrize(
    ("error", "condition"),
    [(BucketNotFoundError("no bucket"), REPLACE), (NotFoundError("gone"), PUT), (AccessDeniedError("403"), REPLACE)],
)
def test_another_failure_is_none_of_the_condition(error: StoreError, condition: dict[str, Any]) -> None:
    """A missing bucket, a missing upload and a lack of rights are raised as they are."""
    with pytest.raises(StoreError) as caught:
        published(error, "none", **condition)
    assert caught.value is error


CONTENT = bytes(range(100))
CURRENT = BlobVersion(100, "t")
POLICY = RetryPolicy(min_throughput=80, window_s=0.1, attempts=3, backoff_s=0.001)


def connection() -> Connection:
    """Return that of a transport, whose failures are worth a retry if they are transient."""

    def classify(error: Exception, _: str) -> Failure:
        assert isinstance(error, ShardflowError)
        return Failure(error=error, retry=isinstance(error, TransientError))

    return Connection(
        url="s3://b", shown="s3://b", options={}, classify=classify, policy=POLICY, piece_bytes=1, contact=Contact()
    )


class Blob(Transport):
    """A blob whose first answer breaks off, and the requests for it."""

    _describe = _send = _page = _delete = None  # type: ignore[assignment]

    def __init__(self, breaks_after: int = 100, heads: tuple[BlobVersion, ...] = (CURRENT,)) -> None:
        super().__init__(connection(), "b")
        self.breaks_after = breaks_after
        self._heads = iter((*heads, *[heads[-1]] * 9))
        self.requests: list[tuple[int, int, str]] = []
        self.most: list[int] = []

    @contextlib.asynccontextmanager
    async def _ask(self, name: str, start: int, stop: int, tag: str) -> AsyncIterator[Answer]:
        """Answer with at most 5 bytes at a time."""
        assert name == "x"
        body = io.BytesIO(CONTENT[start:stop] if self.requests else CONTENT[start:stop][: self.breaks_after])
        self.requests.append((start, stop, tag))

        async def read(most_bytes: int) -> bytes:
            self.most.append(most_bytes)
            return body.read(min(5, most_bytes))

        yield Answer(head=next(self._heads), read=read)

    def read(self, start: int, stop: int, head: BlobVersion | None = None) -> tuple[bytes, BlobVersion]:
        """Return the bytes, and the head of the first answer."""
        found, chunks = asyncio.run(self.fetch("x", start, stop, head))
        return b"".join(chunks), found


def test_an_answer_that_breaks_off_is_continued() -> None:
    """The next request begins behind the last byte that arrived, on the condition of the first answer's tag."""
    blob = Blob(breaks_after=10)
    assert blob.read(20, 50) == (CONTENT[20:50], CURRENT)
    assert blob.requests == [(20, 50, ""), (30, 50, "t")]


def test_a_known_tag_is_the_condition_of_the_first_request() -> None:
    """The tag of an earlier request is the condition; one without a tag is none. The answer's head is returned."""
    for known, tag in ((CURRENT, "t"), (BlobVersion(size=100), "")):
        blob = Blob()
        data, head = blob.read(0, 10, known)
        assert (data, head, blob.requests) == (CONTENT[:10], CURRENT, [(0, 10, tag)])


def test_a_range_ends_with_the_blob() -> None:
    """Of a range beyond the end, the bytes up to the end are read, also after a break."""
    blob = Blob(breaks_after=5)
    assert blob.read(90, 200)[0] == CONTENT[90:]
    assert blob.requests == [(90, 200, ""), (95, 100, "t")]


def test_a_blob_that_changed_size_is_not_mixed() -> None:
    """Where there are no tags, an answer of another size than the first is a ChangedError."""
    with pytest.raises(ChangedError, match="the blob has changed"):
        Blob(breaks_after=5, heads=(BlobVersion(size=100), BlobVersion(size=99))).read(0, 50)


@pytest.mark.parametrize(("known", "answers"), [(None, ("t", "new")), (CURRENT, ("new",))])
def test_a_server_that_ignores_conditions_does_not_mix(known: BlobVersion | None, answers: tuple[str, ...]) -> None:
    """An answer with another tag than the requested one is a ChangedError, though the size is the same."""
    blob = Blob(breaks_after=5, heads=tuple(BlobVersion(100, tag) for tag in answers))
    with pytest.raises(ChangedError, match="the blob has changed"):
        blob.read(0, 50, known)


def test_each_stretch_of_bytes_has_its_own_time() -> None:
    """No more bytes are asked for than belong to the stretch whose time runs; one without bytes is a DeadlineError."""
    blob = Blob()
    assert blob.read(0, 20)[0] == CONTENT[:20]
    assert blob.most == [8, 3, 8, 3, 4]  # five bytes come at a time, eight are a stretch

    @contextlib.asynccontextmanager
    async def hang(*_: object) -> AsyncIterator[Answer]:
        chunks = iter([bytes(8)])

        async def read(_: int) -> bytes:
            return next(chunks, None) or (await asyncio.Event().wait() and b"")

        yield Answer(head=BlobVersion(size=100), read=read)

    blob._ask = hang  # type: ignore[method-assign, assignment]
    with pytest.raises(DeadlineError, match=r"^expected 8 more bytes of an answer within 0\.1 s"):
        blob.read(0, 20)


def head_of(*answers: BlobVersion | Exception) -> BlobVersion | None:
    """Return the head of a blob whose first byte is requested, with these outcomes in turn."""
    outcomes: Iterator[BlobVersion | Exception] = iter(answers)
    blob = Blob()

    async def fetch(name: str, start: int, stop: int, head: Any) -> Fetched:
        assert (name, start, stop, head) == ("x", 0, 1, None)
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return Fetched(outcome, [])

    blob._heads_by_range, blob.fetch = True, fetch  # type: ignore[method-assign]
    return asyncio.run(blob.head("x"))


def test_a_head_is_that_of_the_first_byte() -> None:
    """A head comes with the first byte; a missing blob has none, a replaced one is asked for again."""
    assert head_of(BlobVersion(size=3)) == head_of(ChangedError("replaced"), BlobVersion(size=3)) == BlobVersion(size=3)
    assert head_of(NotFoundError("x")) is None
    with pytest.raises(BucketNotFoundError):
        head_of(BucketNotFoundError("b"))


def test_the_size_of_a_range() -> None:
    """The size of the blob is behind the range, which must begin where it was requested."""
    assert range_size("bytes 5-9/100", 5) == 100
    assert range_size("bytes 0-0/0", 0) == range_size("bytes 0--1/0", 0) == 0
    for said in (
        "",
        "bytes 5-9",
        "bytes 5-9/*",
        "bytes 4-9/100",
        "bytes */100",
        "items 5-9/100",
        "bytes 5-9/9",
        "bytes 5-/9",
    ):
        with pytest.raises(TransientError, match="not the requested range"):
            range_size(said, 5)
    assert asyncio.run(no_bytes(5)) == b""
