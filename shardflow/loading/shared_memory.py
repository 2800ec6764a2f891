"""Handing batches from a worker to the training process through shared memory that is used again and again.

What the DataLoader does by itself, fresh shared memory for every tensor, can cost half as much as decoding, in page
faults alone. Here each worker owns a slab: shared memory cut into slots. A batch lies in a slot, and only the slot's
number travels through the pipe. On the other side the tensors are views of the slot, and when the last of them is gone,
with all of its own views, the slot is free again. A caller who keeps batches keeps their slots; when none is free, the
worker falls back to fresh memory. So nothing is ever overwritten while somebody can still see it, and nobody waits.

A decoder is lent a slot to decode into (`Handover.empty`), so that images are not copied at all. What else is large is
copied into a slot, and what is small goes through the pipe.

All of it hides in pickling: the worker puts a `_Parcel` into the queue, and a `Made` comes out.
"""

from __future__ import annotations

import itertools
import math
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import get_worker_info

from .decoders import new
from .stages import WorkerOutput

Bytes = npt.NDArray[np.uint8]

_ALIGNMENT = 64
SLOTS_BEYOND_PREFETCH = 3
"""A batch in the making, one in the caller's hands, and one just let go."""

_LEAST_BYTES = 1 << 16
"""Smaller tensors go through the pipe: a label is not worth a slot, and still less a file descriptor of its own."""

_AS_NUMPY = {torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64}


class _Place(NamedTuple):
    """Where in the slab a tensor lies, and what it looks like."""

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class _Small(NamedTuple):
    """A tensor by value."""

    values: npt.NDArray[Any]


class _Lent(NamedTuple):
    """A slot that a decoder writes to, and the tensor it was given."""

    slab: _Slab
    slot: int
    tensor: torch.Tensor


class BatchSender:
    """The last stage of a worker's pipeline.

    Args:
        slots: How many batches may be on their way or in use before fresh memory is taken.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._slab: _Slab | None = None  # made in the worker, and kept from epoch to epoch
        self._lent: _Lent | None = None

    def empty(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return memory for the images of the next batch: uint8, in a slot where there is a free one.

        It is lent until that batch is handed over; whoever still looks at it then may see another batch.
        """
        size = math.prod(shape)
        if get_worker_info() is None or size < _LEAST_BYTES:
            return new(shape)
        self._take_back()
        slab = self._slab_for(size)
        slot = slab.take()
        if slot is None:
            return new(shape)
        self._lent = _Lent(slab, slot, slab.memory(slot, size).view(shape))
        return self._lent.tensor

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        """Return the items, batches among them as parcels when this is a worker."""
        if get_worker_info() is None:
            yield from items
            return
        for made in items:
            yield self._parcel(made) if isinstance(made, WorkerOutput) and isinstance(made.columns, tuple) else made
            self._take_back()

    def _parcel(self, made: WorkerOutput) -> WorkerOutput | _Parcel:
        large = {index: column for index, column in enumerate(made.columns) if _is_large(column)}
        columns = [_Small(column.numpy().copy()) if _is_small(column) else column for column in made.columns]
        if not large:
            return _Parcel(_Address(), made._replace(columns=tuple(columns)))
        if self._lent is not None and len(large) == 1 and _same(next(iter(large.values())), self._lent.tensor):
            slab, slot = self._lent.slab, self._lent.slot
            self._lent = None
        else:
            slab = self._slab_for(sum(_rounded(tensor.nbytes) for tensor in large.values()))
            free = slab.take()
            if free is None:  # copied all the same: it may be a view of what was lent
                return made._replace(columns=tuple(c.clone() if i in large else c for i, c in enumerate(made.columns)))
            slot = free
            slab.fill(slot, large.values())
        for index, place in zip(large, slab.places(slot, large.values()), strict=True):
            columns[index] = place
        return _Parcel(slab.address(slot), made._replace(columns=tuple(columns)))

    def _slab_for(self, needed: int) -> _Slab:
        if self._slab is None or needed > self._slab.slot_bytes:
            self._slab = _Slab(self._slots, needed)
        return self._slab

    def _take_back(self) -> None:
        if self._lent is not None:
            self._lent.slab.give_back(self._lent.slot)
            self._lent = None


def _is_plain(column: Any) -> bool:
    return (
        type(column) is torch.Tensor
        and column.device.type == "cpu"
        and column.layout is torch.strided
        and not column.requires_grad
    )


def _is_large(column: Any) -> bool:
    return _is_plain(column) and column.nbytes >= _LEAST_BYTES


def _is_small(column: Any) -> bool:
    return _is_plain(column) and column.nbytes < _LEAST_BYTES and column.dtype in _AS_NUMPY


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


