"""Bin packing: first fit decreasing, for many groups of items at once.

First fit decreasing fills one bin after the other, each with the longest remaining item that fits, until none fits.
Many groups, within a limit of memory, take each step together, which shares numpy's cost per call. Items of one length
are counted, not listed, and a bin is repeated while the counts allow it, so a group of millions of items takes few
steps.

The number of bins that a group needs depends on its lengths, not on their order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .keyed_rng import I64

_KINDS = 1 << 22
"""Kinds of items, pairs of group and length, that are counted at a time."""


def first_fit_decreasing(lengths: npt.NDArray[Any], capacity: int, groups: npt.NDArray[Any]) -> I64:
    """Return the bin of each item, int64 [N], numbered group by group without gaps.

    Items of one length are assigned in their order.

    Args:
        lengths: Integers 1 … `capacity`, [N].
        capacity: Maximum sum of the lengths in a bin.
        groups: The group of each item, an integer from 0; items of different groups never share a bin.
    """
    if not len(lengths):
        return np.empty(0, dtype=np.int64)
    sizes, width, ranks = _ranked(lengths, capacity)
    kinds = groups.astype(np.int64) * width + ranks
    order = np.argsort(kinds, kind="stable")
    kinds, count = kinds[order], int(groups.max()) + 1
    steps: list[tuple[I64, I64, I64, I64]] = []
    used = np.zeros(count, dtype=np.int64)
    at_a_time = max(1, _KINDS // width)
    for begin in range(0, count, at_a_time):
        end = min(begin + at_a_time, count)
        some = kinds[slice(*np.searchsorted(kinds, [begin * width, end * width]))] - begin * width
        found, used[begin:end] = _steps(np.bincount(some, minlength=(end - begin) * width), sizes, capacity)
        steps += [(kind + begin * width, taken, times, first) for kind, taken, times, first in found]
    kind, taken, times, first = (np.concatenate(column) for column in zip(*steps, strict=True))
    by_kind = np.argsort(kind, kind="stable")
    taken, times, first, group = taken[by_kind], times[by_kind], first[by_kind], kind[by_kind] // width
    first += (np.cumsum(used) - used)[group]
    counts = taken * times
    within = np.arange(len(lengths)) - np.repeat(np.cumsum(counts) - counts, counts)
    bins = np.empty(len(lengths), dtype=np.int64)
    bins[order] = np.repeat(first, counts) + within // np.repeat(taken, counts)
    return bins


def bins_needed(lengths: npt.NDArray[Any], capacity: int) -> int:
    """Return the number of bins that one group of items needs."""
    sizes, width, ranks = _ranked(lengths, capacity)
    return int(_steps(np.bincount(ranks, minlength=width), sizes, capacity)[1][0])


def _ranked(lengths: npt.NDArray[Any], capacity: int) -> tuple[I64, int, I64]:
    """Return the different lengths, ascending, their number plus one, and the rank of each item, from 1."""
    if capacity > len(lengths):
        sizes, ranks = np.unique(lengths, return_inverse=True)
        return sizes.astype(np.int64), len(sizes) + 1, ranks.reshape(-1) + 1
    sizes = np.flatnonzero(np.bincount(lengths))
    table = np.zeros(capacity + 1, dtype=np.int64)
    table[sizes] = np.arange(1, len(sizes) + 1)
    return sizes, len(sizes) + 1, table[lengths]


def _steps(left: I64, sizes: I64, capacity: int) -> tuple[list[tuple[I64, I64, I64, I64]], I64]:
    """Return the steps, and the number of bins of each group.

    Args:
        left: Number of items of each kind; changed in place. A group has a kind without items, then one for each of
            `sizes`.
        sizes: The lengths, ascending.
        capacity: The capacity of a bin.

    Returns:
        For each step: kinds, items of each kind per bin, number of equal bins, and the first of these in its group.
    """
    groups = len(left) // (width := len(sizes) + 1)
    firsts = np.arange(groups) * width
    steps: list[tuple[I64, I64, I64, I64]] = []
    used, filling = np.zeros(groups, dtype=np.int64), np.arange(groups)
    next_below, most = _Below(left, firsts), int(left.sum())
    while len(filling):
        parts: list[tuple[I64, I64, I64]] = []
        group, room = filling, np.full(len(filling), capacity)
        below = firsts[group] + len(sizes)
        repeats = np.full(groups, most)
        while len(group):
            kind = next_below(np.minimum(below, firsts[group] + np.searchsorted(sizes, room, side="right")))
            fits = kind > firsts[group]
            group, room, kind = group[fits], room[fits], kind[fits]
            size = sizes[kind - firsts[group] - 1]
            taken = np.minimum(left[kind], room // size)
            repeats[group] = np.minimum(repeats[group], left[kind] // taken)
            room, below = room - taken * size, kind - 1
            parts.append((group, kind, taken))
        for group, kind, taken in parts:
            left[kind] -= taken * repeats[group]
            next_below.forget(kind[left[kind] == 0])
            steps.append((kind, taken, repeats[group], used[group]))
        filling = parts[0][0]  # the groups that had an item left
        used[filling] += repeats[filling]
    return steps, used


class _Below:
    """Finds the nearest kind at or below a kind that has items left: a union-find with path compression."""

    def __init__(self, left: I64, firsts: I64) -> None:
        there = left > 0
        there[firsts] = True
        self._next = np.maximum.accumulate(np.where(there, np.arange(len(left)), 0))

    def __call__(self, kinds: I64) -> I64:
        found = self._next[kinds]
        while (further := self._next[found] != found).any():
            found = np.where(further, self._next[self._next[found]], found)
        self._next[kinds] = found
        return found

    def forget(self, kinds: I64) -> None:
        """Skip these kinds from now on."""
        self._next[kinds] = kinds - 1
