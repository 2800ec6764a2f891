"""Handing batches from a worker to the training process through shared memory that is used again and again.

What the DataLoader does by itself, fresh shared memory for every tensor, can cost half as much as decoding, in page
faults alone. Here each worker owns a slab: shared memory cut into slots. A batch is copied into a free slot, and only
the slot's number travels through the pipe. On the other side the tensors are views of the slot, and when the last of
them is gone, with all of its own views, the slot is free again. A caller who keeps batches keeps their slots; when none
is free, the worker falls back to fresh memory. So nothing is ever overwritten while somebody can still see it, and
nobody waits.

All of it hides in pickling: the worker puts a `_Parcel` into the queue, and a `Made` comes out.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import get_worker_info

from .stages import Made

Bytes = npt.NDArray[np.uint8]

_ALIGNMENT = 64
_LEAST_BYTES = 1 << 16
"""Smaller tensors travel by themselves: a label is not worth a slot."""


class _Place(NamedTuple):
    """Where in its slot a tensor lies, and what it looks like."""

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class Handover:
    """The last stage of a worker's pipeline.

    Args:
        slots: How many batches may be on their way or in use before fresh memory is taken.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._slab: _Slab | None = None  # made in the worker, and kept from epoch to epoch

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        """Return the items, batches among them as parcels when this is a worker."""
        if get_worker_info() is None:
            yield from items
            return
        for made in items:
            tensors = _large_tensors(made)
            yield self._parcel(made, tensors) if tensors else made

    def _parcel(self, made: Made, tensors: dict[int, torch.Tensor]) -> Made | _Parcel:
        needed = sum(_rounded(tensor.nbytes) for tensor in tensors.values())
        if self._slab is None or needed > self._slab.slot_bytes:
            self._slab = _Slab(self._slots, needed)
        slot = self._slab.free_slot()
        return made if slot is None else self._slab.parcel(slot, made, tensors)


def _large_tensors(made: Any) -> dict[int, torch.Tensor]:
    """Return the tensors among a batch's columns that are worth a slot, by their place."""
    if not isinstance(made, Made) or not isinstance(made.columns, tuple):
        return {}
    return {
        index: column
        for index, column in enumerate(made.columns)
        if type(column) is torch.Tensor
        and column.nbytes >= _LEAST_BYTES
        and column.device.type == "cpu"
        and column.layout is torch.strided
        and not column.requires_grad
    }


class _Slab:
    """Shared memory of a worker: a byte per slot that says whether it is taken, then the slots."""

    _numbers = itertools.count()

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self.slot_bytes = slot_bytes
        self._start = _rounded(slots)
        self._memory = torch.empty(self._start + slots * slot_bytes, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        self._taken = self._memory.numpy()[:slots]
        self._taken[:] = 0
        self._name = (os.getpid(), next(self._numbers))
        self._sent = False

    def free_slot(self) -> int | None:
        """Return the first free slot: the one whose pages were used most recently."""
        slot = int(self._taken.argmin())
        return None if self._taken[slot] else slot

    def parcel(self, slot: int, made: Made, tensors: dict[int, torch.Tensor]) -> _Parcel:
        """Copy the tensors into a slot and return what goes into the queue."""
        self._taken[slot] = 1
        start = self._start + slot * self.slot_bytes
        columns = list(made.columns)
        for index, tensor in tensors.items():
            stride = torch.empty_like(tensor, device="meta").stride()  # as `tensor`, but without gaps
            place = _Place(start, tuple(tensor.shape), stride, tensor.dtype)
            _view(self._memory[start : start + tensor.nbytes], place).copy_(tensor)
            columns[index] = place
            start += _rounded(tensor.nbytes)
        memory = None if self._sent else self._memory  # the pipe is in order, so once is enough
        self._sent = True
        return _Parcel((self._name, memory, slot, start, made._replace(columns=tuple(columns))))


class _Parcel:
    """A batch in a slot; unpickling it opens it."""

    def __init__(self, contents: tuple[Any, ...]) -> None:
        self._contents = contents

    def __reduce__(self) -> tuple[Callable[..., Made], tuple[Any, ...]]:
        return _open, self._contents


_received: dict[tuple[int, int], torch.Tensor] = {}
"""The slabs of this process's workers, by worker and number."""


def forget(pids: set[int]) -> None:
    """Let go of the slabs of workers that have ended; batches still in use keep theirs."""
    for name in [name for name in _received if name[0] in pids]:
        del _received[name]


def _open(name: tuple[int, int], memory: torch.Tensor | None, slot: int, end: int, made: Made) -> Made:
    if memory is not None:
        forget({name[0]})  # the pipe is in order: nothing more comes in the slabs before
        _received[name] = memory
    slab = _received[name].numpy()
    places = [column for column in made.columns if isinstance(column, _Place)]
    # torch keeps this very array alive as long as any tensor sees its bytes; its end is the end of the slot's use.
    lease: Bytes = slab[places[0].offset : end]
    weakref.finalize(lease, _release, slab, slot, os.getpid()).atexit = False
    whole = torch.from_numpy(lease)
    columns = tuple(
        _view(whole[column.offset - places[0].offset :], column) if isinstance(column, _Place) else column
        for column in made.columns
    )
    return made._replace(columns=columns)


def _release(slab: Bytes, slot: int, owner: int) -> None:
    if os.getpid() == owner:  # a fork of the training process has no say in what that one still uses
        slab[slot] = 0


def _view(memory: torch.Tensor, place: _Place) -> torch.Tensor:
    elements = sum((size - 1) * stride for size, stride in zip(place.shape, place.stride, strict=True)) + 1
    typed = memory[: elements * place.dtype.itemsize].view(place.dtype)
    return typed.as_strided(place.shape, place.stride)


def _rounded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
