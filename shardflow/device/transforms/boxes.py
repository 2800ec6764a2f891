"""Boxes on the device: masks of their pixels."""

from __future__ import annotations

import torch


def box_mask(boxes: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return which pixels lie in the boxes, [B, 4] of x, y, width, height: bool [B, 1, H, W]."""
    x, y, w, h = boxes[:, :, None].unbind(1)
    columns = torch.arange(width, device=boxes.device)[None]
    rows = torch.arange(height, device=boxes.device)[None]
    in_columns, in_rows = (columns >= x) & (columns < x + w), (rows >= y) & (rows < y + h)
    return (in_rows[:, :, None] & in_columns[:, None, :])[:, None]
