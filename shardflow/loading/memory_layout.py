"""The layout of tensors that share one block of memory: one after the other, each aligned to a cache line."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

_ALIGNMENT = 64


def aligned(size: int) -> int:
    """Return a number of bytes rounded up to whole cache lines."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def places(sizes: Iterable[int]) -> list[int]:
    """Return the offsets of consecutive pieces of these sizes, in bytes, and the end of the last piece."""
    return list(itertools.accumulate(map(aligned, sizes), initial=0))


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Return how many elements of memory a tensor spans, from its first to its last element."""
    return 0 if 0 in shape else sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) + 1


class Layout(NamedTuple):
    """The offset of a tensor in a block of memory, in bytes, and its shape, strides and dtype."""

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def like(cls, tensor: torch.Tensor, offset: int) -> Layout:
        """Return the layout of a dense copy of a tensor."""
        stride = torch.empty_like(tensor, device="meta").stride()
        return cls(offset, tuple(tensor.shape), stride, tensor.dtype)

    def view(self, memory: torch.Tensor) -> torch.Tensor:
        """Return the tensor as a view of this memory, which is uint8."""
        needed = extent(self.shape, self.stride) * self.dtype.itemsize
        typed = memory[self.offset :][:needed].view(self.dtype)
        return typed.as_strided(self.shape, self.stride)
