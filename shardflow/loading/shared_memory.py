"""Batches through shared memory: from a worker to the training process, in memory that is reused.

By default the DataLoader allocates new shared memory for every tensor; its page faults can cost half as much as
decoding. Here the workers of a loader share a pool of slots, so that there are as many as there are batches in flight.
The decode stage borrows a slot and decodes into it. `BatchSender`, the last stage, sends only a `BatchHandle` through
the pipe, which is unpickled as the batch. In the training process the tensors are views of the slot, which is freed
with its last view. If no slot is free, the worker allocates new memory. So memory is never overwritten while a view
exists, and no process waits for a slot.

A field of a batch is a tensor, a tuple of fields, or a list with a tensor per sample, such as its boxes. A list is sent
as one tensor of all values, with the shapes, so the number of tensors does not grow with the number of samples.
"""

from __future__ import annotations

import fcntl
import itertools
import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
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
"""One for the batch that the caller holds, one for the batch that it drops, and one for a batch that it takes ahead."""

_LEAST_BYTES = 1 << 16  # smaller tensors are copied out of the slot: keeping labels must not keep the images
_STRIDE = 1 << 36  # bytes of the file of slots from one to the next, of which a slot takes only its size
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
        self._pool: SlotPool | None = None
        self._sent: _Form | None = None  # the form of this worker's previous batch
        self._loan: tuple[int, torch.Tensor] | None = None  # the slot that a decoder writes to, and its tensor
        self._room = _ROOM_BYTES  # bytes that follow the tensor on loan, for the other tensors of a batch

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the pool, except for workers: a copy starts its own."""
        return {**self.__dict__, "_pool": self._pool if get_spawning_popen() else None}

    def start(self) -> SlotPool:
        """Make the pool for workers that are about to start, in the training process."""
        self._pool = SlotPool(self._limit)
        return self._pool

    def end(self, pool: SlotPool) -> None:
        """Drop the pool of workers that have ended; batches in use keep their memory."""
        if self._pool is pool:
            self._pool = None

    def borrow(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return uint8 memory for the images of the next batch, in a slot if one is free; an `Allocator` for decoders.

        The loan ends when the batch is sent; views in the worker that still exist may then show another batch.
        """
        size = math.prod(shape)
        if get_worker_info() is None or size < _LEAST_BYTES:
            return allocate(shape)
        self.end_loan()
        assert self._pool is not None
        slot = self._pool.acquire(aligned(size) + self._room)
        if slot is None:
            return allocate(shape)
        tensor = self._pool.memory(slot)[:size].view(shape)
        self._loan = slot, tensor
        return tensor

    def end_loan(self) -> None:
        """Free the slot that is on loan, if there is one."""
        if self._loan is not None and self._pool is not None:
            self._pool.in_use[self._loan[0]] = 0
            self._loan = None

    def place(self, tensors: Sequence[torch.Tensor]) -> tuple[int, tuple[Layout, ...]] | None:
        """Put tensors into a slot; return its number and the layouts; None if no slot is free.

        Tensors in the memory on loan stay there, and the others are put after it. If they do not fit, all are copied,
        and later slots have room for them.
        """
        assert self._pool is not None
        slot, start = None, 0
        inside = [_offset_within(tensor, self._loan and self._loan[1]) for tensor in tensors]
        if self._loan is not None and any(offset is not None for offset in inside):
            slot, lent = self._loan
            start = aligned(lent.nbytes)
            others = _bytes_of(tensor for tensor, offset in zip(tensors, inside, strict=True) if offset is None)
            self._room = max(self._room, others)
            if start + others > self._pool.memory(slot).nbytes:
                slot, start, inside = None, 0, [None] * len(tensors)
            else:
                self._loan = None
        if slot is None:
            slot = self._pool.acquire(_bytes_of(tensors))
        if slot is None:
            return None
        memory, layouts = self._pool.memory(slot), []
        for tensor, offset in zip(tensors, inside, strict=True):
            if offset is not None:
                layouts.append(Layout(offset, tuple(tensor.shape), tensor.stride(), tensor.dtype))
                continue
            layouts.append(Layout.like(tensor, start))
            layouts[-1].view(memory).copy_(tensor)
            start += aligned(tensor.nbytes)
        return slot, tuple(layouts)

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        """Yield the items; in a worker, replace batches by their handles."""
        if (info := get_worker_info()) is None:
            yield from items
            return
        for item in items:
            is_batch = isinstance(item, WorkerOutput) and isinstance(item.columns, tuple)
            yield self._handle(item, info.id) if is_batch else item
            self.end_loan()

    def _handle(self, output: WorkerOutput, worker: int) -> BatchHandle:
        tensors: list[torch.Tensor] = []
        values: list[Any] = []
        columns = _take_apart(output.columns, tensors, values)
        rest = values, output.replaced, tuple(output.counts)
        placed = self.place(tensors) if any(tensor.nbytes >= _LEAST_BYTES for tensor in tensors) else None
        if placed is None:  # copied nevertheless, because a tensor may be a view of the slot on loan
            return BatchHandle(_join, columns, [_alone(tensor) for tensor in tensors], *rest)
        slot, layouts = placed
        form = _Form(columns, layouts)
        changed, self._sent = None if form == self._sent else form, form
        assert self._pool is not None
        return BatchHandle(_open, self._pool.number, worker, slot, changed, *rest)


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


