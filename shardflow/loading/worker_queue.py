"""The queues between the training process and its workers, which cost that process less than multiprocessing's own.

Those send through a thread, so that no message can block the sender, and make a selector for each wait. A request for a
batch is 20 bytes: it goes into the pipe at once, as long as that has room for it, without a thread for each worker.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import select
from functools import partial
from multiprocessing.context import BaseContext
from multiprocessing.queues import Queue
from multiprocessing.reduction import ForkingPickler
from typing import Any


class WorkerQueue(Queue):  # type: ignore[type-arg] # not subscriptable before Python 3.12
    """A queue of multiprocessing, in which the process that made it puts small messages directly."""

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """Send an object: directly if that cannot block, and no thread has begun to send."""
        if self._thread is None and os.getpid() == self._opid and not self._closed:  # type: ignore[attr-defined]
            message = ForkingPickler.dumps(obj)
            writable = select.poll()
            writable.register(self._writer, select.POLLOUT)  # type: ignore[attr-defined]
            # A pipe is writable if it takes PIPE_BUF bytes: these and the four that precede them.
            if len(message) <= select.PIPE_BUF - 4 and writable.poll(0):
                self._sem.acquire()  # type: ignore[attr-defined] # `get` releases it
                self._send_bytes(message)  # type: ignore[attr-defined]
                return
        super().put(obj, block, timeout)

    def _reset(self, after_fork: bool = False) -> None:
        super()._reset(after_fork)  # type: ignore[misc]
        readable = select.poll()
        readable.register(self._reader, select.POLLIN)  # type: ignore[attr-defined]
        self._poll = lambda timeout=0.0: bool(readable.poll(1000 * timeout))


def with_queues(context: Any) -> BaseContext:
    """Return a copy of a context of multiprocessing, or that of a start method, with these queues."""
    own: Any = copy.copy(context if isinstance(context, BaseContext) else multiprocessing.get_context(context))
    own.Queue = partial(WorkerQueue, ctx=own)
    return own  # type: ignore[no-any-return]
