"""MixUp and CutMix on the device."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it

from shardflow._validation import check_integer
from shardflow.errors import ConfigError

from . import rng
from .random_erasing import inside
from .transform import BlendStage, Pairs

_SHARE, _PLACE, _CHOICE = range(3)


class _Blend(BlendStage):
    """Blends each image with the one before it in the batch, as torchvision does.

    Args:
        alpha: Of the Beta distribution that the shares are drawn from, above 0; 1 draws them uniformly.
        num_classes: Makes soft targets, float32 [B, num_classes]; without it, targets are `Pairs`.
        per_pair: Draw a share for each pair, from the key of its first sample. Otherwise one share serves the whole
            batch, from the key of the batch's first sample.

    Raises:
        ConfigError: A value is out of its range.
    """

    def __init__(self, *, alpha: float = 1.0, num_classes: int | None = None, per_pair: bool = False) -> None:
        if not 0 < alpha < math.inf:
            raise ConfigError(f"alpha must be above 0, found {alpha}")
        if num_classes is not None:
            num_classes = check_integer("num_classes", num_classes, 1)
        self.alpha, self.num_classes, self.per_pair = alpha, num_classes, per_pair

    def __call__(
        self, images: torch.Tensor, labels: torch.Tensor, keys: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | Pairs]:
        """Return the blended images in their dtype, and their targets."""
        keys = keys if self.per_pair else keys[:1].expand(len(keys))
        kept, weight = self.shares(keys, *images.shape[-2:])
        return _blended(images, kept), _targets(labels, weight, self.num_classes)

    @abstractmethod
    def shares(self, keys: torch.Tensor, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return how much is kept of each pixel, float32 [B, 1, 1 or H, 1 or W], and of each label, float32 [B]."""


class MixUp(_Blend):
    """The weighted sum of two images (Zhang et al., "mixup: Beyond empirical risk minimization", 2017)."""

    __doc__ = f"{__doc__}\n\n{_Blend.__doc__}"

    def shares(self, keys: torch.Tensor, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ARG002
        """Return Beta(alpha, alpha) numbers, the same for all pixels of an image."""
        weight = rng.symmetric_beta(rng.fold(keys, _SHARE), self.alpha)
        return weight[:, None, None, None], weight


class CutMix(_Blend):
    """A box of one image in another (Yun et al., "CutMix: Regularization strategy", 2019)."""

    __doc__ = f"{__doc__}\n\n{_Blend.__doc__}"

    def shares(self, keys: torch.Tensor, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return 0 inside the boxes and 1 around them, and the boxes' true share of the area."""
        share = rng.symmetric_beta(rng.fold(keys, _SHARE), self.alpha)
        drawn = rng.uniforms(rng.fold(keys, _PLACE), 2)
        half = 0.5 * (1 - share).sqrt()
        left, right = _span(drawn[:, 0], half, width)
        top, bottom = _span(drawn[:, 1], half, height)
        boxes = torch.stack([left, top, right - left, bottom - top], dim=1)
        cut = (right - left) * (bottom - top) / (width * height)
        return 1 - inside(boxes, height, width).to(torch.float32), 1 - cut


class OneOf(BlendStage):
    """One of several blends, chosen with equal probability: for each batch, or each pair where a blend is `per_pair`.

    Args:
        blends: `MixUp` and `CutMix`, all with the same `num_classes` and `per_pair`.

    Raises:
        ConfigError: There are none, they differ, or something is neither.
    """

    def __init__(self, blends: Sequence[_Blend]) -> None:
        if not all(isinstance(blend, _Blend) for blend in blends):
            raise ConfigError(f"OneOf takes MixUp and CutMix, found {blends}")
        if len({(blend.num_classes, blend.per_pair) for blend in blends}) != 1:
            raise ConfigError("OneOf takes one or more blends, all with the same num_classes and per_pair")
        self.blends = tuple(blends)

    def __call__(
        self, images: torch.Tensor, labels: torch.Tensor, keys: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | Pairs]:
        """Return the blended images in their dtype, and their targets."""
        keys = keys if self.blends[0].per_pair else keys[:1].expand(len(keys))
        choice = (rng.uniforms(rng.fold(keys, _CHOICE), 1)[:, 0] * len(self.blends)).floor()
        kept, weight = self.blends[0].shares(keys, *images.shape[-2:])
        for number, blend in enumerate(self.blends[1:], start=1):
            others = blend.shares(keys, *images.shape[-2:])
            kept = torch.where((choice == number)[:, None, None, None], others[0], kept)
            weight = torch.where(choice == number, others[1], weight)
        return _blended(images, kept), _targets(labels, weight, self.blends[0].num_classes)


def _span(place: torch.Tensor, half: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return begin and end of a stretch around a random pixel, cut off at the border."""
    centre, reach = (place * length).floor(), (half * length).floor()
    return (centre - reach).clamp(min=0), (centre + reach).clamp(max=length)


def _blended(images: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    mixed = images * kept + images.roll(1, 0) * (1 - kept)
    return mixed.to(images.dtype) if images.is_floating_point() else mixed.round().to(images.dtype)


def _targets(labels: torch.Tensor, weight: torch.Tensor, num_classes: int | None) -> torch.Tensor | Pairs:
    if num_classes is None:
        return Pairs(labels, labels.roll(1, 0), weight)
    hot = F.one_hot(labels, num_classes).to(torch.float32)
    return hot * weight[:, None] + hot.roll(1, 0) * (1 - weight[:, None])
