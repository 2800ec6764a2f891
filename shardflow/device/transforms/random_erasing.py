"""Random erasing on the device."""

from __future__ import annotations

import torch

from shardflow._validation import check_probability, check_range
from shardflow.errors import ConfigError

from . import rng
from .boxes import TRIES, box_mask, draw_sizes, first_fit
from .transform import KeyedTransform


class RandomErasing(KeyedTransform):
    """Sets a random box of an image to one value, with probability `p` (Zhong et al., "Random erasing", 2017).

    The boxes are distributed as those of `torchvision.transforms.v2.RandomErasing` for one image.

    Args:
        p: Probability that an image is erased, 0 … 1.
        scale: Range of the box's share of the image's area, within [0, 1].
        ratio: Range of its height / width, above 0.
        value: The value of erased pixels, in the range of the images at this transform; after `Normalize`, 0 is the
            mean colour.

    Raises:
        ConfigError: A value is out of its range.
    """

    def __init__(
        self,
        p: float = 0.5,
        scale: tuple[float, float] = (0.02, 0.33),
        ratio: tuple[float, float] = (0.3, 3.3),
        value: float = 0.0,
    ) -> None:
        if not isinstance(value, (int, float)):
            raise ConfigError(f"value must be one number, found {value!r}")
        self.p, self.value = check_probability("p", p), value
        self.scale, self.ratio = check_range("scale", scale, most=1, or_zero=True), check_range("ratio", ratio)

    def __call__(self, images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return the images [B, C, H, W] in their dtype, some with a box of `value`.

        Raises:
            ConfigError: The dtype of the images cannot hold the value.
        """
        if images.dtype == torch.uint8 and not 0 <= self.value <= 255:
            raise ConfigError(f"RandomErasing of uint8 images needs a value of 0 … 255, found {self.value}")
        height, width = images.shape[-2:]
        erased = box_mask(self.make_params(keys, height, width), height, width)
        return torch.where(erased, self.value, images).to(images.dtype)

    def make_params(self, keys: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """Return the boxes, float32 [B, 4]: x, y, width, height in pixels; width 0 where nothing is erased."""
        uniforms = rng.uniforms(keys, 2 * TRIES + 3)
        heights, widths = draw_sizes(uniforms, height * width, self.scale, self.ratio)
        found, h, w = first_fit((heights < height) & (widths < width), heights, widths)
        erased = found & (uniforms[:, -1] < self.p)
        w, h = torch.where(erased, w, 0.0), torch.where(erased, h, 0.0)
        x, y = (uniforms[:, -3] * (width - w + 1)).floor(), (uniforms[:, -2] * (height - h + 1)).floor()
        return torch.stack([x, y, w, h], dim=1)
