"""Masks resized by exact arithmetic: the reference for all who resize them."""

from __future__ import annotations

import math
from fractions import Fraction

import torch


def centres(source: int, resized: int) -> list[Fraction]:
    """Return where the centre of each pixel of a resized side lies among the pixels of the source."""
    return [Fraction(2 * pixel + 1, 2) * Fraction(source, resized) for pixel in range(resized)]


def resize_mask(mask: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return a mask [..., H, W] resized: each pixel is the one at its centre, of two the right or lower one."""
    rows, columns = (
        [math.floor(centre) for centre in centres(*sides)]
        for sides in ((mask.shape[-2], height), (mask.shape[-1], width))
    )
    return mask[..., rows, :][..., columns]
