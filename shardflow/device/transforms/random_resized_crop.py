"""Random resized crops on the device: crop, antialiased resize and flip as two batched matrix products.

Resizing is separable and linear in the pixels. So cropping an image to a box and resizing the crop is A · image · Bᵀ,
with one small matrix per axis and image, and a flip reverses the rows of B. A GPU computes matrix products fastest. In
contrast to a sampled affine grid they can antialias: the triangle filter widens with the scale, as with torchvision's
`antialias=True`. Results agree with torchvision's up to rounding.
"""

from __future__ import annotations

import torch

from shardflow._validation import check_integer, check_probability, check_range

from . import rng
from .boxes import TRIES, draw_sizes, first_fit
from .transform import KeyedTransform, to_dtype_of, to_float


class RandomResizedCrop(KeyedTransform):
    """Crops a random box of each image, resizes it to one size, and mirrors it with probability `hflip`.

    The boxes are distributed as those of `torchvision.transforms.v2.RandomResizedCrop` for one image (Szegedy et al.,
    "Going deeper with convolutions", 2014). Resizing is bilinear and antialiased, as by its default. The cost is
    2·B·C·S·W·(H + S) multiplications and additions: 42 GFLOP for 256 images of 256² to 224².

    Args:
        size: Height and width of the result in pixels, 1 or more.
        scale: Range of the crop's share of the image's area, within (0, 1].
        ratio: Range of its width / height, above 0.
        hflip: Probability of a horizontal flip, 0 … 1.

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
        """Return images [B, C, size, size] in the dtype of the images [B, C, H, W]."""
        height, width = images.shape[-2:]
        uniforms = rng.uniforms(keys, 2 * TRIES + 3)
        boxes = random_boxes(uniforms[:, :-1], height, width, self.scale, self.ratio)
        return crop_and_resize(images, boxes, self.size, uniforms[:, -1] < self.hflip)


def random_boxes(
    uniforms: torch.Tensor, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> torch.Tensor:
    """Return the boxes, float32 [B, 4] of whole numbers x, y, width, height, for uniform numbers [B, 22]."""
    widths, heights = draw_sizes(uniforms, height * width, scale, ratio)
    found, w, h = first_fit((widths > 0) & (widths <= width) & (heights > 0) & (heights <= height), widths, heights)
    # If no try fits, torchvision takes the largest central box whose ratio is within range.
    central_w = max(1, round(height * ratio[1])) if width / height > ratio[1] else width
    central_h = max(1, round(width / ratio[0])) if width / height < ratio[0] else height
    w, h = torch.where(found, w, central_w), torch.where(found, h, central_h)
    x = torch.where(found, (uniforms[:, -2] * (width - w + 1)).floor(), (width - central_w) // 2)
    y = torch.where(found, (uniforms[:, -1] * (height - h + 1)).floor(), (height - central_h) // 2)
    return torch.stack([x, y, w, h], dim=1)


def crop_and_resize(images: torch.Tensor, boxes: torch.Tensor, size: int, flipped: torch.Tensor) -> torch.Tensor:
    """Return the crops, antialiased to [B, C, size, size] in the dtype of the images, mirrored where `flipped`."""
    height, width = images.shape[-2:]
    x, y, w, h = boxes.to(torch.float32).unbind(1)
    rows, columns = _weights(y, h, height, size), _weights(x, w, width, size)
    columns = torch.where(flipped[:, None, None], columns.flip(1), columns)
    pixels = to_float(images)
    rows, columns = rows.to(pixels.dtype), columns.to(pixels.dtype)
    return to_dtype_of(rows[:, None] @ (pixels @ columns.transpose(1, 2)[:, None]), images)


def _weights(start: torch.Tensor, extent: torch.Tensor, length: int, size: int) -> torch.Tensor:
    """Return the weight of each of `length` pixels in each of `size`: float32 [B, size, length], rows sum to 1."""
    scale = (extent / size)[:, None, None]
    targets = torch.arange(size, dtype=torch.float32, device=start.device)[None, :, None]
    pixels = torch.arange(length, dtype=torch.float32, device=start.device)[None, None, :] - start[:, None, None]
    distance = (pixels + 0.5 - scale * (targets + 0.5)).abs()
    inside = (pixels >= 0) & (pixels < extent[:, None, None])
    triangle = (1 - distance / scale.clamp(min=1)).clamp(min=0) * inside
    return triangle / triangle.sum(-1, keepdim=True)
