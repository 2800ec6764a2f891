"""Randomness for transforms: the generators they draw from, set from a sample's key.

Transforms draw from global generators: torch's, Python's `random`, numpy's. Setting all three before each sample makes
what they draw a function of (seed, epoch, sample). The training process's own random state is put back afterwards.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


def reseed(key: int) -> None:
    """Set the three generators from a 64-bit key."""
    # Not torch.manual_seed: that one would reset the generators of the GPUs too.
    torch.default_generator.manual_seed(key)
    random.seed(key)
    np.random.seed([key & 0xFFFFFFFF, key >> 32])


@contextlib.contextmanager
def fork_rng() -> Iterator[None]:
    """Give the three generators back as they were."""
    saved = torch.default_generator.get_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(saved[0])
        random.setstate(saved[1])
        np.random.set_state(saved[2])
