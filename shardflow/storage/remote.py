"""Remote storage: blobs in a bucket, or at any other URL that fsspec serves.

A blob is fetched in ordered ranges, several at once, because one connection to an object store is slow even on a fast
network. fsspec's event loop, in a separate thread, transfers the bytes; the calling thread verifies and writes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import itertools
import multiprocessing.context
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Collection, Coroutine, Generator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import fsspec
from fsspec.asyn import get_loop

from shardflow._imports import import_large
from shardflow.errors import ConfigError, DeadlineError, IntegrityError, ShardflowError, StoreError

from .error_mapping import classify
from .interface import MAX_READ_BYTES, BlobTooLargeError, BlobVersion, Storage, Writer
from .local_files import COPY_AGAIN, map_os_errors, new_file, write_verified
from .rereading import RereadingStorage
from .retry import Contact, Failure, RetryPolicy
from .staging import temporary_staging
from .stores import ChangedError, Rights
from .transfers import track_transfer
from .transport import Connection, Fetched, Transport
from .urls import RemoteUrl, blob_url, divide_query, query_values

T = TypeVar("T")

PIECE_BYTES = 8 << 20
PIECES = 4
_CANCEL_TIMEOUT_S = 10.0
_LOOP_TIMEOUT_S = 30.0  # for a result, and then again for a sign that the loop runs
_LOOP_WAITS = 30
_IDLE_S = 0.01  # CPU time in one of these waits, which itself takes less
# Process → lock for creating a client: in a forked process, a vanished thread may hold the parent's lock.
_connecting: dict[int, threading.Lock] = {}


class RemoteStorage:
    """Blobs below a URL; see Storage.

    Each process, also a forked one, creates its client when first needed. A process started by multiprocessing receives
    all options. Any other pickle, which may end up in a file, omits options that may be secret; the client then takes
    its credentials from the environment. One request reads or writes `piece_bytes`. Wrong bytes are an error here;
    `rereading` reads them again.
    """

    def __init__(self, url: RemoteUrl, retry_policy: RetryPolicy, piece_bytes: int) -> None:
        self._url, self._retry_policy, self._piece_bytes = url, retry_policy, piece_bytes
        self._lacks_options, self._contact = False, Contact()
        # By process. A child never closes its parent's client, because they share sockets and the poll set.
        self._clients: dict[int, Transport] = {}
        if self._url.scheme not in fsspec.available_protocols():
            raise ConfigError(f"{self}: this scheme is not supported; use s3://, gs://, https:// or a directory")

    def __str__(self) -> str:
        return str(self._url)

    def __repr__(self) -> str:
        return f"RemoteStorage({str(self)!r})"

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_clients": {}}
        if multiprocessing.context.get_spawning_popen() is None:
            state["_lacks_options"] = self._lacks_options or self._url.holds_secrets()
            state["_url"] = self._url.without_secrets()
        return state

    @property
    def idle_timeout_s(self) -> float:
        return self._retry_policy.idle_timeout_s

    def url(self, name: str) -> str:
        return blob_url(str(self), name)

    def local_path(self, name: str) -> Path | None:  # noqa: ARG002 - the protocol's
        return None

    def read(self, name: str, *, most_bytes: int = MAX_READ_BYTES) -> bytes:
        """Return the content of a blob, verified if its metadata has the SHA-256; request at most `most_bytes`."""
        stop = max(1, min(most_bytes, self._piece_bytes))
        head, chunks = self._run(self._transport().fetch(name, 0, stop, None))
        stored = head.metadata.get("sha256", "")
        if head.size > most_bytes:
            raise BlobTooLargeError.of(self.url(name), head.size, most_bytes, stored)
        with contextlib.closing(self._pieces(name, head, stop)) as pieces:
            data = b"".join([*chunks, *pieces])
        found = hashlib.sha256(data).hexdigest()
        if stored not in ("", found):
            message = f"{self.url(name)}: expected SHA-256 {stored}, with which it was stored, found {found}"
            raise IntegrityError(f"{message}; write it again")
        return data

    def read_range(self, name: str, start: int, stop: int, *, version: BlobVersion | None = None) -> bytes:
        """Return a part of a blob with one request, or none for an empty part."""
        if start >= stop:
            return b""
        if version is None:
            return b"".join(self._run(self._transport().fetch(name, start, stop, None))[1])
        try:
            found, chunks = self._run(self._transport().fetch(name, start, stop, version))
            if found.size != version.size:
                raise ChangedError("it has another size")
        except ChangedError as error:  # other parts were read from the old version, so a retry cannot help
            message = f"{self.url(name)} was replaced while it was read; stop the process that writes to it"
            raise StoreError(f"{message}, and run the same command again") from error
        return b"".join(chunks)

    def version(self, name: str) -> BlobVersion | None:
        return self._run(self._transport().head(name))

    def get(self, name: str, target: Path, *, size: int, sha256: str) -> None:
        pieces = self._pieces(name, BlobVersion(size=size), 0)
        with new_file(target) as file, contextlib.closing(pieces):
            write_verified(pieces, file, self.url(name), size=size, sha256=sha256)

    def put(self, name: str, content: bytes | Path, *, new: bool = False, replaces: str | None = None) -> None:
        if replaces is not None and self._url.store.rights < Rights.REPLACE:
            message = f"{self.url(name)}: this kind of storage has no conditional writes"
            raise StoreError(f"{message}; use a disk, S3, Google Cloud Storage or Azure")
        transport = self._writing()
        if isinstance(content, bytes):
            self._run(transport.put(name, content, new=new, replaces=replaces))
            return
        with map_os_errors(content):
            if new or replaces is not None:
                self._run(transport.put(name, content.read_bytes(), new=new, replaces=replaces))
            else:
                self._run(transport.upload(name, content))
            content.unlink()

    def listing(self, *, most: int | None = None) -> dict[str, BlobVersion]:
        return dict(sorted(self._run(self._transport().listing(most)).items()))

    def remove(self, name: str) -> None:
        self._run(self._writing().remove(name))

    def abort_uploads(self, names: Collection[str]) -> None:
        self._run(self._transport().abort_uploads(names))

    @contextlib.contextmanager
    def exclusive_writer(self) -> Iterator[Writer]:
        """Provide a temporary staging directory, without keeping other writers out."""
        with temporary_staging() as (folder, lock):
            yield Writer(folder, lock, is_exclusive=False)

    def _pieces(self, name: str, head: BlobVersion, start: int) -> Generator[bytes, None, None]:
        """Yield the bytes of a blob from `start` in order, while the next ranges are in flight.

        No request waits for the first answer. If only the size is known, requests before that answer are unconditional;
        a checksum then shows whether the blob changed.
        """
        transport, in_flight = self._transport(), deque[Future[Fetched]]()
        # An empty blob is requested too, to see that it exists.
        ranges = _ranges(head.size, self._piece_bytes, start) if start or head.size else iter([(0, 1)])
        try:
            while True:
                for begin, end in itertools.islice(ranges, PIECES - len(in_flight)):
                    in_flight.append(self._submit(transport.fetch(name, begin, end, head if begin else None)))
                if not in_flight:
                    return
                found, chunks = _wait_for(in_flight[0])
                in_flight.popleft()
                if found.size != head.size:
                    found_bytes = f"expected {head.size} bytes, found {found.size}"
                    raise IntegrityError(f"{self.url(name)}: {found_bytes}; {COPY_AGAIN}")
                head = found
                yield from chunks
        finally:
            for future in in_flight:
                future.cancel()

    def _writing(self) -> Transport:
        """Return the client; ConfigError if the store is read-only."""
        self._url.check_writable()
        return self._transport()

    def _transport(self) -> Transport:
        """Return the client of this process, which is created on first use in 0.1 s."""
        pid = os.getpid()
        if pid not in self._clients:
            with _connecting.setdefault(pid, threading.Lock()):
                if pid not in self._clients:
                    self._clients[pid] = self._connect()
                    weakref.finalize(self, _close, pid, self._clients[pid]).atexit = False
        return self._clients[pid]

    def _connect(self) -> Transport:
        url = self._url
        connection = Connection(
            url=url.url,
            shown=str(self),
            options=url.options,
            classify=self._classify,
            policy=self._retry_policy,
            piece_bytes=self._piece_bytes,
            contact=self._contact,
        )
        try:
            module = import_large(f".{url.store.transport}", __package__)
            return module.connect(connection)  # type: ignore[no-any-return]
        except ImportError as error:
            remedy = f"pip install {url.store.install}" if url.store.install else f"{error}; install it with pip"
            failure: ShardflowError = ConfigError(f"{self}: {url.scheme}:// URLs need another package: {remedy}")
        except Exception as error:
            shown = f"{self} with these storage_options" if url.options else str(self)
            found = self._classify(error, shown).error
            failure = ConfigError(f"{found}") if type(found) is StoreError else type(found)(f"{found}")
        raise failure  # outside the handlers, so that the cause, which may contain secrets, is not attached

    def _classify(self, error: Exception, url: str) -> Failure:
        shown, query = divide_query(url)
        leaks = partial(self._url.leaks_in, more=(query, *query_values(query))) if query else self._url.leaks_in
        failure = classify(error, shown, leaks)
        if self._lacks_options and isinstance(failure.error, PermissionError):
            failure.error.args = (f"{failure.error}; this storage was unpickled, without its storage_options",)
        return failure

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        future = asyncio.run_coroutine_threadsafe(work, get_loop())
        track_transfer(future)
        return future

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; when the wait is interrupted, cancel it and let it clean up."""
        ended = threading.Event()

        async def watched() -> T:
            try:
                return await work
            finally:
                ended.set()

        future = self._submit(watched())
        try:
            return _wait_for(future)
        except BaseException:
            if future.cancel():
                if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                    with contextlib.suppress(ValueError):  # it begins just now
                        work.close()  # else it will never begin
                else:
                    ended.wait(_CANCEL_TIMEOUT_S)
            raise


