"""Random resized crops on the device: crop, antialiased resize and flip as two batched matrix products.

Resizing is separable and linear in the pixels, so cropping an image to a box and resizing that is A · image · Bᵀ with
one small matrix per axis and image, and a flip only reverses the rows of B. Products of matrices are what the device is
best at, and unlike a sampled affine grid they can be antialiased: the triangle filter widens with the scale as
torchvision's `antialias=True` has it, with which they agree to within rounding.
"""

from __future__ import annotations

import math

import torch

from shardflow._validation import check_integer, check_probability, check_range

from . import rng
from .transform import KeyedStage, to_dtype_of, to_float

_TRIES = 10


class RandomResizedCrop(KeyedStage):
    """A random part of each image, resized to one size, and mirrored with probability `hflip`.

    Boxes are distributed as `torchvision.transforms.v2.RandomResizedCrop` draws them for one image (Szegedy et al.,
    "Going deeper with convolutions", 2014), and resized as it does by default: bilinear, antialiased. The cost is
    2·B·C·S·W·(H + S) multiplications and additions: 42 GFLOP for 256 images of 256² to 224².

    Args:
        size: Height and width of the result in pixels, 1 or more.
        scale: Range of the crop's share of the image's area, within (0, 1].
        ratio: Range of its width / height, above 0.
        hflip: Probability of a horizontal flip.

    Raises:
        ConfigError: A value is out of its range.
    """

    def __init__(
        self,
        size: int = 224,
        *,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        hflip: float = 0.0,
    ) -> None:
        self.size = check_integer("size", size, 1)
        self.scale, self.ratio = check_range("scale", scale, most=1), check_range("ratio", ratio)
        self.hflip = check_probability("hflip", hflip)

    def __call__(self, images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return [B, C, size, size] in the images' dtype."""
        height, width = images.shape[-2:]
        drawn = rng.uniforms(keys, 2 * _TRIES + 3)
        boxes = random_boxes(drawn[:, :-1], height, width, self.scale, self.ratio)
        return crop_and_resize(images, boxes, self.size, drawn[:, -1] < self.hflip)


def random_boxes(
    drawn: torch.Tensor, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> torch.Tensor:
    """Return the boxes, float32 [B, 4] of whole numbers x, y, width, height, for uniform numbers [B, 22]."""
    area = height * width * rng.between(drawn[:, :_TRIES], *scale)
    aspect = torch.exp(rng.between(drawn[:, _TRIES : 2 * _TRIES], math.log(ratio[0]), math.log(ratio[1])))
    tried_w, tried_h = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (tried_w > 0) & (tried_w <= width) & (tried_h > 0) & (tried_h <= height)
    first = fits.to(torch.int64).argmax(1, keepdim=True)
    found = fits.any(1)
    # As torchvision does where ten tries found nothing: the largest central box whose ratio is within range.
    central_w = max(1, round(height * ratio[1])) if width / height > ratio[1] else width
    central_h = max(1, round(width / ratio[0])) if width / height < ratio[0] else height
    w = torch.where(found, tried_w.gather(1, first)[:, 0], central_w)
    h = torch.where(found, tried_h.gather(1, first)[:, 0], central_h)
    x = torch.where(found, (drawn[:, -2] * (width - w + 1)).floor(), (width - central_w) // 2)
    y = torch.where(found, (drawn[:, -1] * (height - h + 1)).floor(), (height - central_h) // 2)
    return torch.stack([x, y, w, h], dim=1)


def crop_and_resize(images: torch.Tensor, boxes: torch.Tensor, size: int, flipped: torch.Tensor) -> torch.Tensor:
    """Return the boxes' contents, antialiased to [B, C, size, size] in the images' dtype, mirrored where `flipped`.

    Args:
        images: [B, C, H, W], uint8 or floating point within 0 … 1.
        boxes: [B, 4], x, y, width, height in pixels, within the images.
        size: Height and width of the result in pixels.
        flipped: bool [B].
    """
    height, width = images.shape[-2:]
    x, y, w, h = boxes.to(torch.float32).unbind(1)
    rows, columns = _weights(y, h, height, size), _weights(x, w, width, size)
    columns = torch.where(flipped[:, None, None], columns.flip(1), columns)
    pixels = to_float(images)
    rows, columns = rows.to(pixels.dtype), columns.to(pixels.dtype)
    return to_dtype_of(rows[:, None] @ (pixels @ columns.transpose(1, 2)[:, None]), images)


def _weights(start: torch.Tensor, extent: torch.Tensor, length: int, size: int) -> torch.Tensor:
    """Return what each of `length` pixels gives to each of `size`: float32 [B, size, length], rows that sum to 1."""
    scale = (extent / size)[:, None, None]
    places = torch.arange(size, dtype=torch.float32, device=start.device)[None, :, None]
    pixels = torch.arange(length, dtype=torch.float32, device=start.device)[None, None, :] - start[:, None, None]
    distance = (pixels + 0.5 - scale * (places + 0.5)).abs()
    inside = (pixels >= 0) & (pixels < extent[:, None, None])
    triangle = (1 - distance / scale.clamp(min=1)).clamp(min=0) * inside
    return triangle / triangle.sum(-1, keepdim=True)
