"""Processes that share a dataset in a bucket, and go on one request at a time: every interleaving can be tried.

The processes are threads that run the real commands. Each of their requests waits until a schedule lets it go, or kills
its process there. The bucket is on a real server, or in memory with the semantics of S3: each request is atomic, puts
can be conditional, and an upload in parts appears when it is completed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

from shardflow.errors import DatasetExistsError, NotFoundError, StoreError
from shardflow.storage.interface import BlobVersion
from shardflow.storage.remote import RemoteStorage
from shardflow.storage.transport import Fetched
from shardflow.storage.transport import Transport as AnyTransport
from tests.helpers.s3_server import Server

DEADLINE_S = 60.0
MOST_STEPS = 1000

Pause = Callable[[str], Future[None]]
"""Returns what a request of a process has to wait for."""

Command = Callable[[str, dict[str, Any]], Any]
"""A command, called with the URL of the place, and the storage_options that lead there."""

_connect = RemoteStorage._connect


class Killed(BaseException):
    """The process was killed. Not an Exception, so that nothing in the process goes on after it."""


class Place(Protocol):
    """A prefix of a bucket."""

    url: str

    def options(self) -> dict[str, Any]:
        """Return the storage_options that lead there."""
        ...

    def connect(self, storage: RemoteStorage, pause: Pause) -> AnyTransport:
        """Return a transport."""
        ...

    def contents(self) -> dict[str, bytes]:
        """Return all blobs."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Write a blob."""
        ...


class ServerPlace:
    """A prefix on a real server."""

    def __init__(self, server: Server, prefix: str) -> None:
        self.url, self._server, self._prefix = server.url(prefix), server, prefix

    def options(self) -> dict[str, Any]:
        """Return the storage_options that lead there."""
        return self._server.options()

    def connect(self, storage: RemoteStorage, pause: Pause) -> AnyTransport:  # noqa: ARG002 - the protocol's
        """Return a transport."""
        return _connect(storage)

    def contents(self) -> dict[str, bytes]:
        """Return all blobs."""
        return self._server.contents(self._prefix)

    def put(self, name: str, data: bytes) -> None:
        """Write a blob."""
        self._server.storage(self._prefix).put(name, data)


class MemoryPlace:
    """A bucket in memory."""

    url = "s3://bucket/set"

    def __init__(self, blobs: Mapping[str, bytes] | None = None) -> None:
        self.blobs: dict[str, bytes] = dict(blobs or {})
        self.uploads: dict[int, str] = {}  # the open ones
        self.times: dict[str, int] = dict.fromkeys(self.blobs, time.time_ns())
        self._numbers = itertools.count()

    def options(self) -> dict[str, Any]:
        """Return the storage_options that lead there."""
        return {}

    def connect(self, storage: RemoteStorage, pause: Pause) -> AnyTransport:  # noqa: ARG002 - the protocol's
        """Return a transport."""
        return _MemoryTransport(self, pause)

    def contents(self) -> dict[str, bytes]:
        """Return all blobs."""
        return self.blobs

    def put(self, name: str, data: bytes) -> None:
        """Write a blob."""
        self.blobs[name], self.times[name] = data, time.time_ns()

    def head(self, name: str) -> BlobVersion | None:
        """Return the head of a blob, None if it does not exist."""
        if (data := self.blobs.get(name)) is None:
            return None
        return BlobVersion(size=len(data), tag=f'"{hashlib.md5(data).hexdigest()}"')

    def open_upload(self, name: str) -> int:
        """Open an upload in parts, and return its identifier."""
        number = next(self._numbers)
        self.uploads[number] = name
        return number


class _MemoryTransport:
    """The requests to a bucket in memory; see Transport. The first of each method has been let go."""

    def __init__(self, place: MemoryPlace, pause: Pause) -> None:
        self._place, self._pause = place, pause

    async def fetch(self, name: str, start: int, stop: int, head: BlobVersion | None) -> Fetched:  # noqa: ARG002 - the protocol's
        if (found := self._place.head(name)) is None:
            raise NotFoundError(f"{self._place.url}/{name}: does not exist; check the path")
        return Fetched(found, [self._place.blobs[name][start:stop]])

    async def head(self, name: str) -> BlobVersion | None:
        return self._place.head(name)

    async def put(self, name: str, data: bytes, *, new: bool = False, replaces: str | None = None) -> None:
        head = self._place.head(name)
        if (new and head is not None) or (replaces is not None and (head is None or head.tag != replaces)):
            raise DatasetExistsError(f"{name} exists already, or was changed by another process meanwhile")
        self._place.put(name, data)

    async def upload(self, name: str, source: Path) -> None:
        """Upload in parts."""
        upload = self._place.open_upload(name)
        await asyncio.wrap_future(self._pause(f"complete {name}"))  # a process that is killed here leaves it open
        if self._place.uploads.pop(upload, None) is None:
            raise StoreError(f"{name}: the upload is no longer open")
        self._place.put(name, source.read_bytes())

    async def listing(self, most: int | None = None) -> dict[str, BlobVersion]:  # noqa: ARG002 - the protocol's
        place = self._place
        return {
            name: BlobVersion(len(data), str(place.head(name)), place.times[name]) for name, data in place.blobs.items()
        }

    async def abort_uploads(self, names: Collection[str]) -> None:
        for upload in [upload for upload, name in self._place.uploads.items() if name in names]:
            await asyncio.wrap_future(self._pause(f"abort upload {upload}"))
            self._place.uploads.pop(upload, None)

    async def remove(self, name: str) -> None:
        self._place.blobs.pop(name, None)

    async def close(self) -> None:
        pass