class SlotPool:
    """Slots of shared memory for the batches of all workers of a loader: parts of a file without a name.

    The file begins with the size of each slot, 0 until it is needed, and a byte per slot that is 1 while it is in use.
    A slot grows with its batches. Each process maps the slots that it meets.
    """

    def __init__(self, limit: int, number: int | None = None, file: Any = None) -> None:
        self.number = next(_numbers) if number is None else number
        self._file = file or tempfile.TemporaryFile(dir="/dev/shm", buffering=0)  # noqa: SIM115 - closed with the pool
        weakref.finalize(self, self._file.close)
        if file is None:
            self._file.truncate(9 * limit)
        header = memoryview(mmap.mmap(self._file.fileno(), 9 * limit))
        self._sizes: memoryview[int] = header[: 8 * limit].cast("q")
        self.in_use: memoryview[int] = header[8 * limit :]
        self._mapped: dict[int, mmap.mmap] = {}
        self.forms: dict[int, tuple[Any, list[_Place]]] = {}  # of each worker's last batch, in the training process
        _pools[self.number] = self

    def __reduce__(self) -> tuple[Callable[..., SlotPool], tuple[Any, ...]]:
        return _received, (len(self.in_use), self.number, reduction.DupFd(self._file.fileno()))

    def acquire(self, needed: int) -> int | None:
        """Take a free slot, if possible one that this worker has mapped; return its number, None if all are in use."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)  # a worker that is killed releases it
        try:
            numbers = (*self._mapped, *range(len(self.in_use)))  # those not made yet come last
            number: int | None = next((number for number in numbers if not self.in_use[number]), None)
            if number is None:
                return None
            self.in_use[number] = 1
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
        if self._sizes[number] < needed:
            try:
                os.posix_fallocate(self._file.fileno(), (number + 1) * _STRIDE, needed)
            except OSError:  # /dev/shm is full: torch says so, unless a smaller batch still fits
                self.in_use[number] = 0
                return None
            self._sizes[number] = needed
        return number

    def mapped(self, number: int) -> mmap.mmap:
        """Return the memory of a slot, which keeps it."""
        found = self._mapped.get(number)
        if found is None or len(found) < self._sizes[number]:
            size, start = self._sizes[number], (number + 1) * _STRIDE
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE  # a page fault for each page would take longer
            found = self._mapped[number] = mmap.mmap(self._file.fileno(), size, flags, offset=start)
        return found

    def memory(self, number: int) -> torch.Tensor:
        """Return the memory of a slot as a uint8 tensor."""
        return torch.frombuffer(self.mapped(number), dtype=torch.uint8)

    def lease(self, number: int) -> _Lease:
        """Return the memory of a slot for one batch, whose end frees the slot."""
        memory = self.mapped(number)
        lease: _Lease = _Lease(len(memory), np.uint8, memory)
        lease.in_use, lease.number, lease.owner = self.in_use, number, os.getpid()
        return lease


def _received(limit: int, number: int, descriptor: Any) -> SlotPool:
    return SlotPool(limit, number, os.fdopen(descriptor.detach(), "r+b", buffering=0))


_numbers = itertools.count()
_pools: weakref.WeakValueDictionary[int, SlotPool] = weakref.WeakValueDictionary()
"""The pools of this process's loaders."""


class BatchHandle:
    """A batch in pickled form, without the bytes of tensors in slots; unpickling it returns the batch."""

    def __init__(self, opener: Callable[..., WorkerOutput], *arguments: Any) -> None:
        self._contents = opener, arguments

    def __reduce__(self) -> tuple[Callable[..., WorkerOutput], tuple[Any, ...]]:
        return self._contents


class _Lease(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of a slot for one batch. Tensors refer to their arrays, and these to the lease; its end frees the slot.

    A subclass, because a view of a plain array refers to the object that this array is a view of.
    """

    in_use: memoryview | None = None
    number = owner = 0

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        # A fork of the training process must not free slots that its parent still uses.
        if self.in_use is not None and getpid() == self.owner:
            self.in_use[self.number] = 0


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


def _open(
    pool_number: int,
    worker: int,
    slot: int,
    form: _Form | None,
    values: Sequence[Any],
    replaced: list[str],
    counts: tuple[int, ...],
) -> WorkerOutput:
    """Return a batch in a slot, which is freed when its large tensors are no longer referenced."""
    pool = _pools[pool_number]
    if form is not None:  # the pipe keeps the order of a worker's batches
        pool.forms[worker] = form.columns, [*map(_Place.of, form.layouts)]
    columns, places = pool.forms[worker]
    lease: Any = pool.lease(slot)
    columns = _put_together(columns, [place.view(lease) for place in places], values)
    return WorkerOutput(columns, replaced, BatchCounts(*counts))


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