class _Address(NamedTuple):
    """Which slot a batch lies in, and the slab itself the first time; nothing for a batch without large tensors."""

    slab: tuple[int, int] | None = None
    memory: torch.Tensor | None = None
    slot: int = 0
    begin: int = 0
    end: int = 0


class _Slab:
    """Shared memory of a worker: a byte per slot that says whether it is taken, then the slots."""

    _numbers = itertools.count()

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self.slot_bytes = _rounded(slot_bytes)
        self._start = _rounded(slots)
        # As torch's own collating does: share_memory_() would copy what has never been written.
        shared = torch.UntypedStorage._new_shared(self._start + slots * self.slot_bytes)  # type: ignore[no-untyped-call]
        self._memory = torch.empty(0, dtype=torch.uint8).set_(shared)
        self._taken = self._memory.numpy()[:slots]
        self._taken[:] = 0
        self._name = (os.getpid(), next(self._numbers))
        self._sent = False

    def take(self) -> int | None:
        """Take the first free slot, the one whose pages were used most recently; None when there is none."""
        slot = int(self._taken.argmin())
        if self._taken[slot]:
            return None
        self._taken[slot] = 1
        return slot

    def give_back(self, slot: int) -> None:
        """Make a slot that was not sent free again."""
        self._taken[slot] = 0

    def memory(self, slot: int, size: int) -> torch.Tensor:
        """Return the first `size` bytes of a slot: uint8 [size]."""
        begin = self._start + slot * self.slot_bytes
        memory: torch.Tensor = self._memory[begin : begin + size]
        return memory

    def places(self, slot: int, tensors: Iterable[torch.Tensor]) -> Iterator[_Place]:
        """Yield where tensors lie that are put into a slot one after the other, without the gaps they may have."""
        offset = self._start + slot * self.slot_bytes
        for tensor in tensors:
            stride = torch.empty_like(tensor, device="meta").stride()
            yield _Place(offset, tuple(tensor.shape), stride, tensor.dtype)
            offset += _rounded(tensor.nbytes)

    def fill(self, slot: int, tensors: Iterable[torch.Tensor]) -> None:
        """Copy tensors to their places in a slot."""
        tensors = list(tensors)
        for tensor, place in zip(tensors, self.places(slot, tensors), strict=True):
            _view(self._memory[place.offset :], place).copy_(tensor)

    def address(self, slot: int) -> _Address:
        """Return what the other side has to know of a slot."""
        memory = None if self._sent else self._memory  # the pipe is in order, so once is enough
        self._sent = True
        begin = self._start + slot * self.slot_bytes
        return _Address(self._name, memory, slot, begin, begin + self.slot_bytes)


class _Parcel:
    """A batch in a slot; unpickling it opens it."""

    def __init__(self, address: _Address, made: WorkerOutput) -> None:
        self._contents = address, made

    def __reduce__(self) -> tuple[Callable[..., WorkerOutput], tuple[Any, ...]]:
        return _open, self._contents


_received: dict[tuple[int, int], torch.Tensor] = {}
"""The slabs of this process's workers, by worker and number."""


def forget(pids: set[int]) -> None:
    """Let go of the slabs of workers that have ended; batches still in use keep theirs."""
    for name in [name for name in _received if name[0] in pids]:
        del _received[name]


def _open(address: _Address, made: WorkerOutput) -> WorkerOutput:
    slot = _slot(address) if address.slab is not None else None
    columns = list(made.columns)
    for index, column in enumerate(columns):
        if isinstance(column, _Place) and slot is not None:
            columns[index] = _view(slot[column.offset - address.begin :], column)
        elif isinstance(column, _Small):
            columns[index] = torch.from_numpy(column.values)
    return made._replace(columns=tuple(columns))


def _slot(address: _Address) -> torch.Tensor:
    """Return a slot's bytes; it is free again when nothing sees them any more."""
    name, memory, slot, begin, end = address
    assert name is not None
    if memory is not None:
        forget({name[0]})  # the pipe is in order: nothing more comes in the slabs before
        _received[name] = memory
    slab = _received[name].numpy()
    # torch keeps this very array alive as long as any tensor sees its bytes; its end is the end of the slot's use.
    lease: Bytes = slab[begin:end]
    weakref.finalize(lease, _release, slab, slot, os.getpid()).atexit = False
    return torch.from_numpy(lease)


def _release(slab: Bytes, slot: int, owner: int) -> None:
    if os.getpid() == owner:  # a fork of the training process has no say in what that one still uses
        slab[slot] = 0


def _view(memory: torch.Tensor, place: _Place) -> torch.Tensor:
    elements = sum((size - 1) * stride for size, stride in zip(place.shape, place.stride, strict=True)) + 1
    typed = memory[: elements * place.dtype.itemsize].view(place.dtype)
    return typed.as_strided(place.shape, place.stride)


def _rounded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
