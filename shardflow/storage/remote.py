"""Remote storage: blobs in a bucket, or behind any other URL that fsspec serves.

A blob is fetched in ordered ranges, several at once, because one connection to an object store is slow however fast
the network is. The event loop (fsspec's, in its own thread) transfers the bytes; the calling thread verifies and
writes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import itertools
import logging
import multiprocessing.context
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Generator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import fsspec
from fsspec.asyn import get_loop

from shardflow._imports import import_large
from shardflow.errors import ConfigError, DeadlineError, IntegrityError, StoreError, TransientError
from shardflow.formats.shard import SHA256

from .cache import Cache
from .error_mapping import classify
from .fsspec_transport import FsspecTransport
from .local_files import map_os_errors, new_file, write_verified
from .retry import Attempts, ChangedError, Failure, RetryPolicy
from .s3_transport import S3Transport, s3_options
from .staging import temporary_staging
from .storage import MAX_READ_BYTES, ListedBlob, Writer, check_length
from .transfers import track_transfer
from .transport import Head, Transport, blob_url
from .urls import RemoteUrl, divide_query, query_values

T = TypeVar("T")
_log = logging.getLogger(__name__)

PIECE_BYTES = 8 << 20
PIECES = 4
SHARED_BYTES = 1 << 20
"""Blobs of more bytes than this are shared through the cache; it is also what finding that out costs each process."""

_CANCEL_TIMEOUT_S = 10.0
_LOOP_TIMEOUT_S = 60.0
_PACKAGES = {
    **dict.fromkeys(("gs", "gcs"), "'shardflow[gcs]'"),
    **dict.fromkeys(("abfs", "abfss", "az"), "'shardflow[azure]'"),
    **dict.fromkeys(("http", "https"), "requests aiohttp"),
    **dict.fromkeys(("sftp", "ssh"), "paramiko"),
    "hf": "'shardflow[hf]'",
    "oci": "ocifs",
    "oss": "ossfs",
    "smb": "smbprotocol",
    "webdav": "webdav4",
}
"""Scheme of a URL → the packages by which fsspec serves it."""

_CLIENTS = {"s3": "s3fs", "gcs": "gcsfs", "azure": "adlfs"}
"""Kind of store → the module of its file system, which is large."""

_SAME_TIMES = 4  # times in a row, after which wrong bytes are taken for what is stored


class _LargeBlobError(Exception):
    """A blob of more than `SHARED_BYTES`, whose content is known."""

    def __init__(self, size: int, sha256: str) -> None:
        super().__init__(size, sha256)
        self.size, self.sha256 = size, sha256


# The lock that is held while a client is created, by process: in a forked one, a thread that is gone may hold the old.
_connecting: dict[int, threading.Lock] = {}


class RemoteStorage:
    """Blobs below a URL; see Storage.

    Each process creates its own client when it first needs one, also after a fork. A process that multiprocessing
    starts receives all options. Any other pickle, which may end up in a file, leaves out the options that can hold
    secrets; the client then has to find its credentials in the environment. One request reads or writes `piece_bytes`.

    The option `deadline_s` is not the client's: it is the seconds without progress after which requests are given up.
    """

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        retry_policy: RetryPolicy | None = None,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        options = dict(storage_options or {})
        deadline_s = options.pop("deadline_s", None)
        self._url = RemoteUrl(url, options)
        policy = retry_policy or RetryPolicy()
        self._retry_policy = policy if deadline_s is None else policy.within(deadline_s)
        self._piece_bytes = piece_bytes
        self._lacks_options = False
        # By process. A parent's client is kept and never closed in a child: both share its sockets and its poll set.
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

    def url(self, name: str) -> str:
        """Return the URL of a blob."""
        return blob_url(str(self), name)

    def check_writable(self) -> None:
        """Raise a ConfigError if such a place can only be read."""
        self._url.check_writable()

    def local_path(self, name: str) -> Path | None:  # noqa: ARG002 - the protocol's
        """Return None: no blob is on this machine."""
        return None

    def read(self, name: str, cache: Cache | None = None, *, most_bytes: int = MAX_READ_BYTES) -> bytes:
        """Return the content of a blob. It is verified where its head has its SHA-256: written by this, on S3 or Azure.

        Such a blob of more than `SHARED_BYTES` comes from the cache: the head of its first bytes, which are given up,
        says which content it is.
        """

        def check_size(head: Head) -> None:
            if head.size > SHARED_BYTES and SHA256.fullmatch(sha256 := head.metadata.get("sha256", "")):
                raise _LargeBlobError(head.size, sha256)

        if cache is None:
            return self._read(name, most_bytes=most_bytes)[0]
        try:
            return self._read(name, check_size, SHARED_BYTES, most_bytes=most_bytes)[0]
        except _LargeBlobError as error:
            large = error
        try:
            download = partial(self.get, name, size=large.size, sha256=large.sha256)
            return cache.read(large.sha256, large.size, download, self.url(name))
        except TransientError:
            raise
        except (IntegrityError, StoreError) as error:
            # The blob was replaced meanwhile, or is not what its head says; or the cache cannot be used.
            _log.info("%s is read without the cache: %s", self.url(name), error)
        return self._read(name, most_bytes=most_bytes)[0]

    def read_tagged(self, name: str) -> tuple[bytes, str]:
        """Return the content of a blob, verified as by `read`, and its tag."""
        return self._read(name)

    def _read(
        self,
        name: str,
        on_head: Callable[[Head], None] = lambda _: None,
        first_bytes: int | None = None,
        *,
        most_bytes: int = MAX_READ_BYTES,
    ) -> tuple[bytes, str]:
        def attempt() -> tuple[bytes, str]:
            heads: list[Head] = []

            def keep(head: Head) -> None:
                check_length(self.url(name), head.size, most_bytes)
                on_head(head)
                heads.append(head)

            with contextlib.closing(self._pieces(name, keep, first_bytes=first_bytes)) as pieces:
                data = b"".join(pieces)
            found = hashlib.sha256(data).hexdigest()
            if (stored := heads[0].metadata.get("sha256", found)) != found:
                message = f"{self.url(name)}: expected SHA-256 {stored}, with which it was stored, found {found}"
                raise IntegrityError(f"{message}; write it again")
            return data, heads[0].tag or ""

        return self._retry_mismatch(name, attempt)

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return a part of a blob with one request; without any if the part is empty."""
        if start >= stop:
            return b""
        fetch = self._transport().fetch
        return self._retry_mismatch(name, lambda: b"".join(self._run(fetch(name, start, stop, None, lambda _: None))))

    def size(self, name: str) -> int | None:
        """Return the size of a blob in bytes, None if it does not exist."""
        return head.size if (head := self._run(self._transport().head(name))) else None

    def get(self, name: str, target: Path, *, size: int, sha256: str) -> None:
        """Fetch a blob of known content into a new file; again from the start while the bytes are wrong."""

        def check_size(head: Head) -> None:
            if head.size != size:
                raise IntegrityError(f"{self.url(name)}: expected {size} bytes, found {head.size}; copy it again")

        def attempt() -> None:
            try:
                with contextlib.closing(self._pieces(name, check_size, size)) as pieces:
                    write_verified(pieces, file, self.url(name), size=size, sha256=sha256)
            except (ChangedError, IntegrityError):
                file.truncate(0)  # readers of the growing file must not find wrong bytes until the next attempt
                raise

        with new_file(target) as file:
            self._retry_mismatch(name, attempt)

    def put(self, name: str, data: bytes) -> None:
        """Publish a blob, and replace an existing one."""
        self._run(self._transport().put(name, data))

    def put_new(self, name: str, data: bytes) -> None:
        """Publish a blob that must not exist."""
        self._run(self._transport().put(name, data, new=True))

    def replace(self, name: str, data: bytes, tag: str) -> None:
        """Publish a blob in the place of the one with this tag."""
        self._run(self._transport().put(name, data, tag=tag))

    def upload(self, name: str, source: Path) -> None:
        """Publish a local file as a blob."""
        with map_os_errors(source):
            self._run(self._transport().upload(name, source))
        source.unlink()

    def listing(self) -> dict[str, ListedBlob]:
        """Return all blobs by name, sorted."""
        return dict(sorted(self._run(self._transport().listing()).items()))

    def remove(self, name: str) -> None:
        """Delete a blob. A missing one is no error."""
        self._run(self._transport().remove(name))

    def abort_uploads(self, names: Collection[str]) -> None:
        """Abort the unfinished uploads of these blobs."""
        self._run(self._transport().abort_uploads(names))

    @contextlib.contextmanager
    def exclusive_writer(self) -> Iterator[Writer]:
        """Provide a temporary staging directory. It keeps no writer out."""
        with temporary_staging() as (folder, lock):
            yield Writer(folder, lock, is_alone=False)

    def _pieces(
        self,
        name: str,
        on_head: Callable[[Head], None],
        size: int | None = None,
        *,
        first_bytes: int | None = None,
    ) -> Generator[bytes, None, None]:
        """Yield a blob in order, while the next ranges are in flight; `on_head` may refuse the blob by an error.

        Where the size is known, no request waits for the first answer. Those that were sent before it are not
        conditional; if the blob changes meanwhile, its checksum shows that. Where it is not, the first request may be
        for less than a piece.
        """
        transport, found = self._transport(), Future[Head]()
        in_flight: deque[Future[list[bytes]]] = deque()
        ranges = _ranges(size or 0, self._piece_bytes)

        def first(head: Head) -> None:
            if not found.done():  # another attempt can have another answer
                found.set_result(head)

        def request(head: Head) -> None:
            for start, stop in itertools.islice(ranges, PIECES - len(in_flight)):
                in_flight.append(self._submit(transport.fetch(name, start, stop, head, lambda _: None)))

        try:
            start, stop = next(ranges, (0, min(first_bytes or self._piece_bytes, self._piece_bytes)))
            in_flight.append(self._submit(transport.fetch(name, start, stop, None, first)))
            in_flight[0].add_done_callback(lambda done: _propagate_failure(done, found))
            if size is not None:
                request(Head(size=size))
            on_head(head := _wait_for(found))
            if size is None:
                ranges = _ranges(head.size, self._piece_bytes, start=stop)
            while in_flight:
                request(head)
                yield from _wait_for(in_flight.popleft())
        finally:
            for future in in_flight:
                future.cancel()

    def _retry_mismatch(self, name: str, attempt: Callable[[], T]) -> T:
        """Read a blob, and again from the start while its content is not the expected one, as the policy allows.

        Damage on the way differs each time. Where the same wrong bytes keep coming, they are what is stored.
        """
        attempts, paused_s, last, same = Attempts(self._retry_policy), 0.0, "", 0
        while True:
            try:
                return attempt()
            except IntegrityError as error:
                failed = error
                same = same + 1 if str(error) == last else 1  # it names what was found
                last = str(error)
            except ChangedError as error:
                failed = IntegrityError(f"{self.url(name)} was replaced while it was read; stop what writes to it")
                failed.__cause__ = error
            # Only the pauses count as time without progress: the bytes came, however long a blob is.
            pause_s = attempts.pause_s(Failure(error=failed, retry=True), paused_s)
            if same == _SAME_TIMES:
                attempts.give_up(failed, paused_s)
            _log.warning("%s; reading it again in %.1f s", failed, pause_s)
            self._run(asyncio.sleep(pause_s))
            paused_s += pause_s

    def _transport(self) -> Transport:
        """Return the client of this process; the first thread that needs it creates it, which takes 0.1 s."""
        pid = os.getpid()
        if pid not in self._clients:
            with _connecting.setdefault(pid, threading.Lock()):
                if pid not in self._clients:
                    self._clients[pid] = self._connect()
                    weakref.finalize(self, _close, pid, self._clients[pid]).atexit = False
        return self._clients[pid]

    def _connect(self) -> Transport:
        url, policy = self._url, self._retry_policy
        options: dict[str, Any] = {**url.options, "skip_instance_cache": True}
        if url.kind in ("s3", "gcs"):
            # `asynchronous`: the file system must not close itself in the process that drops it last.
            options |= {"asynchronous": True, "loop": get_loop()}
        try:
            if url.kind in _CLIENTS:
                import_large(_CLIENTS[url.kind])
            fs, path = fsspec.core.url_to_fs(url.url, **(s3_options(options, policy) if url.kind == "s3" else options))
            if url.kind == "s3":
                return S3Transport(fs, path, self._classify, policy, self._piece_bytes)
            return _transport_of(url.kind)(fs, path, str(self), self._classify, policy)
        except ImportError as error:
            package = _PACKAGES.get(url.scheme)
            remedy = f"pip install {package}" if package is not None else f"{error}; install it with pip"
            failure = ConfigError(f"{self}: {url.scheme}:// URLs need another package: {remedy}")
        except Exception as error:
            shown = f"{self} with these storage_options" if url.options else str(self)
            failure = ConfigError(f"{self._classify(error, shown).error}")
        raise failure  # outside of the handlers, so that the cause, which may hold secrets, is not attached

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


