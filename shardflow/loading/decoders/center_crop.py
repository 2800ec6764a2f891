"""Centre crops: the usual crop for evaluation."""

from __future__ import annotations

import math

import numpy as np

from shardflow._validation import check_integer
from shardflow.errors import ConfigError
from shardflow.formats.image_limits import MAX_PIXELS
from shardflow.geometry.crops import Crops, Sizes
from shardflow.order.keyed_rng import U64

from .crop_decoder import CropDecoder


class CenterCrop(CropDecoder):
    """The centre of each image after its short side was resized: the usual evaluation crop.

    Args:
        size: Height and width of the result in pixels, 1 or more.
        resize: Short side before the crop, `size` or more; by default 8/7 of `size` (256 for 224).
        max_pixels: As for `RandomResizedCrop`.

    Raises:
        ConfigError: A value is out of its range.
    """

    def __init__(self, size: int = 224, *, resize: int | None = None, max_pixels: int = MAX_PIXELS) -> None:
        self.size = check_integer("size", size)
        self.resize = math.ceil(size * 8 / 7) if resize is None else check_integer("resize", resize)
        if not 1 <= self.size <= self.resize:
            raise ConfigError(f"size must be 1 … resize, found size {self.size} and resize {self.resize}")
        self.max_pixels = check_integer("max_pixels", max_pixels, 1)

    def plan(self, epoch: int, shape: tuple[int, int] | None, sizes: Sizes, keys: U64) -> Crops:  # noqa: ARG002
        """Return the crops of images of these sizes."""
        # Rounded down as torchvision's Resize does.
        resized = sizes * self.resize // np.maximum(sizes.min(axis=1, keepdims=True), 1)
        offset = np.rint((resized - self.size) / 2)
        return Crops.of(sizes, resized=resized, offset=offset, size=(self.size, self.size))