class _Paused:
    """A transport of which each call waits to be let go."""

    def __init__(self, transport: AnyTransport, pause: Pause) -> None:
        self._transport, self._pause = transport, pause
        self.close = transport.close  # at any time, by the garbage collection

    def __getattr__(self, method: str) -> Callable[..., Any]:
        async def call(name: Any = "", *arguments: Any, **options: Any) -> Any:
            what = "create" if options.get("new") else "replace" if options.get("replaces") else method
            await asyncio.wrap_future(self._pause(f"{what} {name}" if isinstance(name, str) else what))
            given = () if method == "listing" else (name, *arguments)
            return await getattr(self._transport, method)(*given, **options)

        return call


@dataclass(slots=True)
class Process:
    """A command in a thread of its own.

    Attributes:
        request: What it waits for, such as "put train/000000.npy"; None while it runs.
        passed: Its requests so far.
        result, error: How it ended.
    """

    name: str
    command: Command
    thread: threading.Thread | None = None
    request: str | None = None
    turn: Future[None] | None = None
    passed: list[str] = field(default_factory=list)
    result: Any = None
    error: BaseException | None = None
    has_ended: bool = False
    is_killed: bool = False


class Schedule:
    """Lets the processes that share a place go on, one request at a time.

    Args:
        place: Where their dataset is.
        commands: Name of a process → what it runs.
    """

    def __init__(self, place: Place, commands: Mapping[str, Command]) -> None:
        self.place = place
        self.processes = {name: Process(name, command) for name, command in commands.items()}
        self.steps: list[str] = []
        self.on_step: Callable[[], None] = lambda: None
        self._changed = threading.Condition()

    def run(self, name: str, until: str | None = None) -> None:
        """Let a process go on to its end, or until its next request begins like this."""
        process = self.processes[name]
        self.step(name)
        while not process.has_ended and not (until and process.request and process.request.startswith(until)):
            self.step(name)

    def step(self, name: str) -> None:
        """Let a process make the request for which it waits, and run until its next one; start it if it has not."""
        process = self.processes[name]
        if process.thread is None:
            process.thread = threading.Thread(target=self._work, args=(process,), daemon=True)
            process.thread.start()
        elif (turn := self._take(process)) is not None:
            self.steps.append(f"{name}: {process.passed[-1]}")
            turn.set_result(None)
        self._settle(process)
        assert len(self.steps) < MOST_STEPS, "this has no end"
        self.on_step()

    def kill(self, name: str) -> None:
        """Kill a process before the request for which it waits."""
        process = self.processes[name]
        self.steps.append(f"{name}: killed before {process.request}")
        process.is_killed = True
        if process.thread is None:
            process.has_ended = True
            return
        if (turn := self._take(process)) is not None:
            turn.set_exception(Killed())
        process.thread.join(DEADLINE_S)
        assert process.has_ended

    def live(self) -> list[str]:
        """Return the processes that have not ended."""
        return [name for name, process in self.processes.items() if not process.has_ended]

    def _work(self, process: Process) -> None:
        try:
            options = self.place.options()
            options["config_kwargs"] = {"user_agent_extra": process.name}
            process.result = process.command(self.place.url, options)
        except BaseException as error:
            process.error = error
        with self._changed:
            process.has_ended = True
            self._changed.notify_all()

    def _settle(self, process: Process) -> None:
        """Wait until a process waits or has ended."""
        with self._changed:
            done = self._changed.wait_for(lambda: process.turn is not None or process.has_ended, DEADLINE_S)
        assert done, f"{process.name} neither ends nor makes a request"

    def _take(self, process: Process) -> Future[None] | None:
        """Return the turn for which a process waits; None if it has ended."""
        while not process.has_ended:
            with self._changed:
                turn, request = process.turn, process.request
                process.turn = process.request = None
            if turn is not None and request is not None and turn.set_running_or_notify_cancel():
                process.passed.append(request)
                return turn
            self._settle(process)  # a pool of the process has given the request up
        return None

    def _ask(self, name: str, request: str) -> Future[None]:
        turn: Future[None] = Future()
        process = self.processes.get(name)
        if process is None:  # the test itself
            turn.set_result(None)
        elif process.is_killed:
            turn.set_exception(Killed())
        else:
            with self._changed:
                assert process.turn is None, f"{name} makes two requests at once: {process.request}, {request}"
                process.turn, process.request = turn, request
                self._changed.notify_all()
        return turn

    def connect(self, storage: RemoteStorage) -> AnyTransport:
        """Return the transport of a storage, whose options name the process."""
        name = storage._url.options.get("config_kwargs", {}).get("user_agent_extra", "")
        pause: Pause = lambda request: self._ask(name, request)  # noqa: E731 - shorter than a function
        return _Paused(self.place.connect(storage, pause), pause)  # type: ignore[return-value]


@contextlib.contextmanager
def scheduled(place: Place, commands: Mapping[str, Command]) -> Iterator[Schedule]:
    """Make the requests of commands wait for a schedule until the body ends; then kill those that are left."""
    schedule = Schedule(place, commands)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemoteStorage, "_connect", lambda storage: schedule.connect(storage))
        # One request at a time, or the order within a process would be another each time.
        patch.setattr("shardflow.dataset.syncing._SHARDS_AT_A_TIME", 1)
        patch.setattr("shardflow.dataset.columns._FILES_AT_A_TIME", 1)
        patch.setattr("shardflow.dataset.image_copies._INDEXES_AT_A_TIME", 1)
        patch.setattr("shardflow.packing.ledger._AT_A_TIME", 1)
        try:
            yield schedule
        finally:
            for name in schedule.live():
                schedule.kill(name)
