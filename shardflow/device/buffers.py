"""Slots: the device memory that batches are copied into, again and again.

The life of a slot, over and over:

    fill      wait (host) for the copies of the fill before: its staging memory is free again
              wait (side stream) for `consumed`: nobody reads the device memory any more
              copy into staging memory, queue the copies to the device, mark `copied`
    hand_out  wait (caller's stream) for `copied`
              make of the slot's tensors what the caller gets, none of which is the slot's memory, mark `consumed`

The host never waits for the device but in the first line, for a copy that is several batches old. What the caller gets
is the caller's, to keep as long as it likes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree

from .copy_stream import Event, Side


class Slot:
    """Room for one batch. `fill` and `hand_out` alternate; they may be called by different threads."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._leaves: list[_Leaf] = []
        self._batch: Any = None
        self._copied: Event | None = None
        self._arrived: Event | None = None
        self._consumed: Event | None = None

    def fill(self, batch: Any) -> None:
        """Queue the copies of a batch's tensors, nested in any way. The batch may be let go of afterwards."""
        if self._copied is not None:
            self._copied.wait_on_host()
        if self._consumed is not None:
            self._consumed.wait_in_side()
        leaves, self._form = _pytree.tree_flatten(batch)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self._leaves += [_Leaf(self._side) for _ in range(len(tensors) - len(self._leaves))]
        filled = iter([leaf.fill(tensor) for leaf, tensor in zip(self._leaves, tensors, strict=False)])
        self._batch = [next(filled) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self._copied = self._side.mark()

    def hand_out(self, finish: Callable[[Any], Any]) -> Any:
        """Return what `finish` makes of the batch on the device; tensors that it leaves alone are cloned."""
        assert self._copied is not None
        self._copied.wait_in_caller()
        self._arrived = self._side.mark_caller()
        lent = _pytree.tree_unflatten(self._batch, self._form)
        result = to_keep(finish(lent), lent)
        self._consumed = self._side.mark_caller()
        self._batch = None
        return result

    def retire(self) -> None:
        """Let the side stream wait for what still reads the slot, so that its memory may be let go of."""
        if self._consumed is not None:
            self._consumed.wait_in_side()

    def stages_s(self) -> float:
        """Return the device's time between the two marks around `finish`, of the last batch whose time is known."""
        if self._arrived is None or self._consumed is None:
            return 0.0
        return self._consumed.seconds_since(self._arrived) or 0.0


class _Leaf:
    """Room for one tensor of a batch: staging and device memory, which grow to the largest tensor seen."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._staging = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._memory = side.memory(0)  # on the device from the start: the first tensor may be empty
        self._source: torch.Tensor | None = None

    def fill(self, tensor: torch.Tensor) -> torch.Tensor:
        """Queue the copy of a tensor, and return the tensor that it will be."""
        size = tensor.numel() * tensor.element_size()
        if size > len(self._memory):
            self._memory = self._side.memory(size)
        target = _shaped(self._memory, tensor)
        source = tensor
        if not self._side.is_staged(tensor):
            if size > len(self._staging):
                self._staging = self._side.staging(size)
            source = _shaped(self._staging, tensor)
            source.copy_(tensor)
        self._side.copy(target, source)
        self._source = source  # must live until the copy is done, which the next fill waits for
        return target


def to_keep(batch: Any, lent: Any) -> Any:
    """Return a batch with those of its tensors cloned that lie in the memory of a lent one."""
    memory = {leaf.untyped_storage().data_ptr() for leaf in _pytree.tree_leaves(lent) if isinstance(leaf, torch.Tensor)}
    return _pytree.tree_map_only(
        torch.Tensor, lambda leaf: leaf.clone() if leaf.untyped_storage().data_ptr() in memory else leaf, batch
    )


def _shaped(memory: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the beginning of some bytes as a tensor of the shape, dtype and memory format of another one."""
    strides = torch.empty_like(like, device="meta").stride()
    flat = memory[: like.numel() * like.element_size()].view(like.dtype)
    return flat.as_strided(like.shape, strides)
