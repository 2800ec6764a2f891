"""Integers in shared memory, which a process sets for the workers that it starts."""

from __future__ import annotations

import os
from typing import Any

import torch


class SharedIntegers:
    """Integers that a process sets and its workers read, or the other way round.

    Only workers share memory with the process that starts them. A copy by `copy.deepcopy` or pickle has separate
    memory, and a process that was forked, or received the object, gets its own before it sets a value.

    Attributes:
        values: int64 [count].
    """

    def __init__(self, count: int) -> None:
        self._share(torch.zeros(count, dtype=torch.int64, device="cpu"))

    def to_set(self) -> torch.Tensor:
        """Return the values, to be changed by the process that starts the workers, before it starts them."""
        if self._owner != os.getpid():
            self._share(self.values.clone())
        return self.values

    def _share(self, values: torch.Tensor) -> None:
        self.values: torch.Tensor = values.share_memory_()  # type: ignore[no-untyped-call]
        self._owner = os.getpid()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not self.values.is_shared():  # type: ignore[no-untyped-call] # a worker receives shared memory
            self._share(self.values)
