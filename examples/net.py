"""A small net, so that the examples train in seconds on a CPU."""

from __future__ import annotations

import torch
from torch import nn


class Net(nn.Sequential):
    """Two strided convolutions, global average pooling, and a linear layer, for images of any size."""

    def __init__(self, classes: int) -> None:
        super().__init__(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, classes),
        )

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:  # noqa: N803 - the suffix is the shape
        """Return logits [B, classes] of uint8 images, or of floating-point ones that are normalised already."""
        if images_BCHW.dtype == torch.uint8:
            images_BCHW = images_BCHW.float() / 127.5 - 1  # noqa: N806 - the suffix is the shape
        logits: torch.Tensor = super().forward(images_BCHW)
        return logits
