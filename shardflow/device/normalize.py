"""Normalising on the device: uint8 travels, floats are made where they are needed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .stage import KeyedStage

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Normalize(KeyedStage):
    """(image - mean) / std per channel: uint8 becomes float32, floating point keeps its dtype. Draws nothing.

    Args:
        mean, std: One number per channel, for images within 0 … 1; by default ImageNet's.
    """

    needs_keys = False

    def __init__(self, mean: Sequence[float] = IMAGENET_MEAN, std: Sequence[float] = IMAGENET_STD) -> None:
        self._mean, self._std = tuple(mean), tuple(std)

    def __call__(self, images: torch.Tensor, keys: torch.Tensor | None = None) -> torch.Tensor:  # noqa: ARG002
        """Return floating-point [B, C, H, W]; the keys are not looked at."""
        # One new tensor, and the rest in place: on a CPU, fresh memory costs more than the arithmetic. Plain numbers
        # and no tensors of them: bringing one to a GPU would wait for all that is queued there.
        result = images.to(torch.float32) if images.dtype == torch.uint8 else images.clone()
        whole = 255 if images.dtype == torch.uint8 else 1
        for channel, (mean, std) in enumerate(zip(self._mean, self._std, strict=True)):
            result[:, channel].mul_(1 / (whole * std)).sub_(mean / std)
        return result
