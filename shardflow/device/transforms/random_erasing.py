"""Random erasing on the device."""

from __future__ import annotations

import math

import torch

from shardflow._validation import check_probability, check_range
from shardflow.errors import ConfigError

from . import rng
from .transform import KeyedStage

_TRIES = 10


class RandomErasing(KeyedStage):
    """Sets a random box of an image to one value, with probability `p` (Zhong et al., "Random erasing", 2017).

    Boxes are distributed as `torchvision.transforms.v2.RandomErasing` draws them for one image.

    Args:
        p: Probability that an image is erased at all.
        scale: Range of the box's share of the image's area.
        ratio: Range of its height / width, above 0.
        value: What is put there, as the images are at this stage; after `Normalize`, 0 is the mean colour.

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
        """Return the images, some with a box of `value`.

        Raises:
            ConfigError: The images' dtype has no such value.
        """
        if images.dtype == torch.uint8 and not 0 <= self.value <= 255:
            raise ConfigError(f"RandomErasing has the value {self.value}, and images of uint8 have 0 … 255")
        height, width = images.shape[-2:]
        return torch.where(inside(self.draw(keys, height, width), height, width), self.value, images).to(images.dtype)

    def draw(self, keys: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """Return the boxes, float32 [B, 4]: x, y, width, height in pixels; of width 0 where nothing is erased."""
        drawn = rng.uniforms(keys, 2 * _TRIES + 3)
        area = height * width * rng.between(drawn[:, :_TRIES], *self.scale)
        log_ratio = (math.log(self.ratio[0]), math.log(self.ratio[1]))
        aspect = torch.exp(rng.between(drawn[:, _TRIES : 2 * _TRIES], *log_ratio))
        tried_h, tried_w = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
        fits = (tried_h < height) & (tried_w < width)
        first = fits.to(torch.int64).argmax(1, keepdim=True)
        erased = fits.any(1) & (drawn[:, -1] < self.p)
        w = torch.where(erased, tried_w.gather(1, first)[:, 0], 0.0)
        h = torch.where(erased, tried_h.gather(1, first)[:, 0], 0.0)
        x, y = (drawn[:, -3] * (width - w + 1)).floor(), (drawn[:, -2] * (height - h + 1)).floor()
        return torch.stack([x, y, w, h], dim=1)


def inside(boxes: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return which pixels lie in the boxes, [B, 4] of x, y, width, height: bool [B, 1, H, W]."""
    x, y, w, h = boxes[:, :, None].unbind(1)
    columns = torch.arange(width, device=boxes.device)[None]
    rows = torch.arange(height, device=boxes.device)[None]
    across, down = (columns >= x) & (columns < x + w), (rows >= y) & (rows < y + h)
    return (down[:, :, None] & across[:, None, :])[:, None]
