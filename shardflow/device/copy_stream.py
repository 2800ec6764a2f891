"""The copy stream, which copies batches to a device during the training step.

A device runs its work in streams, which are queues. Copies are queued on the copy stream, the training step on the
compute stream: the current stream of the caller's thread. An event marks a point in a stream, for which the other
stream or the host can wait. `buffers` ensures that a copy is not read or overwritten too early. Tests replace
`CopyStream` by another class, and need no GPU.
"""

from __future__ import annotations

import collections
import contextlib
from typing import Any

import torch


class Event:
    """A point in the work of a stream."""

    def __init__(self, stream: CopyStream, event: torch.cuda.Event) -> None:
        self._stream, self._event = stream, event

    def block_compute_stream(self) -> None:
        """Make work queued on the compute stream from now on wait for this point; return at once."""
        torch.cuda.current_stream(self._stream.device).wait_event(self._event)

    def block_copy_stream(self) -> None:
        """Make work queued on the copy stream from now on wait for this point; return at once."""
        self._stream.stream.wait_event(self._event)

    def synchronize(self) -> None:
        """Block the host until this point is reached."""
        self._event.synchronize()

    def seconds_since(self, earlier: Any) -> float | None:
        """Return the device time between two events of `record_compute`; None if this one is not yet reached."""
        if not self._event.query():  # type: ignore[no-untyped-call]
            return None
        return float(earlier._event.elapsed_time(self._event)) / 1e3


class CopyStream:
    """The copy stream of a CUDA device, whose index must be set."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def set_device(self) -> None:
        """Make the device current in the calling thread: a new thread starts on device 0.

        Any work there would create a context, which takes half a GB.
        """
        torch.cuda.set_device(self.device)

    def staging_memory(self, size: int) -> torch.Tensor:
        """Return page-locked host memory, uint8 [size], which `copy` can read without blocking the host."""
        # device="cpu", because torch.set_default_device may have named another one
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)

    def device_memory(self, size: int) -> torch.Tensor:
        """Return device memory, uint8 [size], which the allocator reuses only for this stream."""
        with self.as_current():
            return torch.empty(size, dtype=torch.uint8, device=self.device)

    def needs_staging(self, tensor: torch.Tensor) -> bool:
        """Return whether `copy` would block the host: the tensor is neither page-locked nor on the device."""
        return not (tensor.device == self.device or (tensor.device.type == "cpu" and tensor.is_pinned()))

    def as_current(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context whose device work, in the calling thread, is queued on the copy stream."""
        return torch.cuda.stream(self.stream)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy. Do not touch either tensor until an event recorded later is reached."""
        with self.as_current():
            target.copy_(source, non_blocking=True)

    def record_copies(self) -> Event:
        """Return an event: the end of the work now queued on the copy stream.

        While the host waits for the event, it sleeps, and does not spin on a core of the workers.
        """
        return self._record(self.stream, torch.cuda.Event(blocking=True))  # type: ignore[no-untyped-call]

    def record_compute(self) -> Event:
        """Return an event with a time: the end of the work now queued on the compute stream."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        return self._record(torch.cuda.current_stream(self.device), event)

    def compute_is_idle(self) -> bool:
        """Return whether the compute stream has finished all of its work."""
        return bool(torch.cuda.current_stream(self.device).query())

    def _record(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> Event:
        event.record(stream)
        return Event(self, event)


class EventTimer:
    """Adds up the device time between pairs of events. Pairs count once they are reached; nothing waits for them."""

    def __init__(self) -> None:
        self._pending: collections.deque[tuple[Event, Event]] = collections.deque()
        self._seconds = 0.0

    def add(self, begin: Event, end: Event) -> None:
        """Add the time between two events of the compute stream, which must follow all earlier events."""
        self._pending.append((begin, end))
        self.seconds()  # drops the pairs that are reached

    def seconds(self) -> float:
        """Return the sum of the pairs that are reached."""
        while self._pending:
            begin, end = self._pending[0]
            seconds = end.seconds_since(begin)
            if seconds is None:
                break
            self._seconds += seconds
            self._pending.popleft()
        return self._seconds


def copy_stream_for(device: torch.device) -> CopyStream | None:
    """Return a new copy stream of a device; None if copies cannot run during other work."""
    return CopyStream(device) if device.type == "cuda" else None
