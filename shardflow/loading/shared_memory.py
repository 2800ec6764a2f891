"""Batches through shared memory: from a worker to the training process, in memory that is reused.

By default the DataLoader allocates new shared memory for every tensor; its page faults can cost half as much as
decoding. Here each worker owns slots of shared memory, which it makes when it needs them. The decode stage borrows a
slot and decodes into it. `BatchSender`, the last stage, sends only a `BatchHandle` through the pipe, which is unpickled
as the batch. In the training process the tensors are views of the slot, which is freed with its last view. If no slot
is free, the worker allocates new memory. So memory is never overwritten while a view exists, and no process waits for a
slot.

A field of a batch is a tensor, a tuple of fields, or a list with a tensor per sample, such as its boxes. A list is sent
as one tensor of all values, with the shapes, so the number of tensors does not grow with the number of samples.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import get_worker_info

from .collate import WorkerOutput
from .decoders.decoder import allocate
from .memory_layout import Layout, aligned, extent, places
from .stats import BatchCounts

Bytes = npt.NDArray[np.uint8]

SLOTS_BEYOND_PREFETCH = 3
"""One for the batch being decoded, one for the batch that the caller holds, and one for the batch that it drops."""

_LEAST_BYTES = 1 << 16  # smaller tensors are copied out of the slot: keeping labels must not keep the images
_START = aligned(1)  # where the tensors of a slot begin
_ROOM_BYTES = 1 << 14  # initial space after the images for other tensors, such as labels
_AS_NUMPY = {
    torch.bool: np.bool_, torch.uint8: np.uint8, torch.int16: np.int16, torch.int32: np.int32, torch.int64: np.int64,
    torch.float16: np.float16, torch.float32: np.float32, torch.float64: np.float64
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor of a batch, by number. Not a NamedTuple, which would equal a `_Value` of the same number."""

    number: int


@dataclass(frozen=True, slots=True)
class _Value:
    """A value of a batch that is not a tensor, by number."""

    number: int


@dataclass(frozen=True, slots=True)
class _Ragged:
    """A list of tensors: their concatenated values, and the list of their shapes."""

    values: _Tensor
    shapes: _Value


@dataclass(frozen=True, slots=True)
class _Form:
    """The form of a batch: its fields by number, and where the tensors are in a slot. It seldom changes."""

    columns: Any
    layouts: tuple[Layout, ...]