def remote_storage(
    url: str,
    storage_options: Mapping[str, Any] | None = None,
    *,
    to_write: bool = False,
    retry_policy: RetryPolicy | None = None,
    piece_bytes: int = PIECE_BYTES,
) -> Storage:
    """Return the storage at a URL, which reads wrong bytes again; see `open_storage`.

    The option `deadline_s` is not the client's: it is the seconds without progress after which requests are given up.
    """
    options, policy = dict(storage_options or {}), retry_policy or RetryPolicy()
    if (deadline_s := options.pop("deadline_s", None)) is not None:
        policy = policy.within(deadline_s)
    place = RemoteUrl(url, options)
    if to_write:
        place.check_writable()
    return RereadingStorage(RemoteStorage(place, policy, piece_bytes), policy)


def _wait_for(future: Future[T]) -> T:
    """Return the result of work on the event loop. The work has deadlines; this one is for a blocked loop."""
    while not wait([future], _LOOP_TIMEOUT_S).done:
        if not _one_ends([asyncio.run_coroutine_threadsafe(asyncio.sleep(0), get_loop()), future]):
            message = f"the event loop of this process has not run for {_LOOP_TIMEOUT_S:g} s; restart the process"
            raise DeadlineError(f"{message}, and find the code that blocks fsspec's thread")
    return future.result()


def _one_ends(futures: list[Future[Any]]) -> bool:
    """Return whether one of the futures ends within `_LOOP_TIMEOUT_S` in which this process had nothing to do.

    A process that was stopped, or that gets little of a busy machine, wakes up with its time over before its loop could
    run. So each of several waits counts once, however long it took, and a quarter if the process worked meanwhile.
    """
    left = float(_LOOP_WAITS)
    while left > 0:
        used_s = time.process_time()
        if wait(futures, _LOOP_TIMEOUT_S / _LOOP_WAITS, FIRST_COMPLETED).done:
            return True
        left -= 1 if time.process_time() - used_s < _IDLE_S else 0.25
    return False


def _ranges(size: int, piece_bytes: int, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the start and stop of each piece. The first is short: a shard is read while the rest is being fetched."""
    while start < size:
        is_short = start == 0 and size > piece_bytes // 2
        stop = min(size, start + (piece_bytes // 8 if is_short else piece_bytes))
        yield start, stop
        start = stop


def _close(pid: int, transport: Transport) -> None:
    if os.getpid() == pid:
        asyncio.run_coroutine_threadsafe(transport.close(), get_loop())
