"""A device's side stream: what a copy that runs beside the training step needs, and nothing else.

Work on a device is queued on streams. Copies go to a stream of their own; marks say how far a stream has come, and let
the other stream, or the host, wait for that. The rules that keep a copy from being read too early or overwritten too
early are in `slots`, written against this interface, so that they can be tried without a GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import torch


class Event(Protocol):
    """A point in a stream's work."""

    def wait_in_caller(self) -> None:
        """Let what the caller queues from now on run after this point; returns at once."""

    def wait_in_side(self) -> None:
        """Let what is queued on the side stream from now on run after this point; returns at once."""

    def wait_on_host(self) -> None:
        """Return when this point has been reached."""

    def seconds_since(self, earlier: Any) -> float | None:
        """Return the device's time from an earlier mark of the same stream; None if that is not known yet."""


class Side(Protocol):
    """One side stream of one device."""

    def staging(self, size: int) -> torch.Tensor:
        """Return memory of the host, uint8 [size], from which `copy` need not make the host wait."""

    def memory(self, size: int) -> torch.Tensor:
        """Return memory of the device, uint8 [size]."""

    def is_staged(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor can be copied without staging: it is in such memory, or on the device already."""

    def active(self) -> contextlib.AbstractContextManager[Any]:
        """Queue what is done inside on the side stream."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy on the side stream; both must be left alone until a later mark of it is reached."""

    def mark(self) -> Event:
        """Mark how far the side stream will be when all that is queued on it is done."""

    def mark_caller(self) -> Event:
        """Mark how far the caller's stream will be when all that is queued on it is done."""

    def has_run_dry(self) -> bool:
        """Return whether the caller's stream has nothing left to do."""


def side_of(device: torch.device) -> Side | None:
    """Return a new side stream of a device; None where copies do not run beside other work."""
    return StreamSide(device) if device.type in ("cuda", "xpu") else None


class StreamSide:
    """The side stream of a CUDA (or XPU) device.

    Args:
        device: With its index.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module = getattr(torch, device.type)  # torch.cuda and torch.xpu name these things alike
        self.stream = self._module.Stream(device)

    def staging(self, size: int) -> torch.Tensor:
        """Return page-locked memory."""
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)  # whatever torch's default is

    def memory(self, size: int) -> torch.Tensor:
        """Return memory that belongs to the side stream: it comes back to that stream alone."""
        with self.active():
            return torch.empty(size, dtype=torch.uint8, device=self._device)

    def is_staged(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is on the device or page-locked."""
        return tensor.device == self._device or (tensor.device.type == "cpu" and tensor.is_pinned())

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Make the side stream the current one of this thread."""
        with self._module.stream(self.stream):
            yield

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy."""
        with self.active():
            target.copy_(source, non_blocking=True)

    def mark(self) -> Event:
        """Record an event on the side stream."""
        return self._record(self.stream)

    def mark_caller(self) -> Event:
        """Record an event on the stream that is current for this thread."""
        return self._record(self._module.current_stream(self._device))

    def has_run_dry(self) -> bool:
        """Ask the stream that is current for this thread."""
        return bool(self._module.current_stream(self._device).query())

    def _record(self, stream: Any) -> Event:
        event = self._module.Event(enable_timing=True)
        event.record(stream)
        return _EventMark(self._module, self._device, self.stream, event)


class _EventMark:
    def __init__(self, module: Any, device: torch.device, side: Any, event: Any) -> None:
        self._module, self._device, self._side, self._event = module, device, side, event

    def wait_in_caller(self) -> None:
        self._module.current_stream(self._device).wait_event(self._event)

    def wait_in_side(self) -> None:
        self._side.wait_event(self._event)

    def wait_on_host(self) -> None:
        self._event.synchronize()

    def seconds_since(self, earlier: _EventMark) -> float | None:
        if not self._event.query():
            return None
        return float(earlier._event.elapsed_time(self._event)) / 1e3
