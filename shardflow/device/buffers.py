"""Buffers: reused device memory for batches.

The cycle of a buffer:

    fill      the host waits for `copied` of the previous fill: the staging memory is free again
              the copy stream waits for `consumed`: the device memory is no longer read
              copy into staging memory, queue the copies to the device, record `copied`
    consume   the compute stream waits for `copied`
              transform the batch, clone the tensors that are still in the buffer, record `consumed`

The host waits for the device only in the first line, for a copy that is several batches old. The result of `consume` is
never in the buffer, so the caller may keep it.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree

from shardflow.loading.memory_layout import Layout, places

from .copy_stream import CopyStream, Event, EventTimer

_SMALL_BYTES = 1 << 16  # up to this size, another copy on the host costs less than a separate copy to the device


class BatchBuffer:
    """Memory for one batch. `fill` and `consume` alternate; two threads may call them.

    Tensors below 64 KiB, such as the boxes of each image, are copied together, so a batch takes few copies.
    """

    def __init__(self, copy_stream: CopyStream) -> None:
        self._copy_stream = copy_stream
        self._small = _DeviceMemory(copy_stream)
        self._large: list[_DeviceMemory] = []
        self._batch: Any = None
        self._copied: Event | None = None
        self._consumed: Event | None = None

    def fill(self, batch: Any) -> None:
        """Queue the copies of a batch's tensors, nested in any way. The caller need not keep the batch."""
        if self._copied is not None:
            self._copied.synchronize()
        if self._consumed is not None:
            self._consumed.block_copy_stream()
        leaves, self._structure = _pytree.tree_flatten(batch)
        tensors = [number for number, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        small = [number for number in tensors if _is_small(leaves[number])]
        large = [number for number in tensors if not _is_small(leaves[number])]
        self._large += [_DeviceMemory(self._copy_stream) for _ in range(len(large) - len(self._large))]
        groups = [(self._small, small)] if small else []
        groups += [(memory, [number]) for memory, number in zip(self._large, large, strict=False)]
        for memory, numbers in groups:
            copies = memory.fill([leaves[number] for number in numbers])
            for number, copy in zip(numbers, copies, strict=True):
                leaves[number] = copy
        self._batch = leaves
        self._copied = self._copy_stream.record_copies()

    def consume(self, transform: Callable[[Any], Any], timer: EventTimer | None = None) -> Any:
        """Return the transformed batch on the device; tensors that still share the buffer's memory are cloned.

        The device time of the transform and clones is added to `timer`.
        """
        assert self._copied is not None
        self._copied.block_compute_stream()
        begin = self._copy_stream.record_compute()
        batch = _pytree.tree_unflatten(self._batch, self._structure)
        try:
            result = clone_shared(transform(batch), batch)
        finally:  # work queued by a failed transform still reads the memory
            self._consumed = self._copy_stream.record_compute()
        if timer is not None:
            timer.add(begin, self._consumed)
        self._batch = None
        return result

    def retire(self) -> None:
        """Make the copy stream wait for the last read, so that the memory can be freed."""
        if self._consumed is not None:
            self._consumed.block_copy_stream()


class _DeviceMemory:
    """Staging and device memory for tensors that are copied together; it grows as needed."""

    def __init__(self, copy_stream: CopyStream) -> None:
        self._copy_stream = copy_stream
        self._staging = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._memory = copy_stream.device_memory(0)  # on the device from the start: the first tensor may be empty
        self._source: torch.Tensor | None = None

    def fill(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Queue the copy of one tensor, or of several host tensors; return the tensors on the device."""
        *begins, size = places(tensor.nbytes for tensor in tensors)
        if size > len(self._memory):
            self._memory = self._copy_stream.device_memory(size)
        layouts = [Layout.like(tensor, begin) for begin, tensor in zip(begins, tensors, strict=True)]
        targets = [layout.view(self._memory) for layout in layouts]
        if len(tensors) == 1 and not self._copy_stream.needs_staging(tensors[0]):
            target, source = targets[0], tensors[0]
        else:
            if size > len(self._staging):
                self._staging = self._copy_stream.staging_memory(size)
            for layout, tensor in zip(layouts, tensors, strict=True):
                layout.view(self._staging).copy_(tensor)
            target, source = self._memory[:size], self._staging[:size]
        self._copy_stream.copy(target, source)
        self._source = source  # keeps it alive until the next fill, which waits for the copy
        return targets


def clone_shared(batch: Any, buffer: Any) -> Any:
    """Return a batch, nested in any way, whose tensors that share memory with tensors of `buffer` are cloned.

    Memory shared by several tensors of `buffer` is cloned once.
    """
    tensors = (leaf for leaf in _pytree.tree_leaves(buffer) if isinstance(leaf, torch.Tensor))
    sharing = collections.Counter(tensor.untyped_storage().data_ptr() for tensor in tensors)
    clones: dict[int, torch.Tensor] = {}

    def cloned(leaf: torch.Tensor) -> torch.Tensor:
        storage = leaf.untyped_storage()
        address = storage.data_ptr()
        if not leaf.numel() or address not in sharing:
            return leaf
        if sharing[address] == 1:
            return leaf.clone()
        if address not in clones:
            clones[address] = leaf.new_empty(0, dtype=torch.uint8).set_(storage).clone()
        memory = clones[address].untyped_storage()
        return leaf.new_empty(0).set_(memory, leaf.storage_offset(), leaf.size(), leaf.stride())

    return _pytree.tree_map_only(torch.Tensor, cloned, batch)


def _is_small(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.nbytes < _SMALL_BYTES
