"""Stacking: what a batch has of images of different sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shardflow._validation import check_integer
from shardflow.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacking:
    """Turns the images of a batch, or their masks, into what the batch has of them.

    Attributes:
        stack: Whether they become one tensor; otherwise they stay a list.
        pad_to_multiple_of: Pad with zeros at the right and at the bottom, to the largest height and width of the batch,
            each rounded up to a multiple of this; None for images of one size.

    Raises:
        ConfigError: The multiple is no positive integer, or a list would be padded.
    """

    stack: bool = True
    pad_to_multiple_of: int | None = None

    def __post_init__(self) -> None:
        if self.pad_to_multiple_of is not None:
            check_integer("pad_to_multiple_of", self.pad_to_multiple_of, 1)
            if not self.stack:
                raise ConfigError("images in a list are not padded: leave stack=False or pad_to_multiple_of out")

    @property
    def needs_one_size(self) -> bool:
        """Whether images of different sizes are an error."""
        return self.stack and self.pad_to_multiple_of is None

    def __call__(self, images: Sequence[torch.Tensor]) -> torch.Tensor | list[torch.Tensor]:
        """Return tensors [C, H, W] as one [B, C, H, W], or as a list."""
        if not self.stack:
            return list(images)
        shapes = {tuple(image.shape) for image in images}
        if len(shapes) == 1 and self.pad_to_multiple_of is None:
            return torch.stack(list(images))
        if self.pad_to_multiple_of is None or len({(len(shape), shape[:-2]) for shape in shapes}) > 1:
            raise ConfigError(f"images of sizes {sorted(shapes)[:3]} do not stack; choose {ONE_SIZE}")
        padded = images[0].new_zeros((len(images), *images[0].shape[:-2], *self.size(images)))
        for row, image in zip(padded, images, strict=True):
            row[..., : image.shape[-2], : image.shape[-1]] = image
        return padded

    def size(self, images: Sequence[torch.Tensor]) -> tuple[int, int]:
        """Return height and width of the batch."""
        multiple = self.pad_to_multiple_of or 1
        height, width = (max(image.shape[axis] for image in images) for axis in (-2, -1))
        return -(-height // multiple) * multiple, -(-width // multiple) * multiple


ONE_SIZE = (
    "RandomResizedCropDecoder or CenterCropDecoder, a `transform` that ends in one size, "
    "ImageDecoder(pad_to_multiple_of=32) to pad each batch, or ImageDecoder(stack=False) for a list of images"
)
"""The remedies for images of different sizes."""


def image_sizes(images: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return height and width of each image: int64 [B, 2]."""
    return torch.tensor([image.shape[-2:] for image in images], dtype=torch.int64).view(-1, 2)


def pixel_mask(sizes: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return where images of these sizes lie in a padded batch: bool [B, height, width]."""
    rows = torch.arange(height) < sizes[:, :1]
    columns = torch.arange(width) < sizes[:, 1:]
    mask: torch.Tensor = rows[:, :, None] & columns[:, None, :]
    return mask
