"""A side stream without a GPU, as slow as one may be: copies happen when somebody waits for them, and not before."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import torch


class DelayedSide:
    """Copies are queued, and done when a mark behind them is waited for.

    Attributes:
        log: What was queued on the side stream: ("copy", address of the target) or ("wait", number of the mark), and
            on the caller's: ("consumed", number of the mark).
        dry: What `has_run_dry` says.
        staged: Whether tensors of the host need no staging.
    """

    def __init__(self, *, staged: bool = False) -> None:
        self.log: list[tuple[str, int]] = []
        self.dry = True
        self.staged = staged
        self._queue: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._done = 0
        self._marks = 0
        self._lock = threading.RLock()

    def staging(self, size: int) -> torch.Tensor:
        """Return memory full of rubbish."""
        return torch.full((size,), 0xAA, dtype=torch.uint8)

    def memory(self, size: int) -> torch.Tensor:
        """Return memory full of other rubbish."""
        return torch.full((size,), 0xBB, dtype=torch.uint8)

    def is_staged(self, tensor: torch.Tensor) -> bool:  # noqa: ARG002 - the interface's
        """Return what was said."""
        return self.staged

    def active(self) -> contextlib.AbstractContextManager[Any]:
        """Change nothing."""
        return contextlib.nullcontext()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy."""
        with self._lock:
            self._queue.append((target, source))
            self.log.append(("copy", target.data_ptr()))

    def mark(self) -> DelayedMark:
        """Mark the end of the queue."""
        with self._lock:
            return DelayedMark(self, len(self._queue), -1)

    def mark_caller(self) -> DelayedMark:
        """Number what the caller has done so far."""
        with self._lock:
            self._marks += 1
            self.log.append(("consumed", self._marks))
            return DelayedMark(self, 0, self._marks)

    def has_run_dry(self) -> bool:
        """Return what the test says."""
        return self.dry

    def do(self, end: int) -> None:
        """Do the copies up to a place in the queue."""
        with self._lock:
            for target, source in self._queue[self._done : end]:
                target.copy_(source)
            self._done = max(self._done, end)


class DelayedMark:
    """A place in the queue of copies, or a number in the caller's work, which is done at once."""

    def __init__(self, side: DelayedSide, end: int, number: int) -> None:
        self._side, self._end, self._number = side, end, number

    def wait_in_caller(self) -> None:
        """Do the copies before it."""
        self._side.do(self._end)

    def wait_in_side(self) -> None:
        """Note it."""
        self._side.log.append(("wait", self._number))

    def wait_on_host(self) -> None:
        """Do the copies before it."""
        self._side.do(self._end)

    def seconds_since(self, earlier: DelayedMark) -> float | None:
        """Return a millisecond per mark."""
        return 0.001 * (self._number - earlier._number)
