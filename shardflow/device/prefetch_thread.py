"""A thread that takes batches from the loader and copies them to the device, ahead of the caller.

A ready batch never waits for the next one: the thread waits for the loader, and the caller waits for the thread. The
first batch is loaded in the caller's thread, so that the loader does not fork its workers while the caller computes.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from .buffers import BatchBuffer
from .copy_stream import CopyStream

_JOIN_TIMEOUT_S = 10.0


class PrefetchedBatch(NamedTuple):
    """A batch whose copies to the device are queued."""

    buffer: BatchBuffer
    loaded_at: float  # when the loader returned the batch, by `time.perf_counter`


class PrefetchThread:
    """Prefetches the batches of one iteration into buffers, which must be free.

    `prepare` is called with each batch before it is copied, and returns the tensors to copy.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        copy_stream: CopyStream,
        buffers: list[BatchBuffer],
        prepare: Callable[[Any], Any],
    ) -> None:
        self._batches, self._copy_stream, self._prepare = batches, copy_stream, prepare
        self._free: queue.SimpleQueue[BatchBuffer | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[PrefetchedBatch | BaseException | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        for buffer in buffers:
            self._free.put(buffer)
        self._thread: threading.Thread | None = None

    def get(self) -> PrefetchedBatch | None:
        """Return the next batch, None after the last, or raise its error; pass the buffer to `release` afterwards."""
        if self._thread is None and self._prefetch_one():
            self._thread = threading.Thread(target=self._run, name="device-prefetcher", daemon=True)
            self._thread.start()
            # A daemon, so that an abandoned iteration does not keep the interpreter alive. It is joined at exit even
            # so, because it must not copy while torch is torn down.
            weakref.finalize(self, _stop, self._stopping, self._free, self._thread)
        batch = self._ready.get()
        if isinstance(batch, BaseException):
            try:
                raise batch
            finally:
                del batch  # its traceback refers to this frame, a cycle that keeps the loader alive
        return batch

    def release(self, buffer: BatchBuffer) -> None:
        """Let the thread fill a buffer again."""
        self._free.put(buffer)

    def close(self) -> None:
        """Stop the thread after the loader returned the batch that it waits for. May be called twice."""
        if self._stopping.is_set():  # first, because at interpreter exit the globals below may be gone
            return
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._free.put(None)
            self._thread.join()
        while not self._ready.empty():  # an error in the queue would keep its traceback's frames alive
            self._ready.get()

    def _run(self) -> None:
        try:
            self._copy_stream.set_device()
        except BaseException as error:  # such as an earlier error of the device
            self._ready.put(error)
            return
        while self._prefetch_one():
            pass

    def _prefetch_one(self) -> bool:
        """Prefetch one batch; return whether there may be another one."""
        buffer = self._free.get()
        if self._stopping.is_set() or buffer is None:
            return False
        try:
            with self._copy_stream.as_current():  # for images that are decoded on the device
                batch = next(self._batches, self)
                if batch is self:
                    self._ready.put(None)
                    return False
                loaded_at = time.perf_counter()
                with torch.no_grad():
                    buffer.fill(self._prepare(batch))
        except BaseException as error:
            self._ready.put(error)
            return False
        self._ready.put(PrefetchedBatch(buffer, loaded_at))
        return True


def _stop(stopping: threading.Event, free: queue.SimpleQueue[BatchBuffer | None], thread: threading.Thread) -> None:
    stopping.set()
    free.put(None)
    if thread is not threading.current_thread():
        thread.join(_JOIN_TIMEOUT_S)