def _transport_of(kind: str) -> Callable[..., Transport]:
    """Return the maker of the transport for a kind of URL, whose packages may be missing."""
    if kind == "gcs":
        from .gcs_transport import GcsTransport

        return GcsTransport
    if kind == "azure":
        from .azure_transport import AzureTransport

        return AzureTransport
    if kind in ("http", "hf"):
        from .http_transport import http_transport, hub_transport

        return http_transport if kind == "http" else hub_transport
    return FsspecTransport


def _wait_for(future: Future[T]) -> T:
    """Return the result of work on the event loop. The work has deadlines; this one is for a blocked loop."""
    while not wait([future], _LOOP_TIMEOUT_S).done:
        either: list[Future[Any]] = [asyncio.run_coroutine_threadsafe(asyncio.sleep(0), get_loop()), future]
        if not wait(either, _LOOP_TIMEOUT_S, FIRST_COMPLETED).done:
            message = f"the event loop of this process has not run for {_LOOP_TIMEOUT_S:g} s; restart the process"
            raise DeadlineError(f"{message}, and find the code that blocks fsspec's thread")
    return future.result()


def _ranges(size: int, piece_bytes: int, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the start and stop of each piece. The first is short: a shard is read while the rest is being fetched."""
    while start < size:
        is_short = start == 0 and size > piece_bytes // 2
        stop = min(size, start + (piece_bytes // 8 if is_short else piece_bytes))
        yield start, stop
        start = stop


def _propagate_failure(done: Future[list[bytes]], found: Future[Head]) -> None:
    """Pass the failure or the cancellation of a blob's first request on to the thread that waits for its head."""
    if done.cancelled():
        if found.cancel():
            found.set_running_or_notify_cancel()  # this wakes the threads that wait
    elif not found.done() and (error := done.exception()) is not None:
        found.set_exception(error)


def _close(pid: int, transport: Transport) -> None:
    if os.getpid() == pid:
        asyncio.run_coroutine_threadsafe(transport.close(), get_loop())
