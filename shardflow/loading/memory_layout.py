"""Where tensors lie that share one piece of memory: one behind the other, each from the beginning of a cache line."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

_ALIGNMENT = 64


def aligned(size: int) -> int:
    """Return a number of bytes, rounded up to whole cache lines."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def places(sizes: Iterable[int]) -> list[int]:
    """Return where successive pieces of these sizes in bytes begin, and where the last one ends."""
    return list(itertools.accumulate(map(aligned, sizes), initial=0))


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Return how many elements of memory a tensor spans, from its first one to its last one."""
    return 0 if 0 in shape else sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) + 1


class Layout(NamedTuple):
    """Where a tensor is in memory, in bytes from its beginning, and its form."""

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def like(cls, tensor: torch.Tensor, offset: int) -> Layout:
        """Return the layout of a copy of a tensor, without gaps."""
        stride = torch.empty_like(tensor, device="meta").stride()
        return cls(offset, tuple(tensor.shape), stride, tensor.dtype)

    def view(self, memory: torch.Tensor) -> torch.Tensor:
        """Return the tensor in this memory, uint8."""
        needed = extent(self.shape, self.stride) * self.dtype.itemsize
        typed = memory[self.offset :][:needed].view(self.dtype)
        return typed.as_strided(self.shape, self.stride)
