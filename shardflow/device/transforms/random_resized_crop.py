"""Random resized crops on the device: crop, antialiased resize and flip as two batched matrix products.

Resizing is separable and linear in the pixels, so cropping and resizing an image is A · image · Bᵀ, with one small
matrix per axis and image; a flip reverses the rows of B. Matrix products are the fastest operation of a GPU and, unlike
a sampled affine grid, can antialias: the triangle filter widens with the scale, as with torchvision's `antialias=True`.
Results agree with torchvision's up to rounding.
"""

from __future__ import annotations

import torch

from shardflow._validation import check_integer, check_probability, check_range
from shardflow.geometry.crops import Crops, Sizes, centres
from shardflow.geometry.random_boxes import TRIES, draw_sizes, fits_within, place_boxes

from . import rng
from .transform import SpatialTransform, to_dtype_of, to_float


class RandomResizedCrop(SpatialTransform):
    """Crops a random box of each image, resizes it to one size, and mirrors it with probability `hflip`.

    The boxes have the distribution of `torchvision.transforms.v2.RandomResizedCrop` for one image (Szegedy et al.,
    "Going deeper with convolutions", 2014). Resizing is bilinear and antialiased, torchvision's default. The cost is
    2·B·C·S·W·(H + S) multiplications and additions: 42 GFLOP for 256 images of 256² to 224². Masks are resized like
    torchvision's NEAREST_EXACT; boxes and keypoints follow as in the loader's crops.

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

    def make_params(self, keys: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """Return float32 [B, 5]: x, y, width, height of the boxes in pixels, and 1 for mirrored crops."""
        uniforms = rng.uniforms(keys, 2 * TRIES + 3)
        boxes = random_boxes(uniforms[:, :-1], height, width, self.scale, self.ratio)
        return torch.cat([boxes, (uniforms[:, -1:] < self.hflip).to(torch.float32)], dim=1)

    def transform_images(self, images: torch.Tensor, params: torch.Tensor) -> torch.Tensor:
        """Return images [B, C, size, size] in the dtype of the images [B, C, H, W]."""
        return crop_and_resize(images, params[:, :4], self.size, params[:, 4] > 0)

    def transform_masks(self, masks: torch.Tensor, params: torch.Tensor) -> torch.Tensor:
        """Return masks [B, C, size, size] in the dtype of the masks [B, C, H, W]."""
        return crop_and_resize_masks(masks, params[:, :4], self.size, params[:, 4] > 0)

    def crops(self, params: torch.Tensor, sizes: Sizes) -> Crops:
        """Return the crops."""
        size = (self.size, self.size)
        return Crops.of(sizes, box=params[:, :4].numpy(), resized=size, flip=params[:, 4].numpy() > 0, size=size)


def random_boxes(
    uniforms: torch.Tensor, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> torch.Tensor:
    """Return the boxes, float32 [B, 4] of integral x, y, width, height, for uniform numbers [B, 22]."""
    # If no try fits, the largest central box with a ratio within range.
    central_w = max(1, round(height * ratio[1])) if width / height > ratio[1] else width
    central_h = max(1, round(width / ratio[0])) if width / height < ratio[0] else height
    size, central = (width, height), (central_w, central_h)
    tried = draw_sizes(torch, uniforms, height * width, scale, ratio)
    boxes: torch.Tensor = place_boxes(torch, uniforms[:, -2:], tried, fits_within(tried, size), size, central)
    return boxes


def crop_and_resize(images: torch.Tensor, boxes: torch.Tensor, size: int, flipped: torch.Tensor) -> torch.Tensor:
    """Return the crops, antialiased to [B, C, size, size] in the dtype of the images, mirrored where `flipped`."""
    height, width = images.shape[-2:]
    x, y, w, h = boxes.to(torch.float32).unbind(1)
    rows, columns = _weights(y, h, height, size), _weights(x, w, width, size)
    columns = torch.where(flipped[:, None, None], columns.flip(1), columns)
    pixels = to_float(images)
    rows, columns = rows.to(pixels.dtype), columns.to(pixels.dtype)
    return to_dtype_of(rows[:, None] @ (pixels @ columns.transpose(1, 2)[:, None]), images)


def crop_and_resize_masks(masks: torch.Tensor, boxes: torch.Tensor, size: int, flipped: torch.Tensor) -> torch.Tensor:
    """Return the crops, resized to the nearest pixel of [B, C, size, size], mirrored where `flipped`."""
    x, y, w, h = boxes.to(torch.float32).unbind(1)
    rows, columns = _nearest(y, h, size), _nearest(x, w, size)
    columns = torch.where(flipped[:, None], columns.flip(1), columns)
    places = (rows[:, :, None] * masks.shape[-1] + columns[:, None, :]).flatten(1)
    pixels = masks.flatten(2).gather(2, places[:, None, :].expand(-1, masks.shape[1], -1))
    return pixels.view(*masks.shape[:2], size, size)


def _nearest(start: torch.Tensor, extent: torch.Tensor, size: int) -> torch.Tensor:
    """Return the nearest source pixel of each of `size` pixels: int64 [B, size]."""
    targets = torch.arange(size, dtype=torch.int64, device=start.device)
    shown: torch.Tensor = start.to(torch.int64)[:, None] + centres(targets[None], extent.to(torch.int64)[:, None], size)
    return shown


def _weights(start: torch.Tensor, extent: torch.Tensor, length: int, size: int) -> torch.Tensor:
    """Return the weights of `length` pixels in each of `size` pixels: float32 [B, size, length], rows sum to 1."""
    scale = (extent / size)[:, None, None]
    targets = torch.arange(size, dtype=torch.float32, device=start.device)[None, :, None]
    pixels = torch.arange(length, dtype=torch.float32, device=start.device)[None, None, :] - start[:, None, None]
    distance = (pixels + 0.5 - scale * (targets + 0.5)).abs()
    inside = (pixels >= 0) & (pixels < extent[:, None, None])
    triangle = (1 - distance / scale.clamp(min=1)).clamp(min=0) * inside
    return triangle / triangle.sum(-1, keepdim=True)
