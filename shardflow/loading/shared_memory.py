"""Batches through shared memory: from a worker to the training process, in memory that is used again and again.

By default the DataLoader takes fresh shared memory for every tensor, which can cost half as much as decoding, in page
faults alone. Here each worker owns a slab of shared memory, cut into slots. The decode stage borrows a slot and decodes
into it; `BatchSender`, the last stage, sends only a `BatchHandle` through the pipe, which is unpickled as the batch. In
the training process the tensors are views of the slot, and when the last of them is gone, with all of its own views,
the slot is free again. When none is free, the worker falls back to fresh memory. So memory is never overwritten while
it can be seen, and nothing waits.
"""

from __future__ import annotations

import itertools
import math
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import get_worker_info

from .decoders import new
from .stages import WorkerOutput

Bytes = npt.NDArray[np.uint8]

SLOTS_BEYOND_PREFETCH = 3
"""One for the batch being decoded, one for the batch that the caller holds, and one for the batch it just dropped."""

_ALIGNMENT = 64
_LEAST_BYTES = 1 << 16  # smaller tensors go through the pipe: a label is worth no slot or file descriptor of its own
_AS_NUMPY = {torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64}


class _Layout(NamedTuple):
    """Where a tensor lies in its slot, and its form."""

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class _Inline(NamedTuple):
    """A small tensor, sent by value."""

    values: npt.NDArray[Any]


class SlotPool:
    """The slots of one worker. Created in the training process; the memory is allocated in the worker that uses it."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._slab: _Slab | None = None  # kept from epoch to epoch
        self._loan: tuple[_Slab, int, torch.Tensor] | None = None  # the slot that a decoder writes to, and its tensor

    def borrow(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return uint8 memory for the images of the next batch, in a slot if one is free; a decoder's `Empty`.

        The loan ends when the batch is sent; views that still exist then may show another batch.
        """
        size = math.prod(shape)
        if get_worker_info() is None or size < _LEAST_BYTES:
            return new(shape)
        self.end_loan()
        slab = self._slab_for(size)
        slot = slab.acquire()
        if slot is None:
            return new(shape)
        tensor = slab.memory(slot)[:size].view(shape)
        self._loan = slab, slot, tensor
        return tensor

    def end_loan(self) -> None:
        """Free the slot that is on loan, if there is one."""
        if self._loan is not None:
            slab, slot, _ = self._loan
            slab.release(slot)
            self._loan = None

    def place(self, tensors: list[torch.Tensor]) -> tuple[_SlotAddress, list[_Layout]] | None:
        """Return a slot that holds the tensors, and where; None when no slot is free.

        The slot on loan is used as it is if the only tensor is the one that was lent; otherwise tensors are copied.
        """
        if self._loan is not None and len(tensors) == 1 and _is_same(tensors[0], self._loan[2]):
            slab, slot, _ = self._loan
            self._loan = None
            return slab.address(slot), _layouts(tensors)
        slab = self._slab_for(sum(_rounded(tensor.nbytes) for tensor in tensors))
        free = slab.acquire()
        if free is None:
            return None
        layouts = _layouts(tensors)
        for tensor, layout in zip(tensors, layouts, strict=True):
            _view(slab.memory(free), layout).copy_(tensor)
        return slab.address(free), layouts

    def _slab_for(self, needed: int) -> _Slab:
        if self._slab is None or needed > self._slab.slot_bytes:
            self._slab = _Slab(self._slots, needed)
        return self._slab


class BatchSender:
    """The last stage of a worker's pipeline: puts batches into slots of the pool that the decode stage borrows from."""

    def __init__(self, pool: SlotPool) -> None:
        self._pool = pool

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        """Return the items, in a worker with batches replaced by their handles."""
        if get_worker_info() is None:
            yield from items
            return
        for item in items:
            yield self._handle(item) if isinstance(item, WorkerOutput) and isinstance(item.columns, tuple) else item
            self._pool.end_loan()

    def _handle(self, output: WorkerOutput) -> WorkerOutput | BatchHandle:
        large = {index: column for index, column in enumerate(output.columns) if _is_large(column)}
        columns = [_Inline(column.numpy().copy()) if _is_small(column) else column for column in output.columns]
        if not large:
            return BatchHandle(None, output._replace(columns=tuple(columns)))
        placed = self._pool.place(list(large.values()))
        if placed is None:  # copied all the same, because a tensor may be a view of the slot on loan
            copies = (column.clone() if index in large else column for index, column in enumerate(output.columns))
            return output._replace(columns=tuple(copies))
        address, layouts = placed
        for index, layout in zip(large, layouts, strict=True):
            columns[index] = layout
        return BatchHandle(address, output._replace(columns=tuple(columns)))


def _is_plain(column: Any) -> bool:
    plain = type(column) is torch.Tensor and column.device.type == "cpu" and column.layout is torch.strided
    return plain and not column.requires_grad


