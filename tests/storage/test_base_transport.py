from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shardflow.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    DatasetExistsError,
    NotFoundError,
    StoreError,
    TransientError,
)
from shardflow.storage.base_transport import blob_metadata, write
from shardflow.storage.transport import ChangedError, Head

MARK = blob_metadata("0" * 64)
OURS, THEIRS = Head(size=1, metadata=MARK), Head(size=1, metadata=blob_metadata("0" * 64))
NEW: dict[str, Any] = {"new": True, "replaces": None}
REPLACE: dict[str, Any] = {"new": False, "replaces": "a"}
PUT: dict[str, Any] = {"new": False, "replaces": None}


def published(error: Exception | None, head: Head | Exception | None, **condition: Any) -> None:
    """Publish a blob by a request that ends with an error, or none; `head` is then there."""

    async def send() -> None:
        if error is not None:
            raise error

    async def find() -> Head | None:
        if isinstance(head, Exception):
            raise head
        return head

    asyncio.run(write(send, find, MARK, "s3://b/x", **condition))


def test_a_mark_is_that_of_one_call() -> None:
    """Two calls that write the same content are told apart, and both say its SHA-256."""
    first, second = blob_metadata("0" * 64), blob_metadata("0" * 64)
    assert first != second
    assert first.keys() == {"sha256", "writer"}
    assert first["sha256"] == second["sha256"] == "0" * 64


@pytest.mark.parametrize("error", [None, ChangedError("412"), TransientError("reset"), AccessDeniedError("403")])
def test_a_write_whose_answer_was_lost_is_done(error: Exception | None) -> None:
    """Whatever the last answer says, a write is done if the blob is that of this call."""
    published(error, OURS, **NEW)


@pytest.mark.parametrize("head", [None, THEIRS, TransientError("no answer")])
def test_a_refused_write(head: Head | Exception | None) -> None:
    """A write whose condition does not hold says so, with the cause; a blob that is gone cannot be replaced either."""
    cause = ValueError("412")
    refusal = ChangedError("changed")
    refusal.__cause__ = cause
    with pytest.raises(DatasetExistsError, match=r"^s3://b/x exists already; nothing is ever overwritten$") as caught:
        published(refusal, head, **NEW)
    assert caught.value.__cause__ is cause
    for error in (refusal, NotFoundError("gone")):
        with pytest.raises(
            DatasetExistsError, match=r"^s3://b/x was changed by another process meanwhile; run the same"
        ):
            published(error, head, **REPLACE)


@pytest.mark.parametrize(
    ("error", "condition"),
    [(BucketNotFoundError("no bucket"), REPLACE), (NotFoundError("gone"), PUT), (AccessDeniedError("403"), REPLACE)],
)
def test_another_failure_is_none_of_the_condition(error: StoreError, condition: dict[str, Any]) -> None:
    """A missing bucket, a missing upload and a lack of rights are raised as they are."""
    with pytest.raises(StoreError) as caught:
        published(error, None, **condition)
    assert caught.value is error
