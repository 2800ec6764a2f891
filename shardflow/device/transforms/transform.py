"""The base classes of transforms: functions of a batch of images and the samples' keys."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from shardflow.geometry.crops import Crops, Sizes


class KeyedTransform(ABC):
    """Augments each image of a batch with parameters drawn from the sample's key.

    The pixels of an image thus depend only on (seed, epoch, sample), in any batch, on any rank and after a resume. A
    transform has no state, and torch.compile makes one graph of it. Transforms draw the same numbers from the same
    keys, so `device.Prefetcher` folds the position of each transform into the keys.
    """

    needs_keys = True

    @abstractmethod
    def __call__(self, images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return the images, augmented.

        Args:
            images: [B, 3, H, W], uint8, or floating point within 0 … 1. The result has their dtype unless the
                transform documents another. Results from uint8 are rounded once, at the end.
            keys: int64 [B], the samples' `random_key`, on the device of the images.
        """


class SpatialTransform(KeyedTransform):
    """A transform that moves or replaces pixels, and that masks, boxes and keypoints follow.

    `device.Prefetcher` draws the parameters once for an image and its annotations.
    """

    moves_pixels = True  # whether pixels move
    crops_images = True  # whether parts of the images are cut off

    @abstractmethod
    def make_params(self, keys: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """Return a row of parameters per key, int64 [B], for images of this size: float32 [B, ...]."""

    @abstractmethod
    def transform_images(self, images: torch.Tensor, params: torch.Tensor) -> torch.Tensor:
        """Return the images [B, C, H, W], transformed."""

    @abstractmethod
    def transform_masks(self, masks: torch.Tensor, params: torch.Tensor) -> torch.Tensor:
        """Return the masks [B, C, H, W], transformed with the images, without interpolating values."""

    @abstractmethod
    def crops(self, params: torch.Tensor, sizes: Sizes) -> Crops | None:
        """Return the crops of images of these sizes, on the host; None if pixels do not move."""

    def __call__(self, images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return the images, augmented; see `KeyedTransform`."""
        return self.transform_images(images, self.make_params(keys, *images.shape[-2:]))


def to_float(images: torch.Tensor) -> torch.Tensor:
    """Return images as floating point within 0 … 1."""
    return images if images.is_floating_point() else images.to(torch.float32) / 255


def to_dtype_of(images: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return images within 0 … 1 in the dtype of `like`, rounded if that is uint8."""
    return images.to(like.dtype) if like.is_floating_point() else (images * 255).round().to(like.dtype)


def box_mask(boxes: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return which pixels are in the boxes, [B, 4] of x, y, width, height: bool [B, 1, H, W]."""
    x, y, w, h = boxes[:, :, None].unbind(1)
    columns = torch.arange(width, device=boxes.device)[None]
    rows = torch.arange(height, device=boxes.device)[None]
    in_columns, in_rows = (columns >= x) & (columns < x + w), (rows >= y) & (rows < y + h)
    return (in_rows[:, :, None] & in_columns[:, None, :])[:, None]
