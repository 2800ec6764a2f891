"""Transfers at once: threads that move blobs side by side, and that stop together.

A thread that waits for a remote store cannot be interrupted, but what it waits for can be given up. So when one of the
threads fails, or whoever waits for them is interrupted, the end comes at once and not with the last blob under way.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

_here = threading.local()


class _Transfers:
    """What the threads of one pool wait for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: set[Future[Any]] = set()
        self._given_up = False

    def add(self, transfer: Future[Any]) -> None:
        with self._lock:
            self._under_way.add(transfer)
            given_up = self._given_up
        transfer.add_done_callback(self._under_way.discard)
        if given_up:
            transfer.cancel()

    def give_up(self) -> None:
        with self._lock:
            self._given_up = True
            under_way = list(self._under_way)
        for transfer in under_way:
            transfer.cancel()


@contextlib.contextmanager
def transfer_pool(threads: int) -> Iterator[ThreadPoolExecutor]:
    """Lend threads. When the body fails or is interrupted, what they have not begun is dropped, the rest given up."""
    transfers = _Transfers()
    pool = ThreadPoolExecutor(threads, initializer=setattr, initargs=(_here, "transfers", transfers))
    try:
        yield pool
    except BaseException:
        transfers.give_up()
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


def track_transfer(transfer: Future[Any]) -> None:
    """Say what this thread waits for, so that it can be given up; cancelled is what it will find then."""
    transfers: _Transfers | None = getattr(_here, "transfers", None)
    if transfers is not None:
        transfers.add(transfer)
