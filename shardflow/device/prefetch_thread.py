"""A thread that takes batches from the loader and sends them to the device, ahead of the caller.

A ready batch is never held up by one that is not: the thread waits for the loader, the caller for the thread. The first
batch is taken by the caller itself, so that the loader's workers are forked in the thread that iterates, where torch
looks after them; in the thread they would be forked while the caller computes.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from .buffers import Slot
from .copy_stream import Side

_LAST_RESORT_S = 10.0


class Taken(NamedTuple):
    """What the thread has for the caller.

    Attributes:
        slot: Where the batch is.
        key: The batch's key, if it has one.
        state: The loader's state after this batch, if it has one.
        loaded_at: When the loader had handed it out, by `time.perf_counter`.
    """

    slot: Slot
    key: int | None
    state: dict[str, Any] | None
    loaded_at: float


class Pump:
    """Runs for one iteration.

    Args:
        batches: The loader's iteration.
        side: The side stream.
        slots: The slots to fill, all of them free.
        arrive: What is done with each batch before it is copied; returns it and its key.
        state: Returns the loader's state.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        side: Side,
        slots: list[Slot],
        arrive: Callable[[Any], tuple[Any, int | None]],
        state: Callable[[], dict[str, Any] | None],
    ) -> None:
        self._batches, self._side, self._arrive, self._state = batches, side, arrive, state
        self._free: queue.SimpleQueue[Slot | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[Taken | BaseException | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        for slot in slots:
            self._free.put(slot)
        self._thread: threading.Thread | None = None

    def take(self) -> Taken | None:
        """Return the next batch, None after the last one. Its slot has to be given back.

        Raises:
            Exception: What the loader or the copy raised, after all batches before it.
        """
        if self._thread is None and self._pump_one():
            self._thread = threading.Thread(target=self._work, name="device-prefetcher", daemon=True)
            self._thread.start()
            # A daemon, so that a forgotten iteration does not keep the interpreter from ending, but not one that is
            # still copying while torch is taken apart.
            weakref.finalize(self, _stop, self._stopping, self._free, self._thread)
        taken = self._ready.get()
        if isinstance(taken, BaseException):
            try:
                raise taken
            finally:
                del taken  # its traceback has this frame, and so would keep the loader for the garbage collector
        return taken

    def give_back(self, slot: Slot) -> None:
        """Let a slot be filled again."""
        self._free.put(slot)

    def close(self) -> None:
        """End the thread, when the batch that it waits for has come. May be called twice."""
        if self._stopping.is_set():  # first: as the interpreter exits, the names that are asked for next are gone
            return
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._free.put(None)
            self._thread.join()
        while not self._ready.empty():  # an error among these would keep everything that it went through
            self._ready.get()

    def _work(self) -> None:
        while self._pump_one():
            pass

    def _pump_one(self) -> bool:
        """Take one batch from the loader and send it; return whether there may be another one."""
        slot = self._free.get()
        if self._stopping.is_set() or slot is None:
            return False
        try:
            with self._side.active():  # for what is decoded on the device
                batch = next(self._batches, self)
                if batch is self:
                    self._ready.put(None)
                    return False
                loaded_at, state = time.perf_counter(), self._state()
                with torch.no_grad():
                    batch, key = self._arrive(batch)
                    slot.fill(batch)
        except BaseException as error:
            self._ready.put(error)
            return False
        self._ready.put(Taken(slot, key, state, loaded_at))
        return True


def _stop(stopping: threading.Event, free: queue.SimpleQueue[Slot | None], thread: threading.Thread) -> None:
    stopping.set()
    free.put(None)
    if thread is not threading.current_thread():
        thread.join(_LAST_RESORT_S)
