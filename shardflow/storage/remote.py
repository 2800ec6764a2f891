"""The remote store: a dataset in a bucket, or behind any other URL that fsspec serves.

A blob is fetched as an ordered window of ranges, several at once, because one connection to an object store is slow
however fast the line is. The event loop (fsspec's, in a thread of its own) moves bytes; the calling thread checks and
writes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import logging
import multiprocessing.context
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Generator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any, TypeVar

from shardflow.errors import ConfigError, DeadlineError, IntegrityError, NotFoundError

from .error_mapping import classify
from .fsspec_transport import FsspecTransport
from .local_files import map_os_errors, new_file, write_verified
from .retry import ChangedError, Failure, RetryPolicy
from .s3_transport import S3Transport, s3_options
from .storage import ListedBlob
from .transfers import track_transfer
from .transport import Head, Transport
from .urls import RemoteUrl

T = TypeVar("T")
_log = logging.getLogger(__name__)

PIECE_BYTES = 8 << 20
PIECES = 4
_CLOSE_S = 10.0
_PULSE_S = 60.0


class _Connecting:
    """The lock that is held while a client is made. A forked process has one of its own, whoever held this one then."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.lock = threading.Lock()


_connecting = _Connecting()


class RemoteStorage:
    """Blobs below a URL.

    It may be used from any thread, and after a fork: each process makes a client of its own when it first needs one.
    A process that multiprocessing starts gets it whole. In any other pickle, which may end up in a file, options that
    can hold secrets are left out, and the client has to find its credentials in the environment.

    Args:
        url: `s3://bucket/prefix`, `gs://…`, `https://…`, `memory://…`, ….
        storage_options: What fsspec's file system takes.
        patience: How long anything is waited for.
        piece_bytes: How much one request reads or writes.

    Raises:
        ConfigError: The scheme is not known, or the URL of a bucket holds credentials or a query.
    """

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        patience: RetryPolicy | None = None,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self._address = RemoteUrl(url, storage_options or {})
        self._patience = patience or RetryPolicy()
        self._piece_bytes = piece_bytes
        self._withheld = False
        self._made: tuple[int, Transport] | None = None
        self._inherited: list[object] = []
        import fsspec

        if self._address.scheme not in fsspec.available_protocols():
            raise ConfigError(f"{self}: this scheme is not served; use s3://, gs://, https:// or a directory")

    def __str__(self) -> str:
        return str(self._address)

    def __repr__(self) -> str:
        return f"RemoteStore({str(self)!r})"

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_made": None, "_inherited": []}
        if multiprocessing.context.get_spawning_popen() is None:
            state["_withheld"] = self._withheld or self._address.holds_secrets()
            state["_address"] = self._address.without_secrets()
        return state

    def url(self, name: str) -> str:
        """Return how messages name a blob."""
        return f"{self}/{name}"

    def read(self, name: str) -> bytes:
        """Return a blob. If it was written by a RemoteStore, its bytes are checked."""

        def attempt() -> bytes:
            heads: list[Head] = []
            with contextlib.closing(self._pieces(name, heads.append)) as pieces:
                data = b"".join(pieces)
            if heads[0].metadata.get("sha256") not in (None, hashlib.sha256(data).hexdigest()):
                raise IntegrityError(f"{self.url(name)}: its SHA-256 is not the one that it was stored with")
            return data

        return self._twice(name, attempt)

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return a part of a blob, in one request; for an empty part none is made."""
        if start >= stop:
            return b""
        return b"".join(self._run(self._transport().fetch(name, start, stop, None, _ignored)))

    def size(self, name: str) -> int | None:
        """Return the size of a blob in bytes, None when there is none."""
        head = self._run(self._transport().head(name))
        return None if head is None else head.size

    def modified_ns(self, name: str) -> int | None:
        """Return when a blob was published, in ns since 1970; None where the store does not say."""
        head = self._run(self._transport().head(name))
        if head is None:
            raise NotFoundError(f"{self.url(name)} does not exist; check the URL")
        return head.modified_ns

    def get(self, name: str, target: Path, *, size: int, sha256: str) -> None:
        """Fetch a blob of known content into a new file; when the bytes are wrong, once more from the start."""

        def heard(head: Head) -> None:
            if head.size != size:
                raise IntegrityError(f"{self.url(name)}: expected {size} bytes, found {head.size}; copy it again")

        def attempt() -> None:
            with contextlib.closing(self._pieces(name, heard, size)) as pieces:
                write_verified(pieces, descriptor, self.url(name), size=size, sha256=sha256)

        with new_file(target) as descriptor:
            self._twice(name, attempt)

    def put(self, name: str, data: bytes) -> None:
        """Publish a blob, in place of any of that name. Only for what no committed dataset names yet."""
        self._run(self._transport().put(name, data, new=False))

    def put_new(self, name: str, data: bytes) -> None:
        """Publish a blob that must not exist yet."""
        self._run(self._transport().put(name, data, new=True))

    def upload(self, name: str, source: Path) -> None:
        """Publish a local file as a blob."""
        with map_os_errors(source):
            self._run(self._transport().upload(name, source))
        source.unlink()

    def names(self) -> list[str]:
        """Return the names of all blobs, sorted."""
        return sorted(self._run(self._transport().listing()))

    def listing(self) -> dict[str, ListedBlob]:
        """Return name → size and tag of all blobs, sorted by name."""
        return dict(sorted(self._run(self._transport().listing()).items()))

    def remove(self, name: str) -> None:
        """Delete a blob, if there is one."""
        self._run(self._transport().remove(name))

    def close_uploads(self, names: Collection[str]) -> None:
        """Give up the uploads of these blobs that were begun and not completed."""
        self._run(self._transport().close_uploads(names))

    def _pieces(
        self, name: str, heard: Callable[[Head], None], size: int | None = None
    ) -> Generator[bytes, None, None]:
        """Yield a blob in order, while the next ranges are under way; `heard` may object to what was found first.

        Where the size is known, nothing waits for the first answer: the requests before it are not conditional, and
        the checksum finds out what they would have.
        """
        transport, found = self._transport(), Future[Head]()
        window: deque[Future[list[bytes]]] = deque()
        ranges = _ranges(size or 0, self._piece_bytes)

        def fill(head: Head) -> None:
            for start, stop in itertools.islice(ranges, PIECES - len(window)):
                window.append(self._submit(transport.fetch(name, start, stop, head, _ignored)))

        try:
            start, stop = next(ranges, (0, self._piece_bytes))
            window.append(self._submit(transport.fetch(name, start, stop, None, found.set_result)))
            window[0].add_done_callback(lambda done: _pass_on(done, found))
            if size is not None:
                fill(Head(size=size))
            heard(head := _awaited(found))
            if size is None:
                ranges = _ranges(head.size, self._piece_bytes, start=stop)
            while window:
                fill(head)
                yield from _awaited(window.popleft())
        finally:
            for future in window:
                future.cancel()

    def _twice(self, name: str, attempt: Callable[[], T]) -> T:
        """Read something, and once more from the start when it was not what it should be."""
        try:
            return attempt()
        except (ChangedError, IntegrityError) as error:
            _log.warning("%s; reading it once more", error)
        try:
            return attempt()
        except ChangedError as error:
            message = f"{self.url(name)} was replaced while it was read, twice; stop what writes to it and try again"
            raise IntegrityError(message) from error

    def _transport(self) -> Transport:
        """Return this process's client; the first thread that needs it makes it, which takes a tenth of a second."""
        made = self._made
        if made is None or made[0] != os.getpid():
            with _connecting.lock:
                made = self._made
                if made is None or made[0] != os.getpid():
                    # A client of the parent is kept and never closed here: they share its sockets and its poll set.
                    self._inherited.append(made)
                    made = self._made = (os.getpid(), self._connect())
                    weakref.finalize(self, _close, *made).atexit = False
        return made[1]

    def _connect(self) -> Transport:
        import fsspec
        import fsspec.asyn

        address = self._address
        options: dict[str, Any] = {**address.options, "skip_instance_cache": True}
        try:
            if address.is_bucket:
                # `asynchronous`: it must not close itself in whatever process forgets it last.
                options = {**s3_options(options, self._patience), "asynchronous": True, "loop": fsspec.asyn.get_loop()}
            fs, path = fsspec.core.url_to_fs(address.url, **options)
            if address.is_bucket:
                return S3Transport(fs, path, self._judge, self._patience, self._piece_bytes)
            return FsspecTransport(fs, path, str(self), self._judge, self._patience)
        except ImportError as error:
            failure = ConfigError(f"{self}: {error}; install what it names")
        except Exception as error:
            failure = ConfigError(f"{self._judge(error, f'{self} with these storage_options').error}")
        raise failure  # here, so that what caused it, which may hold secrets, is not attached

    def _judge(self, error: Exception, url: str) -> Failure:
        """Return what an exception of a client means."""
        failure = classify(error, url, self._address.gives_away)
        if self._withheld and isinstance(failure.error, PermissionError):
            failure.error.args = (f"{failure.error}; this store was unpickled, without its storage_options",)
        return failure

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        from fsspec.asyn import get_loop

        future = asyncio.run_coroutine_threadsafe(work, get_loop())
        track_transfer(future)
        return future

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; when the waiting is interrupted, until it has cleaned up."""
        ended = threading.Event()

        async def watched() -> T:
            try:
                return await work
            finally:
                ended.set()

        future = self._submit(watched())
        try:
            return _awaited(future)
        except BaseException:
            if future.cancel():
                ended.wait(_CLOSE_S)
            raise


def _awaited(future: Future[T]) -> T:
    """Return what comes of work on the event loop. All that it does has deadlines, so only the loop can make us wait.

    Raises:
        DeadlineError: The loop stands still, as when something else that runs on it blocks.
    """
    from fsspec.asyn import get_loop

    while not wait([future], _PULSE_S).done:
        either: list[Future[Any]] = [asyncio.run_coroutine_threadsafe(asyncio.sleep(0), get_loop()), future]
        if not wait(either, _PULSE_S, FIRST_COMPLETED).done:
            message = f"the event loop of this process has stood still for {_PULSE_S:g} s; start the process anew"
            raise DeadlineError(f"{message}, and find out what blocks fsspec's thread")
    return future.result()


def _ranges(size: int, piece_bytes: int, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yield where the pieces of a blob start and stop.

    The first one is short, because the head of a shard is read while the rest of it is on its way.
    """
    while start < size:
        short = start == 0 and size > piece_bytes // 2
        stop = min(size, start + (piece_bytes // 8 if short else piece_bytes))
        yield start, stop
        start = stop


def _ignored(_: Head) -> None:
    """Do nothing with what is known already."""


def _pass_on(done: Future[list[bytes]], found: Future[Head]) -> None:
    """Let whoever waits for the head of a blob see that the request for it has failed, or was given up."""
    if done.cancelled():
        if found.cancel():
            found.set_running_or_notify_cancel()  # without which nobody who waits would wake up
    elif not found.done() and (error := done.exception()) is not None:
        found.set_exception(error)


def _close(pid: int, transport: Transport) -> None:
    from fsspec.asyn import get_loop

    if os.getpid() == pid:
        asyncio.run_coroutine_threadsafe(transport.close(), get_loop())