def _is_large(column: Any) -> bool:
    return _is_plain(column) and column.nbytes >= _LEAST_BYTES


def _is_small(column: Any) -> bool:
    return _is_plain(column) and column.nbytes < _LEAST_BYTES and column.dtype in _AS_NUMPY


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


class _SlotAddress(NamedTuple):
    """The slot of a batch: bytes `begin` to `end` of a slab, with the slab itself the first time."""

    slab: tuple[int, int]
    memory: torch.Tensor | None
    slot: int
    begin: int
    end: int


class _Slab:
    """Shared memory of a worker: a byte per slot that says whether the slot is in use, then the slots."""

    _numbers = itertools.count()

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self.slot_bytes = _rounded(slot_bytes)
        self._start = _rounded(slots)
        # As torch's own collating does: share_memory_() would copy memory that has never been written.
        shared = torch.UntypedStorage._new_shared(self._start + slots * self.slot_bytes)  # type: ignore[no-untyped-call]
        self._memory = torch.empty(0, dtype=torch.uint8).set_(shared)
        self._in_use = self._memory.numpy()[:slots]
        self._in_use[:] = 0
        self._name = (os.getpid(), next(self._numbers))
        self._sent = False

    def acquire(self) -> int | None:
        """Acquire the first free slot, whose pages were used most recently; return None when none is free."""
        slot = int(self._in_use.argmin())
        if self._in_use[slot]:
            return None
        self._in_use[slot] = 1
        return slot

    def release(self, slot: int) -> None:
        """Free a slot that was not sent."""
        self._in_use[slot] = 0

    def memory(self, slot: int) -> torch.Tensor:
        """Return the bytes of a slot."""
        begin = self._start + slot * self.slot_bytes
        memory: torch.Tensor = self._memory[begin : begin + self.slot_bytes]
        return memory

    def address(self, slot: int) -> _SlotAddress:
        """Return the address of a slot for the training process."""
        memory = None if self._sent else self._memory  # the pipe keeps its order, so sending the slab once is enough
        self._sent = True
        begin = self._start + slot * self.slot_bytes
        return _SlotAddress(self._name, memory, slot, begin, begin + self.slot_bytes)


class BatchHandle:
    """A batch in a slot, or without large tensors; unpickling it returns the batch, its tensors views of the slot."""

    def __init__(self, address: _SlotAddress | None, output: WorkerOutput) -> None:
        self._contents = address, output

    def __reduce__(self) -> tuple[Callable[..., WorkerOutput], tuple[Any, ...]]:
        return _open, self._contents


_slabs: dict[tuple[int, int], torch.Tensor] = {}
"""The slabs of this process's workers, by process number and number of the slab."""


def forget(pids: set[int]) -> None:
    """Drop the slabs of workers that have ended; batches that are still in use keep theirs."""
    for name in [name for name in _slabs if name[0] in pids]:
        del _slabs[name]


def _open(address: _SlotAddress | None, output: WorkerOutput) -> WorkerOutput:
    slot = None if address is None else _slot(address)
    columns = list(output.columns)
    for index, column in enumerate(columns):
        if isinstance(column, _Layout) and slot is not None:
            columns[index] = _view(slot, column)
        elif isinstance(column, _Inline):
            columns[index] = torch.from_numpy(column.values)
    return output._replace(columns=tuple(columns))


def _slot(address: _SlotAddress) -> torch.Tensor:
    """Return the bytes of a slot, which is freed when nothing refers to them any more."""
    name, memory, slot, begin, end = address
    if memory is not None:
        forget({name[0]})  # the pipe keeps its order: no batch of this worker's earlier slabs follows
        _slabs[name] = memory
    slab = _slabs[name].numpy()
    # torch keeps this very array alive as long as any tensor shows its bytes; when it goes, the slot is free.
    lease: Bytes = slab[begin:end]
    weakref.finalize(lease, _release, slab, slot, os.getpid()).atexit = False
    return torch.from_numpy(lease)


def _release(slab: Bytes, slot: int, owner: int) -> None:
    if os.getpid() == owner:  # a fork of the training process must not free slots that its parent still uses
        slab[slot] = 0


def _view(memory: torch.Tensor, layout: _Layout) -> torch.Tensor:
    elements = sum((size - 1) * stride for size, stride in zip(layout.shape, layout.stride, strict=True)) + 1
    typed = memory[layout.offset :][: elements * layout.dtype.itemsize].view(layout.dtype)
    return typed.as_strided(layout.shape, layout.stride)


def _layouts(tensors: list[torch.Tensor]) -> list[_Layout]:
    """Return where tensors lie that are put into a slot one after the other, without gaps in their strides."""
    layouts, offset = [], 0
    for tensor in tensors:
        stride = torch.empty_like(tensor, device="meta").stride()
        layouts.append(_Layout(offset, tuple(tensor.shape), stride, tensor.dtype))
        offset += _rounded(tensor.nbytes)
    return layouts


def _rounded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
