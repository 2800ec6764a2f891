"""Transfers: threads that move blobs at the same time, and stop together.

A thread that waits for a remote storage cannot be interrupted, but the request that it waits for can be cancelled. So
when one thread fails, or the caller is interrupted, all end at once, and not only after their current blobs.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

_thread = threading.local()


class _InFlight:
    """The transfers that the threads of one pool wait for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._transfers: set[Future[Any]] = set()
        self._cancelled = False

    def add(self, transfer: Future[Any]) -> None:
        with self._lock:
            self._transfers.add(transfer)
            cancelled = self._cancelled
        transfer.add_done_callback(self._transfers.discard)
        if cancelled:
            transfer.cancel()

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            transfers = list(self._transfers)
        for transfer in transfers:
            transfer.cancel()


class TransferPool(ThreadPoolExecutor):
    """Threads for transfers. When the body of the `with` statement fails, calls that wait or run are cancelled."""

    def __init__(self, threads: int) -> None:
        self._in_flight = _InFlight()
        super().__init__(threads, initializer=setattr, initargs=(_thread, "in_flight", self._in_flight))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for all calls, or cancel them after an error."""
        if kind is not None:
            self._in_flight.cancel()
        self.shutdown(cancel_futures=kind is not None)


def track_transfer(transfer: Future[Any]) -> None:
    """Let the pool of this thread, if it is in one, cancel the transfer that the thread is about to wait for."""
    in_flight: _InFlight | None = getattr(_thread, "in_flight", None)
    if in_flight is not None:
        in_flight.add(transfer)
