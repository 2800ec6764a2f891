"""Normalization on the device, so that batches are copied as uint8."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from shardflow.errors import ConfigError

from .transform import KeyedTransform

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Normalize(KeyedTransform):
    """(image - mean) / std per channel; uint8 becomes float32, floating point keeps its dtype. Needs no keys.

    Args:
        mean, std: One number per channel, or one for all channels, for images within 0 … 1; std above 0. The defaults
            are ImageNet's.

    Raises:
        ConfigError: `mean` and `std` have different lengths, or a standard deviation is not above 0.
    """

    needs_keys = False

    def __init__(
        self, mean: float | Iterable[float] = IMAGENET_MEAN, std: float | Iterable[float] = IMAGENET_STD
    ) -> None:
        given = (each if isinstance(each, Iterable) else (each,) for each in (mean, std))
        try:
            self._mean, self._std = (tuple(map(float, each)) for each in given)
        except (TypeError, ValueError):
            found = f"mean and std must be numbers, found {mean!r} and {std!r}"
            raise ConfigError(f"{found}; a split or subset has none: take those of the packed dataset") from None
        if not self._mean or len(self._mean) != len(self._std) or not all(value > 0 for value in self._std):
            raise ConfigError(f"mean and std must have the same length, and std be above 0, found {mean} and {std}")

    def __call__(self, images: torch.Tensor, keys: torch.Tensor | None = None) -> torch.Tensor:  # noqa: ARG002
        """Return floating-point images [B, C, H, W]; `keys` is ignored.

        Raises:
            ConfigError: The images do not have as many channels as there are means.
        """
        channels = images.shape[1]
        if len(self._mean) not in (1, channels):
            raise ConfigError(f"Normalize has {len(self._mean)} means, but the images have {channels} channels")
        statistics = list(zip(self._mean, self._std, strict=True)) * (channels if len(self._mean) == 1 else 1)
        # In place after one new tensor, because fresh memory costs more than the arithmetic on a CPU. Python numbers,
        # because copying a tensor to a GPU would wait for its queued work.
        result = images.to(torch.float32) if images.dtype == torch.uint8 else images.clone()
        whole = 255 if images.dtype == torch.uint8 else 1
        for channel, (mean, std) in enumerate(statistics):
            result[:, channel].mul_(1 / (whole * std)).sub_(mean / std)
        return result
