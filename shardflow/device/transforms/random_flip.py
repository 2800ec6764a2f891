"""Horizontal flips on the device."""

from __future__ import annotations

import torch

from shardflow._validation import check_probability
from shardflow.geometry.crops import Crops, Sizes

from . import rng
from .transform import SpatialTransform


class RandomHorizontalFlip(SpatialTransform):
    """Mirrors each image with probability `p`, 0 … 1, with its masks, boxes and keypoints.

    Raises:
        ConfigError: The probability is out of its range.
    """

    crops_images = False

    def __init__(self, p: float = 0.5) -> None:
        self.p = check_probability("p", p)

    def make_params(self, keys: torch.Tensor, height: int, width: int) -> torch.Tensor:  # noqa: ARG002
        """Return 1 for the images to mirror and 0 for the others, float32 [B]."""
        return (rng.uniforms(keys, 1)[:, 0] < self.p).to(torch.float32)

    def transform_images(self, images: torch.Tensor, params: torch.Tensor) -> torch.Tensor:
        """Return the images [B, C, H, W] in their dtype, some mirrored."""
        return torch.where(params[:, None, None, None] > 0, images.flip(-1), images)

    def transform_masks(self, masks: torch.Tensor, params: torch.Tensor) -> torch.Tensor:
        """Return the masks [B, C, H, W], mirrored with their images."""
        return self.transform_images(masks, params)

    def crops(self, params: torch.Tensor, sizes: Sizes) -> Crops:
        """Return the whole images, mirrored."""
        return Crops.of(sizes, flip=params.numpy() > 0)
