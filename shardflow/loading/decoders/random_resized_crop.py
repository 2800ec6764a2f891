"""Random resized crops: the usual crop for training."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shardflow._validation import check_integer, check_probability, check_range
from shardflow.errors import ConfigError
from shardflow.formats.image_limits import MAX_PIXELS
from shardflow.geometry.crops import Crops, Sizes
from shardflow.geometry.random_boxes import random_resized_crops
from shardflow.order.keyed_rng import U64

from .crop_decoder import CropDecoder


class RandomResizedCrop(CropDecoder):
    """A random part of each image, resized to one size and flipped half of the time: the usual training crop.

    The crops are distributed as those of `torchvision.transforms.v2.RandomResizedCrop` followed by
    `RandomHorizontalFlip`; resizing is antialiased and bilinear.

    Args:
        size: Height and width of the result in pixels, 1 or more; or the sizes of the epochs from which they count,
            {0: 128, 6: 160, 14: 192}, for training that begins with small crops.
        scale: Range of the crop's share of the image's area, within (0, 1].
        ratio: Range of the crop's width / height, above 0.
        hflip: Probability of a horizontal flip, 0 … 1.
        max_pixels: Larger images are failures (`TooLargeError`), as are those that need more memory or scans than the
            limits that follow from it. 110 million pixels take up to 0.99 GB.

    Raises:
        ConfigError: A value is out of its range.
    """

    def __init__(
        self,
        size: int | Mapping[int, int] = 224,
        *,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        hflip: float = 0.5,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self._sizes = _size_by_epoch(size)
        self.size = self._sizes if len(self._sizes) > 1 else self._sizes[0]
        self.scale, self.ratio = check_range("scale", scale, most=1), check_range("ratio", ratio)
        self.hflip = check_probability("hflip", hflip)
        self.max_pixels = check_integer("max_pixels", max_pixels, 1)

    def size_at(self, epoch: int) -> int:
        """Return height and width of the crops of an epoch."""
        return self._sizes[max(first for first in self._sizes if first <= epoch)]

    def plan(self, epoch: int, shape: tuple[int, int] | None, sizes: Sizes, keys: U64) -> Crops:  # noqa: ARG002
        """Return the crops of images of these sizes."""
        size = self.size_at(epoch)
        boxes, flip = random_resized_crops(np.maximum(sizes, 1), keys, self.scale, self.ratio)
        return Crops.of(sizes, box=boxes, resized=(size, size), flip=flip < self.hflip, size=(size, size))


def _size_by_epoch(size: int | Mapping[int, int]) -> dict[int, int]:
    """Return epoch → size from there on; epoch 0 is among them.

    Raises:
        ConfigError: An epoch or a size is out of its range, or epoch 0 has none.
    """
    if not isinstance(size, Mapping):
        return {0: check_integer("size", size, 1)}
    sizes = {check_integer("epoch", epoch, 0): check_integer("size", value, 1) for epoch, value in size.items()}
    if 0 not in sizes:
        raise ConfigError(f"size must begin with epoch 0, as in {{0: 128, 6: 160}}, found {dict(size)}")
    return sizes
