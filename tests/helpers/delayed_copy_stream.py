"""A copy stream without a GPU, as slow as one may be: it copies when an event is waited for, and not before."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import torch

from shardflow.device.copy_stream import CopyStream, Event


class DelayedCopyStream(CopyStream):
    """Queues copies, and runs them when an event behind them is waited for.

    Attributes:
        log: What was queued on the copy stream: ("copy", address of the target) or ("wait", number of the event), and
            on the compute stream: ("compute", number of the event).
        idle: The answer of `compute_is_idle`; while it is False, the compute stream reaches no event.
        threads: The names of the threads that `set_device` was called in.
        pinned: Whether tensors of the host need no staging.
    """

    def __init__(self, *, pinned: bool = False) -> None:
        self.log: list[tuple[str, int]] = []
        self.idle = True
        self.threads: list[str] = []
        self.pinned = pinned
        self._queue: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._done = 0
        self._events = 0
        self._lock = threading.RLock()

    def set_device(self) -> None:
        """Note the thread."""
        self.threads.append(threading.current_thread().name)

    def staging_memory(self, size: int) -> torch.Tensor:
        """Return memory full of rubbish."""
        return torch.full((size,), 0xAA, dtype=torch.uint8)

    def device_memory(self, size: int) -> torch.Tensor:
        """Return memory full of other rubbish."""
        return torch.full((size,), 0xBB, dtype=torch.uint8)

    def needs_staging(self, tensor: torch.Tensor) -> bool:  # noqa: ARG002 - the interface's
        """Return the opposite of `pinned`."""
        return not self.pinned

    def as_current(self) -> contextlib.AbstractContextManager[Any]:
        """Change nothing."""
        return contextlib.nullcontext()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy."""
        with self._lock:
            self._queue.append((target, source))
            self.log.append(("copy", target.data_ptr()))

    def record_copies(self) -> DelayedEvent:
        """Return the end of the queue."""
        with self._lock:
            return DelayedEvent(self, len(self._queue), -1)

    def record_compute(self) -> DelayedEvent:
        """Return a new number."""
        with self._lock:
            self._events += 1
            self.log.append(("compute", self._events))
            return DelayedEvent(self, 0, self._events)

    def compute_is_idle(self) -> bool:
        """Return `idle`."""
        return self.idle

    def run(self, end: int) -> None:
        """Run the copies before a position in the queue."""
        with self._lock:
            for target, source in self._queue[self._done : end]:
                target.copy_(source)
            self._done = max(self._done, end)


class DelayedEvent(Event):
    """A position in the queue of copies, or a number on the compute stream."""

    def __init__(self, delayed: DelayedCopyStream, end: int, number: int) -> None:
        self._delayed, self._end, self._number = delayed, end, number

    def block_compute_stream(self) -> None:
        """Run the copies before it."""
        self._delayed.run(self._end)

    def block_copy_stream(self) -> None:
        """Log the wait."""
        self._delayed.log.append(("wait", self._number))

    def synchronize(self) -> None:
        """Run the copies before it."""
        self._delayed.run(self._end)

    def seconds_since(self, earlier: Any) -> float | None:
        """Return a millisecond per event, once the device is idle."""
        return 0.001 * (self._number - earlier._number) if self._delayed.idle else None
