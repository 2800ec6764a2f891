"""Transfers: threads that move blobs at the same time, and stop together.

A thread that waits for a remote storage cannot be interrupted, but its pending request can be cancelled. So when one
thread fails, or the caller is interrupted, all threads end at once instead of after their current blobs.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

_thread = threading.local()


class TransferPool(ThreadPoolExecutor):
    """Threads for transfers. When the body of the `with` statement fails, pending and running calls are cancelled.

    Calls of a pool that one of its threads has created are cancelled too.
    """

    def __init__(self, threads: int) -> None:
        self._transfers: set[Future[Any]] = set()
        self._is_cancelled = False
        self._outer: TransferPool | None = getattr(_thread, "pool", None)
        super().__init__(threads, initializer=setattr, initargs=(_thread, "pool", self))

    def track(self, transfer: Future[Any]) -> None:
        """Cancel this transfer when the pool is cancelled."""
        # No lock: this method adds before it reads the flag, and `__exit__` sets the flag before it reads the set.
        self._transfers.add(transfer)
        transfer.add_done_callback(self._transfers.discard)
        if self._is_cancelled:
            transfer.cancel()
        if self._outer is not None:
            self._outer.track(transfer)

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is not None:
            self._is_cancelled = True
            for transfer in self._transfers.copy():
                transfer.cancel()
        self.shutdown(cancel_futures=error is not None)


def track_transfer(transfer: Future[Any]) -> None:
    """Let the pool of this thread, if there is one, cancel the transfer that the thread is about to wait for."""
    if (pool := getattr(_thread, "pool", None)) is not None:
        pool.track(transfer)


def pause(seconds: float) -> None:
    """Wait for some seconds; if the pool of this thread is cancelled, raise CancelledError at once."""
    track_transfer(never := Future[None]())
    if wait([never], seconds).done:
        never.result()
