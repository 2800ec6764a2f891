"""Normalising on the device: uint8 travels, floats are made where they are needed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shardflow.errors import ConfigError

from .transform import KeyedStage

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Normalize(KeyedStage):
    """(image - mean) / std per channel: uint8 becomes float32, floating point keeps its dtype. Draws nothing.

    Args:
        mean, std: One number per channel, or one for all of them, for images within 0 … 1; by default ImageNet's.

    Raises:
        ConfigError: They are not as many as each other, or as the images' channels, or a deviation is not above 0.
    """

    needs_keys = False

    def __init__(self, mean: Sequence[float] = IMAGENET_MEAN, std: Sequence[float] = IMAGENET_STD) -> None:
        self._mean, self._std = tuple(mean), tuple(std)
        if not self._mean or len(self._mean) != len(self._std) or not all(value > 0 for value in self._std):
            raise ConfigError(f"mean and std must be as many, and std above 0, found {mean} and {std}")

    def __call__(self, images: torch.Tensor, keys: torch.Tensor | None = None) -> torch.Tensor:  # noqa: ARG002
        """Return floating-point [B, C, H, W]; the keys are not looked at."""
        channels = images.shape[1]
        if len(self._mean) not in (1, channels):
            raise ConfigError(f"Normalize has {len(self._mean)} means, and the images have {channels} channels")
        statistics = list(zip(self._mean, self._std, strict=True)) * (channels if len(self._mean) == 1 else 1)
        # One new tensor, and the rest in place: on a CPU, fresh memory costs more than the arithmetic. Plain numbers
        # and no tensors of them: bringing one to a GPU would wait for all that is queued there.
        result = images.to(torch.float32) if images.dtype == torch.uint8 else images.clone()
        whole = 255 if images.dtype == torch.uint8 else 1
        for channel, (mean, std) in enumerate(statistics):
            result[:, channel].mul_(1 / (whole * std)).sub_(mean / std)
        return result
