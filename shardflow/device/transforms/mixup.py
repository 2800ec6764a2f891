"""MixUp and CutMix on the device."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from numbers import Real
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name

from shardflow._validation import check_integer, check_probability
from shardflow.errors import ConfigError

from . import rng
from .transform import box_mask

_SHARE, _PLACE, _CHOICE = range(3)


class MixedTargets(NamedTuple):
    """Targets of mixed images: loss = weight · loss(first) + (1 - weight) · loss(second).

    Attributes:
        first, second: int64 [B], the labels of the two images.
        weight: float32 [B], the share of `first`, 0 … 1.
    """

    first: torch.Tensor
    second: torch.Tensor
    weight: torch.Tensor


class MixingTransform(ABC):
    """Mixes each image and label of a batch with the preceding ones, like torchvision."""

    def __init__(self, num_classes: int | None, label_smoothing: float, per_pair: bool) -> None:
        self.num_classes = None if num_classes is None else check_integer("num_classes", num_classes, 1)
        check_probability("label_smoothing", label_smoothing)
        if label_smoothing and num_classes is None:
            raise ConfigError("label_smoothing needs num_classes; with MixedTargets, give it to the loss")
        self.label_smoothing, self.per_pair = label_smoothing, per_pair

    def __call__(
        self, images: torch.Tensor, labels: torch.Tensor, keys: torch.Tensor, valid: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | MixedTargets]:
        """Return the mixed images in their dtype, and their targets.

        Args:
            images: [B, C, H, W], uint8 or floating point.
            labels: int64 [B]; or multi-hot [B, C] of any dtype, which become soft targets, float32 [B, C].
            keys: int64 [B], the samples' `random_key`.
            valid: bool [B], False for padding, which is not mixed into other images.

        Raises:
            ConfigError: The labels have another shape or number of classes, or multi-hot labels would be smoothed.
        """
        is_tensor = isinstance(labels, torch.Tensor)
        if not is_tensor or (labels.dim() == 2 and labels.shape[1] == 1 and not labels.is_floating_point()):
            found = f"{type(labels).__name__} {list(getattr(labels, 'shape', ()))}"
            raise ConfigError(
                f"expected labels [B] or [B, classes], found {found}; to use MixUp and CutMix, combine them as "
                "OneOf([...])"
            )
        keys = keys if self.per_pair else keys[:1].expand(len(keys))
        kept, weight = self.shares(keys, *images.shape[-2:])
        before = torch.arange(len(images), device=images.device).roll(1) if valid is None else _valid_before(valid)
        mixed = images * kept + images[before] * (1 - kept)
        mixed = mixed.to(images.dtype) if images.is_floating_point() else mixed.round().to(images.dtype)
        if labels.dim() == 2:
            if self.num_classes not in (None, labels.shape[1]) or self.label_smoothing:
                raise ConfigError(
                    f"labels of several classes, {list(labels.shape)}, do not fit num_classes={self.num_classes} and "
                    f"label_smoothing={self.label_smoothing}; leave these out"
                )
            targets = labels.to(torch.float32)
        elif self.num_classes is None:
            return mixed, MixedTargets(labels, labels[before], weight)
        else:
            targets = F.one_hot(labels, self.num_classes).to(torch.float32)
            targets = targets * (1 - self.label_smoothing) + self.label_smoothing / self.num_classes
        return mixed, targets * weight[:, None] + targets[before] * (1 - weight[:, None])

    @abstractmethod
    def shares(self, keys: torch.Tensor, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the share to keep of each pixel, float32 [B, 1, 1 or H, 1 or W], and of each label, float32 [B]."""


class _BetaMixing(MixingTransform):
    """Mixes each image of a batch with the preceding one, like torchvision.

    Args:
        alpha: Parameter of the Beta distribution of the shares, above 0; 1 is the uniform distribution.
        num_classes: Return soft targets, float32 [B, num_classes], instead of `MixedTargets`.
        label_smoothing: Share of the soft targets that is spread over all classes, 0 … 1, as in PyTorch's losses.
        per_pair: Draw a share per pair of images, from the key of the first; otherwise one share per batch, from the
            key of its first sample.

    Raises:
        ConfigError: A value is out of its range.
    """

    def __init__(
        self,
        *,
        alpha: float = 1.0,
        num_classes: int | None = None,
        label_smoothing: float = 0.0,
        per_pair: bool = False,
    ) -> None:
        if not isinstance(alpha, Real | float) or not 0 < alpha < math.inf:
            raise ConfigError(f"alpha must be above 0, found {alpha}")
        super().__init__(num_classes, label_smoothing, per_pair)
        self.alpha = alpha


