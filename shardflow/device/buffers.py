"""Buffers: device memory that batches are copied into, again and again.

The life of a buffer, over and over:

    fill      the host waits for `copied` of the previous fill: the staging memory is free again
              the copy stream waits for `consumed`: the device memory is no longer read
              copy into staging memory, queue the copies to the device, record `copied`
    consume   the compute stream waits for `copied`
              transform the batch, clone the tensors that still lie in the buffer, record `consumed`

The host waits for the device in the first line alone, for a copy that is several batches old. What `consume` returns
never lies in the buffer, so the caller may keep it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree

from .copy_stream import CopyStream, Event, EventTimer


class BatchBuffer:
    """Memory for one batch. `fill` and `consume` alternate; two threads may call them."""

    def __init__(self, copy_stream: CopyStream) -> None:
        self._copy_stream = copy_stream
        self._tensors: list[_TensorBuffer] = []
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
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self._tensors += [_TensorBuffer(self._copy_stream) for _ in range(len(tensors) - len(self._tensors))]
        copies = iter([buffer.fill(tensor) for buffer, tensor in zip(self._tensors, tensors, strict=False)])
        self._batch = [next(copies) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self._copied = self._copy_stream.record_copies()

    def consume(self, transform: Callable[[Any], Any], timer: EventTimer | None = None) -> Any:
        """Return the transformed batch, on the device; tensors that the transform left alone are cloned.

        The device's time for that is added to the timer.
        """
        assert self._copied is not None
        self._copied.block_compute_stream()
        begin = self._copy_stream.record_compute()
        batch = _pytree.tree_unflatten(self._batch, self._structure)
        try:
            result = clone_shared(transform(batch), batch)
        finally:  # work that a failed transform queued still reads the memory
            self._consumed = self._copy_stream.record_compute()
        if timer is not None:
            timer.add(begin, self._consumed)
        self._batch = None
        return result

    def retire(self) -> None:
        """Let the copy stream wait for the last read, so that the memory can be freed."""
        if self._consumed is not None:
            self._consumed.block_copy_stream()


class _TensorBuffer:
    """Staging and device memory for one tensor of a batch, which grow to the largest tensor so far."""

    def __init__(self, copy_stream: CopyStream) -> None:
        self._copy_stream = copy_stream
        self._staging = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._memory = copy_stream.device_memory(0)  # on the device from the start: the first tensor may be empty
        self._source: torch.Tensor | None = None

    def fill(self, tensor: torch.Tensor) -> torch.Tensor:
        """Queue the copy of a tensor, and return the tensor on the device."""
        size = tensor.numel() * tensor.element_size()
        if size > len(self._memory):
            self._memory = self._copy_stream.device_memory(size)
        target = _view_like(self._memory, tensor)
        if self._copy_stream.needs_staging(tensor):
            if size > len(self._staging):
                self._staging = self._copy_stream.staging_memory(size)
            tensor = _view_like(self._staging, tensor).copy_(tensor)
        self._copy_stream.copy(target, tensor)
        self._source = tensor  # keeps it alive until the next fill, which waits for the copy
        return target


def clone_shared(batch: Any, buffer: Any) -> Any:
    """Return a batch in which tensors that share memory with tensors of `buffer` are cloned; both nested in any way."""
    tensors = (leaf for leaf in _pytree.tree_leaves(buffer) if isinstance(leaf, torch.Tensor))
    shared = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    return _pytree.tree_map_only(
        torch.Tensor, lambda leaf: leaf.clone() if leaf.untyped_storage().data_ptr() in shared else leaf, batch
    )


def _view_like(memory: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    strides = torch.empty_like(like, device="meta").stride()
    flat = memory[: like.numel() * like.element_size()].view(like.dtype)
    return flat.as_strided(like.shape, strides)
