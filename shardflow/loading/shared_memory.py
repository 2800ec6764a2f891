"""Batches through shared memory: from a worker to the training process, in memory that is used again and again.

By default the DataLoader takes fresh shared memory for every tensor, which can cost half as much as decoding, in page
faults alone. Here each worker owns a slab of shared memory, cut into slots. The decode stage borrows a slot and decodes
into it; `BatchSender`, the last stage, sends only a `BatchHandle` through the pipe, which is unpickled as the batch. In
the training process the tensors are views of the slot, and when the last of them is gone, with all of its views,
the slot is free again. When none is free, the worker falls back to fresh memory. So memory is never overwritten while
it can be seen, and nothing waits.

A field of a batch is a tensor, a tuple of fields, or a list with a tensor per sample, such as its boxes. A list travels
as one tensor of all values, with the shapes; so there are few objects of shared memory however many boxes there are.
"""

from __future__ import annotations

import itertools
import math
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import get_worker_info

from .collate import WorkerOutput
from .decoders.decoder import allocate
from .memory_layout import Layout, aligned, extent, places

Bytes = npt.NDArray[np.uint8]

SLOTS_BEYOND_PREFETCH = 3
"""One for the batch being decoded, one for the batch that the caller holds, and one for the batch it just dropped."""

_LEAST_BYTES = 1 << 16  # smaller tensors go through the pipe: a label is not worth a slot or a file descriptor
_AS_NUMPY = {
    torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64
}  # fmt: skip


class _Inline(NamedTuple):
    """A small tensor, sent by value."""

    values: npt.NDArray[Any]


class _Large(NamedTuple):
    """A large tensor, by its number among those of the batch."""

    number: int


class _Ragged(NamedTuple):
    """A list of tensors: their concatenated values, and their shapes."""

    values: _Inline | _Large
    shapes: list[torch.Size]


class BatchSender:
    """The last stage of a worker's pipeline: puts batches into slots, some of which decoders have written to.

    Created in the training process; the memory is allocated in the worker that uses it.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._slab: _Slab | None = None  # kept from epoch to epoch
        self._loan: tuple[_Slab, int, torch.Tensor] | None = None  # the slot that a decoder writes to, and its tensor
        self._room = 0  # bytes that follow the tensor on loan, for the other tensors of a batch

    def borrow(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return uint8 memory for the images of the next batch, in a slot if one is free; a decoder's `Empty`.

        The loan ends when the batch is sent; views that still exist then may show another batch.
        """
        size = math.prod(shape)
        if get_worker_info() is None or size < _LEAST_BYTES:
            return allocate(shape)
        self.end_loan()
        slab = self._slab_for(aligned(size) + self._room)
        slot = slab.acquire()
        if slot is None:
            return allocate(shape)
        tensor = slab.memory(slot)[:size].view(shape)
        self._loan = slab, slot, tensor
        return tensor

    def end_loan(self) -> None:
        """Free the slot that is on loan, if there is one."""
        if self._loan is not None:
            slab, slot, _ = self._loan
            slab.release(slot)
            self._loan = None

    def place(self, tensors: Sequence[torch.Tensor]) -> tuple[_SlotAddress, list[Layout]] | None:
        """Return a slot that holds the tensors, and where; None when no slot is free.

        Tensors that lie in the memory on loan stay there, and the others are put behind it. If they do not fit, all are
        copied, and the next slots have room for them.
        """
        slab, slot, start = None, None, 0
        inside = [_offset_within(tensor, self._loan and self._loan[2]) for tensor in tensors]
        if self._loan is not None and any(offset is not None for offset in inside):
            slab, slot, lent = self._loan
            start = aligned(lent.nbytes)
            others = _bytes_of(tensor for tensor, offset in zip(tensors, inside, strict=True) if offset is None)
            self._room = max(self._room, others)
            if start + others > slab.slot_bytes:
                slab, slot, start, inside = None, None, 0, [None] * len(tensors)
            else:
                self._loan = None
        if slab is None:
            slab = self._slab_for(_bytes_of(tensors))
            slot = slab.acquire()
        if slot is None:
            return None
        layouts = []
        for tensor, offset in zip(tensors, inside, strict=True):
            if offset is not None:
                layouts.append(Layout(offset, tuple(tensor.shape), tensor.stride(), tensor.dtype))
                continue
            layouts.append(Layout.like(tensor, start))
            layouts[-1].view(slab.memory(slot)).copy_(tensor)
            start += aligned(tensor.nbytes)
        return slab.address(slot), layouts

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        """Return the items, in a worker with batches replaced by their handles."""
        if get_worker_info() is None:
            yield from items
            return
        for item in items:
            yield self._handle(item) if isinstance(item, WorkerOutput) and isinstance(item.columns, tuple) else item
            self.end_loan()

    def _handle(self, output: WorkerOutput) -> BatchHandle:
        large: list[torch.Tensor] = []
        output = output._replace(columns=_take_apart(output.columns, large))
        placed = self.place(large) if large else None
        if placed is None:  # copied all the same, because a tensor may be a view of the slot on loan
            return BatchHandle(None, [tensor.clone() for tensor in large], output)
        return BatchHandle(*placed, output)

    def _slab_for(self, needed: int) -> _Slab:
        if self._slab is None or needed > self._slab.slot_bytes:
            self._slab = _Slab(self._slots, needed)
        return self._slab


