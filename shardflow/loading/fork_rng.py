"""Random state for transforms: seeds the global generators from a sample's key, and restores them afterwards.

Transforms draw from global generators: torch's, Python's `random`, numpy's. Seeding all three before each sample makes
the random numbers of a transform a function of (seed, epoch, sample).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


def reseed(key: int) -> None:
    """Seed the three generators from a 64-bit key."""
    # Not torch.manual_seed, which would reset the generators of the GPUs too.
    torch.default_generator.manual_seed(key)
    random.seed(key)
    np.random.seed([key & 0xFFFFFFFF, key >> 32])


@contextlib.contextmanager
def fork_rng() -> Iterator[None]:
    """Restore the state of the three generators at the end of the body."""
    saved = torch.default_generator.get_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(saved[0])
        random.setstate(saved[1])
        np.random.set_state(saved[2])
