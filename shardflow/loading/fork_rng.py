"""Random state for transforms: seeds the global generators from a sample's key, and restores them afterwards.

Transforms draw from global generators: torch's, Python's `random`, numpy's. Seeding all three before each sample makes
the random numbers of a transform a function of (seed, epoch, sample). Each generator gets a different seed: Python's
and numpy's are the same algorithm (MT19937), and equal seeds would give equal numbers.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from shardflow.order import keyed_rng

_TORCH, _PYTHON, _NUMPY = (keyed_rng.key(word) for word in ("torch", "python", "numpy"))


def reseed(key: int) -> None:
    """Seed the three generators from a 64-bit key."""
    # Not torch.manual_seed, which would also reset the generators of the GPUs.
    torch.default_generator.manual_seed(keyed_rng.fold(key, _TORCH))
    random.seed(keyed_rng.fold(key, _PYTHON))
    numpy_key = keyed_rng.fold(key, _NUMPY)
    np.random.seed([numpy_key & 0xFFFFFFFF, numpy_key >> 32])


@contextlib.contextmanager
def fork_rng(devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Restore the state of the three generators, and of torch's on CUDA devices, at the end of the body."""
    saved = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices, device_type="cuda"):
        try:
            yield
        finally:
            random.setstate(saved[0])
            np.random.set_state(saved[1])


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread, as in a worker: the last bit of sums over pixels may depend on the threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