class MixUp(_BetaMixing):
    """A weighted sum of two images (Zhang et al., "mixup: Beyond empirical risk minimization", 2017)."""

    __doc__ = f"{__doc__}\n\n{inspect.cleandoc(_BetaMixing.__doc__ or '')}"

    def shares(self, keys: torch.Tensor, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ARG002
        """Return Beta(alpha, alpha) numbers, the same for all pixels of an image."""
        weight = rng.symmetric_beta(rng.fold(keys, _SHARE), self.alpha)
        return weight[:, None, None, None], weight


class CutMix(_BetaMixing):
    """A box of one image in another (Yun et al., "CutMix: Regularization strategy", 2019)."""

    __doc__ = f"{__doc__}\n\n{inspect.cleandoc(_BetaMixing.__doc__ or '')}"

    def shares(self, keys: torch.Tensor, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return 0 inside the boxes and 1 outside, and the exact share of the area outside."""
        share = rng.symmetric_beta(rng.fold(keys, _SHARE), self.alpha)
        uniforms = rng.uniforms(rng.fold(keys, _PLACE), 2)
        half = 0.5 * (1 - share).sqrt()
        left, right = _span(uniforms[:, 0], half, width)
        top, bottom = _span(uniforms[:, 1], half, height)
        boxes = torch.stack([left, top, right - left, bottom - top], dim=1)
        cut = (right - left) * (bottom - top) / (width * height)
        return 1 - box_mask(boxes, height, width).to(torch.float32), 1 - cut


class OneOf(MixingTransform):
    """One of several transforms, chosen with equal probability: per batch, or per pair if they are `per_pair`.

    >>> mix = shardflow.device.OneOf([shardflow.device.MixUp(alpha=0.2), shardflow.device.CutMix()])
    >>> images, targets = mix(images, labels, keys)  # a `MixedTargets`

    Args:
        transforms: `MixUp` and `CutMix`, one or more, with the same `num_classes`, `label_smoothing` and `per_pair`.

    Raises:
        ConfigError: The list is empty, they differ in these arguments, or one is neither `MixUp` nor `CutMix`.
    """

    def __init__(self, transforms: Sequence[MixUp | CutMix]) -> None:
        if not isinstance(transforms, Sequence) or not all(isinstance(each, _BetaMixing) for each in transforms):
            raise ConfigError(f"OneOf takes MixUp and CutMix, found {transforms}")
        settings = {(each.num_classes, each.label_smoothing, each.per_pair) for each in transforms}
        if len(settings) != 1:
            raise ConfigError(
                "OneOf takes one or more transforms, with the same num_classes, label_smoothing and per_pair"
            )
        super().__init__(*settings.pop())
        self.transforms = tuple(transforms)

    def shares(self, keys: torch.Tensor, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the shares of the chosen transform."""
        choice = (rng.uniforms(rng.fold(keys, _CHOICE), 1)[:, 0] * len(self.transforms)).floor()
        kept, weight = self.transforms[0].shares(keys, height, width)
        for number, transform in enumerate(self.transforms[1:], start=1):
            others = transform.shares(keys, height, width)
            kept = torch.where((choice == number)[:, None, None, None], others[0], kept)
            weight = torch.where(choice == number, others[1], weight)
        return kept, weight


def _span(centre: torch.Tensor, half: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return begin and end in pixels of an interval around `centre`, clipped at the border; inputs in 0 … 1."""
    pixel, reach = (centre * length).floor(), (half * length).floor()
    return (pixel - reach).clamp(min=0), (pixel + reach).clamp(max=length)


def _valid_before(valid: torch.Tensor) -> torch.Tensor:
    """Return the valid row before each row, the last valid row for the first: int64 [B]."""
    rows = torch.where(valid, torch.arange(len(valid), device=valid.device), -1)
    latest = rows.cummax(0).values.roll(1)
    return torch.where(latest < 0, latest[:1], latest)
