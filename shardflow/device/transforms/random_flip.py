"""Horizontal flips on the device."""

from __future__ import annotations

import torch

from shardflow._validation import check_probability

from . import rng
from .transform import KeyedTransform


class RandomHorizontalFlip(KeyedTransform):
    """Mirrors each image with probability `p`, 0 … 1.

    Raises:
        ConfigError: The probability is out of its range.
    """

    def __init__(self, p: float = 0.5) -> None:
        self.p = check_probability("p", p)

    def __call__(self, images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return the images [B, C, H, W] in their dtype, some mirrored."""
        flipped = rng.uniforms(keys, 1)[:, 0] < self.p
        return torch.where(flipped[:, None, None, None], images.flip(-1), images)
