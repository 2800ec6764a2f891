"""The bases of most transforms: functions of a batch of images and of the samples' keys."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from shardflow.geometry.crops import Crops, Sizes


class KeyedTransform(ABC):
    """Augments each image of a batch with parameters that are drawn from the sample's key.

    So the pixels of an image depend only on (seed, epoch, sample), in any batch, on any rank and in a resumed run. A
    transform has no state, and torch.compile makes one graph of it. Two transforms draw the same numbers from the same
    keys; `device.Prefetcher` folds the position of each transform into the keys.
    """

    needs_keys = True

    @abstractmethod
    def __call__(self, images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return the images, augmented.

        Args:
            images: [B, 3, H, W], uint8, or floating point within 0 … 1. The result has their dtype unless the
                transform's documentation names another one. Results from uint8 are rounded once, at the end.
            keys: int64 [B], the samples' `random_key`, on the device of the images.
        """


class SpatialTransform(KeyedTransform):
    """A transform that masks, boxes and keypoints follow: it moves pixels, or replaces some of them.

    `device.Prefetcher` draws the parameters once for an image and all that follows it.
    """

    moves_pixels = True  # whether pixels change their places
    crops_images = True  # whether parts of the images are cut off

    @abstractmethod
    def make_params(self, keys: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """Return a row of parameters for each of the keys, int64 [B], for images of this size: float32 [B, ...]."""

    @abstractmethod
    def transform_images(self, images: torch.Tensor, params: torch.Tensor) -> torch.Tensor:
        """Return the images [B, C, H, W], transformed."""

    @abstractmethod
    def transform_masks(self, masks: torch.Tensor, params: torch.Tensor) -> torch.Tensor:
        """Return masks [B, C, H, W] of the size of the images, transformed, each pixel with a value that it had."""

    @abstractmethod
    def crops(self, params: torch.Tensor, sizes: Sizes) -> Crops | None:
        """Return how images of these sizes are cropped, all on the host; None if pixels stay where they are."""

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
