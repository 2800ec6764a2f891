"""Random erasing on the device."""

from __future__ import annotations

import torch

from shardflow._validation import check_integer, check_probability, check_range
from shardflow.errors import ConfigError
from shardflow.geometry.crops import Crops, Sizes
from shardflow.geometry.random_boxes import TRIES, draw_sizes, first_fit

from . import rng
from .transform import SpatialTransform, box_mask


class RandomErasing(SpatialTransform):
    """Sets a random box of an image to one value, with probability `p` (Zhong et al., "Random erasing", 2017).

    The boxes have the distribution of `torchvision.transforms.v2.RandomErasing` for one image.

    Args:
        p: Probability that an image is erased, 0 … 1.
        scale: Range of the box's share of the image's area, within [0, 1].
        ratio: Range of its height / width, above 0.
        value: The value of erased pixels, in the range of the images at this transform; after `Normalize`, 0 is the
            mean colour.
        mask_value: The value of erased pixels in masks, such as the class that a loss ignores; by default masks do not
            change, as with torchvision. Boxes and keypoints never change.

    Raises:
        ConfigError: A value is out of its range.
    """

    moves_pixels = crops_images = False

    def __init__(
        self,
        p: float = 0.5,
        scale: tuple[float, float] = (0.02, 0.33),
        ratio: tuple[float, float] = (0.3, 3.3),
        value: float = 0.0,
        mask_value: int | None = None,
    ) -> None:
        if not isinstance(value, (int, float)):
            raise ConfigError(f"value must be one number, found {value!r}")
        self.p, self.value = check_probability("p", p), value
        self.mask_value = None if mask_value is None else check_integer("mask_value", mask_value, -(2**31))
        self.scale, self.ratio = check_range("scale", scale, most=1, or_zero=True), check_range("ratio", ratio)

    def make_params(self, keys: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """Return the boxes, float32 [B, 4]: x, y, width, height in pixels; width 0 if nothing is erased."""
        uniforms = rng.uniforms(keys, 2 * TRIES + 3)
        heights, widths = draw_sizes(torch, uniforms, height * width, self.scale, self.ratio)
        found, h, w = first_fit(torch, (heights < height) & (widths < width), (heights, widths))
        erased = found & (uniforms[:, -1] < self.p)
        w, h = torch.where(erased, w, 0.0), torch.where(erased, h, 0.0)
        x, y = (uniforms[:, -3] * (width - w + 1)).floor(), (uniforms[:, -2] * (height - h + 1)).floor()
        return torch.stack([x, y, w, h], dim=1)

    def transform_images(self, images: torch.Tensor, params: torch.Tensor) -> torch.Tensor:
        """Return the images [B, C, H, W] in their dtype, some with a box of `value`.

        Raises:
            ConfigError: The dtype of the images cannot hold the value.
        """
        return _erase(images, params, self.value, "images")

    def transform_masks(self, masks: torch.Tensor, params: torch.Tensor) -> torch.Tensor:
        """Return the masks [B, C, H, W], some with a box of `mask_value`.

        Raises:
            ConfigError: The dtype of the masks cannot hold the value.
        """
        return masks if self.mask_value is None else _erase(masks, params, self.mask_value, "masks")

    def crops(self, params: torch.Tensor, sizes: Sizes) -> Crops | None:  # noqa: ARG002
        """Return None: nothing moves."""
        return None


def _erase(pixels: torch.Tensor, boxes: torch.Tensor, value: float, what: str) -> torch.Tensor:
    if not pixels.is_floating_point():
        limits = torch.iinfo(pixels.dtype)
        if not limits.min <= value <= limits.max:
            dtype, within = str(pixels.dtype).removeprefix("torch."), f"{limits.min} … {limits.max}"
            raise ConfigError(f"RandomErasing of {dtype} {what} needs a value of {within}, found {value}")
    return torch.where(box_mask(boxes, *pixels.shape[-2:]), value, pixels).to(pixels.dtype)