def _take_apart(column: Any, large: list[torch.Tensor]) -> Any:
    """Return a field of a batch without its tensors: small ones by value, and large ones by their number in `large`."""
    if type(column) is tuple:
        return tuple(_take_apart(each, large) for each in column)
    if type(column) is list and column and all(_is_plain(each) and each.dtype == column[0].dtype for each in column):
        values = _take_apart(torch.cat([each.reshape(-1) for each in column]), large)
        return _Ragged(values, [each.shape for each in column])
    if not _is_plain(column):
        return column
    if column.nbytes < _LEAST_BYTES and column.dtype in _AS_NUMPY:
        return _Inline(column.numpy().copy())
    large.append(column)
    return _Large(len(large) - 1)


def _put_together(column: Any, large: Sequence[torch.Tensor]) -> Any:
    """Return a field of a batch with its tensors: the inverse of `_take_apart`."""
    if isinstance(column, _Inline):
        return torch.from_numpy(column.values)
    if isinstance(column, _Large):
        return large[column.number]
    if isinstance(column, _Ragged):
        pieces = _put_together(column.values, large).split([shape.numel() for shape in column.shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, column.shapes, strict=True)]
    return tuple(_put_together(each, large) for each in column) if type(column) is tuple else column


def _is_plain(column: Any) -> bool:
    plain = type(column) is torch.Tensor and column.device.type == "cpu" and column.layout is torch.strided
    return plain and not column.requires_grad


def _offset_within(tensor: torch.Tensor, memory: torch.Tensor | None) -> int | None:
    """Return how many bytes after the beginning of this memory a tensor begins; None if it is not a part of it."""
    if memory is None or tensor.untyped_storage().data_ptr() != memory.untyped_storage().data_ptr():
        return None
    offset = tensor.data_ptr() - memory.data_ptr()
    end = offset + extent(tensor.shape, tensor.stride()) * tensor.itemsize
    return offset if 0 <= offset <= end <= memory.nbytes else None


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
        self.slot_bytes = aligned(slot_bytes)
        self._start = aligned(slots)
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
    """A batch without its large tensors, and where these are; unpickling it returns the batch.

    `large` are their layouts in the slot at `address`, or without one the tensors themselves.
    """

    def __init__(
        self, address: _SlotAddress | None, large: Sequence[Layout] | Sequence[torch.Tensor], output: WorkerOutput
    ) -> None:
        self._contents = address, large, output

    def __reduce__(self) -> tuple[Callable[..., WorkerOutput], tuple[Any, ...]]:
        return _open, self._contents


_slabs: dict[tuple[int, int], torch.Tensor] = {}
"""The slabs of this process's workers, by process number and number of the slab."""


def forget(pids: set[int]) -> None:
    """Drop the slabs of workers that have ended; batches that are still in use keep theirs."""
    for name in [name for name in _slabs if name[0] in pids]:
        del _slabs[name]


def _open(address: _SlotAddress | None, large: Sequence[Any], output: WorkerOutput) -> WorkerOutput:
    if address is not None:
        slot = _slot(address)
        large = [layout.view(slot) for layout in large]
    return output._replace(columns=_put_together(output.columns, large))


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


def _bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Return how many bytes of a slot tensors take together."""
    return places(tensor.nbytes for tensor in tensors)[-1]
