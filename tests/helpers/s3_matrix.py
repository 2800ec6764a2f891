"""The fault matrix: each fault, in each place of each operation, and the required outcome.

Every operation ends in time, with the right bytes or a typed error, and leaves nothing half done.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shardflow.errors import (
    AccessDeniedError,
    DeadlineError,
    IntegrityError,
    ShardflowError,
    StoreError,
    TransientError,
)
from shardflow.storage.interface import Storage
from shardflow.storage.s3_transport import LEAST_PART_BYTES
from tests.helpers.s3_proxy import Fault, Proxy
from tests.helpers.s3_server import PIECE_BYTES, QUICK, Server

PERSISTENT = dataclasses.replace(QUICK, attempts=9, idle_timeout_s=30.0)
LIMIT_S = 90.0
OLD = random.Random(1).randbytes(1000)
SMALL = random.Random(2).randbytes(3000)
LARGE = random.Random(3).randbytes(2 * PIECE_BYTES + 12345)  # three requests
PARTS = random.Random(4).randbytes(LEAST_PART_BYTES + 12345)  # one to open an upload, two parts, one to close it
CONTENTS = {"get": LARGE, "read": LARGE, "put": SMALL, "upload": PARTS}

# Each fault, and the error of a read when every request meets it; None where reading succeeds.
FAULTS: dict[str, tuple[Fault, type[ShardflowError] | None]] = {
    "latency": (Fault(latency_s=0.1), None),
    "500": (Fault(status=500), TransientError),
    "500, and it was done": (Fault(status=500, reaches_server=True), TransientError),
    "503 SlowDown": (Fault(status=503, code="SlowDown", answer_headers=(("Retry-After", "0"),)), TransientError),
    "429": (Fault(status=429, code="TooManyRequests"), TransientError),
    "reset": (Fault(reset=True), TransientError),
    "reset, and it was done": (Fault(reset=True, reaches_server=True), TransientError),
    "reset in the body": (Fault(reset_after=100), TransientError),
    "end in the body": (Fault(end_after=100), TransientError),
    "short body": (Fault(short_by=100), TransientError),
    "hang": (Fault(hang=True), DeadlineError),
    "hang, and it was done": (Fault(hang=True, reaches_server=True), DeadlineError),
    "hang in the body": (Fault(hang_after=100), DeadlineError),
    "drip": (Fault(bytes_per_s=1000), DeadlineError),
    "flipped bit": (Fault(flip=1000), IntegrityError),
    "flipped bit sent": (Fault(flip_sent=1000), None),
    "200 with an error": (Fault(status=200), TransientError),
    "ignored range": (Fault(status=200, body=LARGE), TransientError),
    "other range": (Fault(answer_headers=(("Content-Range", "bytes 7-9/99"),)), TransientError),
    "no range said": (Fault(answer_headers=(("Content-Range", ""),)), TransientError),
    "expired token": (Fault(status=400, code="ExpiredToken"), AccessDeniedError),
    "clock skew": (Fault(status=403, code="RequestTimeTooSkewed"), AccessDeniedError),
    "403": (Fault(status=403, code="AccessDenied"), AccessDeniedError),
}
RANGES = {"ignored range", "other range", "no range said"}  # writes have none
FINAL = {"expired token", "clock skew", "403"}  # no retry can succeed
DONE = {name for name in FAULTS if name.endswith("it was done")}  # reading does nothing
SLOW = {"hang", "hang, and it was done", "hang in the body", "drip"}  # it takes a time limit to end them
READING, WRITING = ("get", "read"), ("put", "upload")
PLACES = {"first": 0.0, "middle": 0.5, "last": 1.0, "every": None}


@dataclass(frozen=True)
class Outcome:
    """The outcome of one case."""

    fault: str
    operation: str
    place: str
    error: ShardflowError | None
    seconds: float

    def __str__(self) -> str:
        return "ok" if self.error is None else type(self.error).__name__


@dataclass(kw_only=True)
class Stage:
    """The storages of all cases, through the proxy and past it: clients are slow to create."""

    direct: Storage
    storage: Storage
    quick: Storage  # with short time limits, for what every request meets
    persistent: Storage  # with short time limits too, and attempts enough for a busy machine that misses some
    proxy: Proxy
    requests: Mapping[str, int] = field(default_factory=lambda: {"get": 3, "read": 3, "put": 1, "upload": 1})
    abort_uploads: Callable[[], int] = lambda: 0  # those that were left open; returns how many there were
    errors: Mapping[str, type[ShardflowError] | None] = field(default_factory=dict)  # that differ from those in FAULTS


def s3_stage(server: Server, proxy: Proxy, prefix: str) -> Stage:
    """Return the stage for S3, where uploads are in parts."""

    def abort_uploads() -> int:
        left = server.open_uploads(prefix)
        for key, upload in left:
            server.client().call_s3("abort_multipart_upload", Bucket=server.bucket, Key=key, UploadId=upload)
        return len(left)

    return Stage(
        direct=server.storage(prefix),
        storage=server.storage(prefix, proxy.endpoint),
        quick=server.storage(prefix, proxy.endpoint, QUICK),
        persistent=server.storage(prefix, proxy.endpoint, PERSISTENT),
        proxy=proxy,
        requests={"get": 3, "read": 3, "put": 1, "upload": 4},
        abort_uploads=abort_uploads,
    )


def cases(
    fault: str, operation: str, stage: Stage, folder: Path, places: Collection[str] = tuple(PLACES)
) -> Iterator[Outcome]:
    """Try a fault in each of some places of an operation.

    Raises:
        AssertionError: The outcome breaks a promise.
    """
    direct, proxy = stage.direct, stage.proxy
    requests = stage.requests[operation]
    content = SMALL if operation == "upload" and requests == 1 else CONTENTS[operation]
    sha256 = hashlib.sha256(content).hexdigest()
    for place, share in PLACES.items():
        if place not in places or (requests == 1 and place in ("middle", "last")):
            continue
        storage = stage.storage if fault not in SLOW else stage.quick if share is None else stage.persistent
        name = f"blob-{place}"  # new: requests of the last case that are in flight must not meet this fault
        direct.put(name, content if operation in READING else OLD)
        (folder / "source").write_bytes(content)
        target = folder / "target"
        target.unlink(missing_ok=True)
        proxy.clear()
        which = {} if share is None else {"first": round(share * (requests - 1)), "times": 1}
        proxy.add(FAULTS[fault][0], contains=name, **which)
        began, error = time.monotonic(), None
        try:
            if operation == "get":
                storage.get(name, target, size=len(content), sha256=sha256)
                assert target.read_bytes() == content
            elif operation == "read":
                assert storage.read(name) == content
            elif operation == "put":
                storage.put(name, content)
            else:
                storage.put(name, folder / "source")
        except (StoreError, IntegrityError) as caught:
            error = caught
        outcome = Outcome(fault, operation, place, error, time.monotonic() - began)
        proxy.clear()
        _check(outcome, name, target, stage, content)
        yield outcome


def _check(outcome: Outcome, name: str, target: Path, stage: Stage, content: bytes) -> None:
    left = stage.abort_uploads() if outcome.operation == "upload" else 0
    # Where no answer ever arrives, the client cannot know that an upload was opened.
    assert not left or (outcome.place == "every" and outcome.error is not None), "an upload was left open"
    assert outcome.seconds < LIMIT_S
    assert (stage.storage.version(name) is None) == (stage.direct.version(name) is None), "no use after a fault"
    assert target.exists() == (outcome.operation == "get" and outcome.error is None), "a leftover"
    if outcome.operation in WRITING:
        found = stage.direct.read(name)
        assert found == content or (outcome.error is not None and found == OLD), "neither the old blob nor the new"
    if outcome.fault in FINAL:
        assert isinstance(outcome.error, AccessDeniedError)
    elif outcome.place != "every":
        assert outcome.error is None, f"one fault was not survived: {outcome.error}"
    elif outcome.operation in READING:
        expected = stage.errors.get(outcome.fault, FAULTS[outcome.fault][1])
        assert type(outcome.error) is (expected or type(None)), repr(outcome.error)