class BatchSender:
    """The last stage of a worker's pipeline: puts batches into slots, unless decoders have already written there.

    Created in the training process; the memory is allocated in the worker that uses it.
    """

    def __init__(self, slots: int) -> None:
        self._limit = slots
        self._slots: list[_Slot] = []  # kept from epoch to epoch
        self._loan: tuple[_Slot, torch.Tensor] | None = None  # the slot that a decoder writes to, and its tensor
        self._room = _ROOM_BYTES  # bytes that follow the tensor on loan, for the other tensors of a batch

    def borrow(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return uint8 memory for the images of the next batch, in a slot if one is free; an `Allocator` for decoders.

        The loan ends when the batch is sent; views in the worker that still exist may then show another batch.
        """
        size = math.prod(shape)
        if get_worker_info() is None or size < _LEAST_BYTES:
            return allocate(shape)
        self.end_loan()
        slot = self._acquire(aligned(size) + self._room)
        if slot is None:
            return allocate(shape)
        tensor = slot.memory[:size].view(shape)
        self._loan = slot, tensor
        return tensor

    def end_loan(self) -> None:
        """Free the slot that is on loan, if there is one."""
        if self._loan is not None:
            self._loan[0].in_use[0] = 0
            self._loan = None

    def place(self, tensors: Sequence[torch.Tensor]) -> tuple[_Slot, tuple[Layout, ...]] | None:
        """Put tensors into a slot; return it and the layouts; None if no slot is free.

        Tensors in the memory on loan stay there, and the others are put after it. If they do not fit, all are copied,
        and later slots have room for them.
        """
        slot, start = None, 0
        inside = [_offset_within(tensor, self._loan and self._loan[1]) for tensor in tensors]
        if self._loan is not None and any(offset is not None for offset in inside):
            slot, lent = self._loan
            start = aligned(lent.nbytes)
            others = _bytes_of(tensor for tensor, offset in zip(tensors, inside, strict=True) if offset is None)
            self._room = max(self._room, others)
            if start + others > slot.memory.nbytes:
                slot, start, inside = None, 0, [None] * len(tensors)
            else:
                self._loan = None
        if slot is None:
            slot = self._acquire(_bytes_of(tensors))
        if slot is None:
            return None
        layouts = []
        for tensor, offset in zip(tensors, inside, strict=True):
            if offset is not None:
                layouts.append(Layout(offset, tuple(tensor.shape), tensor.stride(), tensor.dtype))
                continue
            layouts.append(Layout.like(tensor, start))
            layouts[-1].view(slot.memory).copy_(tensor)
            start += aligned(tensor.nbytes)
        return slot, tuple(layouts)

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        """Yield the items; in a worker, replace batches by their handles."""
        if get_worker_info() is None:
            yield from items
            return
        for item in items:
            yield self._handle(item) if isinstance(item, WorkerOutput) and isinstance(item.columns, tuple) else item
            self.end_loan()

    def _handle(self, output: WorkerOutput) -> BatchHandle:
        tensors: list[torch.Tensor] = []
        values: list[Any] = []
        columns = _take_apart(output.columns, tensors, values)
        rest = values, output.replaced, tuple(output.counts)
        placed = self.place(tensors) if any(tensor.nbytes >= _LEAST_BYTES for tensor in tensors) else None
        if placed is None:  # copied nevertheless, because a tensor may be a view of the slot on loan
            return BatchHandle(_join, columns, [_alone(tensor) for tensor in tensors], *rest)
        slot, layouts = placed
        return BatchHandle(_open, *slot.message(_Form(columns, layouts)), *rest)

    def _acquire(self, needed: int) -> _Slot | None:
        """Acquire the first free slot, which was used most recently, or a new one; None if all are in use.

        One that is too small is replaced: the training process has its memory as long as it needs it.
        """
        number = next((number for number, slot in enumerate(self._slots) if not slot.in_use[0]), len(self._slots))
        if number == self._limit:
            return None
        if number == len(self._slots) or self._slots[number].memory.nbytes < needed:
            self._slots[number : number + 1] = [_Slot(number, needed)]
        self._slots[number].in_use[0] = 1
        return self._slots[number]


def _take_apart(column: Any, tensors: list[torch.Tensor], values: list[Any]) -> Any:
    """Return a field of a batch with numbers for its tensors and other values; append these to the lists."""
    if type(column) is tuple:
        return tuple(_take_apart(each, tensors, values) for each in column)
    if type(column) is list and column and all(_is_plain(each) and each.dtype == column[0].dtype for each in column):
        tensors.append(torch.cat([each.reshape(-1) for each in column]))
        values.append([each.shape for each in column])
        return _Ragged(_Tensor(len(tensors) - 1), _Value(len(values) - 1))
    if _is_plain(column):
        tensors.append(column)
        return _Tensor(len(tensors) - 1)
    values.append(column)
    return _Value(len(values) - 1)


def _put_together(column: Any, tensors: Sequence[torch.Tensor], values: Sequence[Any]) -> Any:
    """Return a field of a batch with its tensors and values: the inverse of `_take_apart`."""
    kind = type(column)
    if kind is _Tensor:
        return tensors[column.number]
    if kind is _Value:
        return values[column.number]
    if kind is _Ragged:
        shapes = values[column.shapes.number]
        pieces = tensors[column.values.number].split([shape.numel() for shape in shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
    return tuple([_put_together(each, tensors, values) for each in column])


def _is_plain(column: Any) -> bool:
    plain = type(column) is torch.Tensor and column.device.type == "cpu" and column.layout is torch.strided
    return plain and not column.requires_grad


def _offset_within(tensor: torch.Tensor, memory: torch.Tensor | None) -> int | None:
    """Return the offset of a tensor in this memory, in bytes; None if the tensor is not inside it."""
    if memory is None or tensor.untyped_storage().data_ptr() != memory.untyped_storage().data_ptr():
        return None
    offset = tensor.data_ptr() - memory.data_ptr()
    end = offset + extent(tensor.shape, tensor.stride()) * tensor.itemsize
    return offset if 0 <= offset <= end <= memory.nbytes else None


class _Slot:
    """Shared memory for a batch, after a byte that is 1 while the slot is in use."""

    def __init__(self, number: int, size: int) -> None:
        # As in default_collate: share_memory_() would copy memory that has never been written.
        shared = torch.UntypedStorage._new_shared(_START + aligned(size))  # type: ignore[no-untyped-call]
        self._whole = torch.empty(0, dtype=torch.uint8, device="cpu").set_(shared)
        self.memory, self.in_use = self._whole[_START:], self._whole.numpy()[:1]
        self._name = (os.getpid(), number)
        self._sent: _Form | None = None  # the form of its previous batch

    def message(self, form: _Form) -> tuple[_Name, _Form | None, torch.Tensor | None]:
        """Return the slot's name, and the form and memory if they are new to the training process."""
        memory = self._whole if self._sent is None else None
        changed = form if form != self._sent else None
        self._sent = form
        return self._name, changed, memory


class BatchHandle:
    """A batch in pickled form, without the bytes of tensors in slots; unpickling it returns the batch."""

    def __init__(self, opener: Callable[..., WorkerOutput], *arguments: Any) -> None:
        self._contents = opener, arguments

    def __reduce__(self) -> tuple[Callable[..., WorkerOutput], tuple[Any, ...]]:
        return self._contents


class _Lease(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of a slot for one batch. Tensors refer to their arrays, and these to the lease; its end frees the slot.

    A subclass, because a view of a slice of a plain array refers to the whole array.
    """

    in_use: Bytes | None = None
    owner = 0

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        # A fork of the training process must not free slots that its parent still uses.
        if self.in_use is not None and getpid() == self.owner:
            self.in_use[0] = 0


class _SlotOfWorker:
    """A slot in the training process."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._in_use, self._bytes = memory.numpy()[:1], memory.numpy().view(_Lease)
        self._columns: Any = None
        self._places: list[_Place] = []

    def set_form(self, form: _Form) -> None:
        """Set the form of the following batches."""
        self._columns = form.columns
        self._places = [*map(_Place.of, form.layouts)]

    def open(self, values: Sequence[Any]) -> Any:
        """Return the batch in the slot, which is freed when its large tensors are no longer referenced."""
        lease: Any = self._bytes[_START:]
        lease.in_use, lease.owner = self._in_use, os.getpid()
        return _put_together(self._columns, [place.view(lease) for place in self._places], values)


class _Place(NamedTuple):
    """A layout in numpy's terms: numpy makes a view several times as fast as torch."""

    shape: tuple[int, ...]
    numpy_dtype: Any
    offset: int
    stride_bytes: tuple[int, ...]
    dtype: torch.dtype
    is_small: bool

    @classmethod
    def of(cls, layout: Layout) -> _Place:
        """Return the place of a layout; a dtype that numpy lacks becomes an integer or complex one of the same size."""
        size = layout.dtype.itemsize
        numpy_dtype = _AS_NUMPY.get(layout.dtype, f"i{size}" if size <= 8 else f"c{size}")
        stride_bytes = tuple(step * size for step in layout.stride)
        is_small = math.prod(layout.shape) * size < _LEAST_BYTES
        return cls(layout.shape, numpy_dtype, layout.offset, stride_bytes, layout.dtype, is_small)

    def view(self, memory: Bytes) -> torch.Tensor:
        """Return the tensor in this memory, or a copy if it is small."""
        array: npt.NDArray[Any] = np.ndarray(self.shape, self.numpy_dtype, memory, self.offset, self.stride_bytes)
        tensor = torch.from_numpy(array.copy(order="K") if self.is_small else array)
        return tensor if tensor.dtype is self.dtype else tensor.view(self.dtype)


_Name = tuple[int, int]
"""The name of a slot: the PID of its worker, and the slot's number in the worker."""

_slots: dict[_Name, _SlotOfWorker] = {}
"""The slots of this process's workers."""


def forget(pids: set[int]) -> None:
    """Drop the slots of workers that have ended; batches in use keep their memory."""
    for name in [name for name in _slots if name[0] in pids]:
        del _slots[name]


def _open(
    name: _Name,
    form: _Form | None,
    memory: torch.Tensor | None,
    values: Sequence[Any],
    replaced: list[str],
    counts: tuple[int, ...],
) -> WorkerOutput:
    if memory is not None:
        # The pipe keeps its order: no batch in an earlier slot of this name follows.
        _slots[name] = _SlotOfWorker(memory)
    slot = _slots[name]
    if form is not None:
        slot.set_form(form)
    return WorkerOutput(slot.open(values), replaced, BatchCounts(*counts))


def _join(
    columns: Any,
    tensors: Sequence[torch.Tensor | npt.NDArray[Any]],
    values: Sequence[Any],
    replaced: list[str],
    counts: tuple[int, ...],
) -> WorkerOutput:
    """Return a batch that was sent without a slot."""
    opened = [torch.from_numpy(each) if isinstance(each, np.ndarray) else each for each in tensors]
    return WorkerOutput(_put_together(columns, opened, values), replaced, BatchCounts(*counts))


def _alone(tensor: torch.Tensor) -> torch.Tensor | npt.NDArray[Any]:
    """Return a copy to be sent; a small one is sent by value, because shared memory costs a file descriptor."""
    is_small = tensor.nbytes < _LEAST_BYTES and tensor.dtype in _AS_NUMPY
    return tensor.numpy().copy() if is_small else tensor.clone()


def _bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Return how many bytes tensors take together in a slot."""
    return places(tensor.nbytes for tensor in tensors)[-1]
