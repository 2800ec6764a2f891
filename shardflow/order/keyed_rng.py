"""Keyed randomness: every random number is a pure function of a key, which is folded from integers and words.

Generators have no state, so nothing is saved, and any number can be computed without those before it. This is a
counter-based generator as in Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). Its hash is the
finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014, with
Stafford's "Mix13" constants), in wrapping 64-bit integer arithmetic: results are the same for every numpy version, byte
order and machine.

Keys are folded, never added: with `seed + epoch`, epoch 1 of seed 0 would have the order of epoch 0 of seed 1.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
    return value ^ (value >> 31)


def _mix_array(values: U64) -> U64:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_MIX_1)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_MIX_2)
    mixed: U64 = values ^ (values >> np.uint64(31))
    return mixed


def fold(key: int, part: int | str) -> int:
    """Return the 64-bit key of `part`, any integer or word, within `key`."""
    if isinstance(part, str):
        part = int.from_bytes(hashlib.sha256(part.encode()).digest()[:8], "little")
    return _mix((_mix((part + _GAMMA) & _MASK) + key * _GAMMA) & _MASK)


def fold_array(key: int | U64, parts: npt.NDArray[Any]) -> U64:
    """Return `fold(key, part)` for each integer in `parts`, as uint64 of the same shape.

    `key` is one key for all parts, or an array with one per part.
    """
    mixed = _mix_array(parts.astype(np.uint64) + np.uint64(_GAMMA))
    keys = np.uint64((key * _GAMMA) & _MASK) if isinstance(key, int) else key * np.uint64(_GAMMA)
    return _mix_array(mixed + keys)


def key(*parts: int | str) -> int:
    """Return the 64-bit key of `parts`: integers, and words that keep the uses of a seed apart.

    >>> key(0, "shards", 3) == fold(fold(fold(0, 0), "shards"), 3)
    True
    """
    return functools.reduce(fold, parts, 0)


def permutation(key: int, length: int) -> I64:
    """Return the permutation of 0 … length-1 that belongs to a key, as int64.

    SplitMix64 is a bijection of its counter, so the sorted values have no ties.
    """
    counters = np.arange(1, length + 1, dtype=np.uint64) * np.uint64(_GAMMA)
    return np.argsort(_mix_array(counters + np.uint64(key)))


def uniforms(keys: U64, count: int) -> npt.NDArray[np.float64]:
    """Return `count` uniform numbers in [0, 1) for each key: float64, shape [len(keys), count]."""
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GAMMA)
    bits = _mix_array(keys[:, None] + steps[None, :])
    numbers: npt.NDArray[np.float64] = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers
