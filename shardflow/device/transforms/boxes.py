"""Random boxes in images: their sizes as torchvision draws them, and masks of their pixels."""

from __future__ import annotations

import math

import torch

from . import rng

TRIES = 10
"""Sizes are drawn until one fits into the image, at most so many times: torchvision's number."""


def draw_sizes(
    uniforms: torch.Tensor, area: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two side lengths of random boxes, float32 [B, TRIES] of whole numbers; `ratio` is first / second."""
    areas = area * rng.between(uniforms[:, :TRIES], *scale)
    ratios = torch.exp(rng.between(uniforms[:, TRIES : 2 * TRIES], math.log(ratio[0]), math.log(ratio[1])))
    return (areas * ratios).sqrt().round(), (areas / ratios).sqrt().round()


def first_fit(fits: torch.Tensor, *sizes: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return whether a try fits, bool [B], then each of the sizes, [B, TRIES], at the first try that does, [B]."""
    first = fits.to(torch.int64).argmax(1, keepdim=True)
    return fits.any(1), *(size.gather(1, first)[:, 0] for size in sizes)


def box_mask(boxes: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return which pixels lie in the boxes, [B, 4] of x, y, width, height: bool [B, 1, H, W]."""
    x, y, w, h = boxes[:, :, None].unbind(1)
    columns = torch.arange(width, device=boxes.device)[None]
    rows = torch.arange(height, device=boxes.device)[None]
    in_columns, in_rows = (columns >= x) & (columns < x + w), (rows >= y) & (rows < y + h)
    return (in_rows[:, :, None] & in_columns[:, None, :])[:, None]
