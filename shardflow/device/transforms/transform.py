"""What a device stage is: a function of a batch of images and the samples' keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch


class KeyedStage(ABC):
    """Augments each image of a batch by parameters of its own, drawn from its own key.

    So an image's pixels depend on (seed, epoch, sample) alone, whatever batch, rank or resumed run it comes in. No
    stage has state, and each is a graph without breaks to torch.compile. Two stages that are given the same keys draw
    the same numbers; `DevicePrefetcher` folds each stage's place into the keys.
    """

    needs_keys = True

    @abstractmethod
    def __call__(self, images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return the images, augmented.

        Args:
            images: [B, 3, H, W], uint8, or floating point within 0 … 1; the dtype is kept unless the stage says
                otherwise. What is computed from uint8 is rounded once, at the stage's end.
            keys: int64 [B], the samples' `random_key`, on the images' device.
        """


class Pairs(NamedTuple):
    """Targets of blended images, as pairs: loss = weight · loss(first) + (1 - weight) · loss(second).

    Attributes:
        first, second: int64 [B].
        weight: float32 [B], the share of `first`.
    """

    first: torch.Tensor
    second: torch.Tensor
    weight: torch.Tensor


class BlendStage(ABC):
    """Blends each image of a batch with another one, and its label likewise."""

    @abstractmethod
    def __call__(
        self, images: torch.Tensor, labels: torch.Tensor, keys: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | Pairs]:
        """Return the blended images and their targets.

        Args:
            images: [B, C, H, W], uint8 or floating point.
            labels: int64 [B].
            keys: int64 [B], the samples' `random_key`.
        """


def to_float(images: torch.Tensor) -> torch.Tensor:
    """Return images as floating point within 0 … 1."""
    return images if images.is_floating_point() else images.to(torch.float32) / 255


def to_dtype_of(images: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return images within 0 … 1 in the dtype that `like` has, rounded if that is uint8."""
    return images.to(like.dtype) if like.is_floating_point() else (images * 255).round().to(like.dtype)
