"""Padding: the rule for images of different sizes in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name

from shardflow._validation import check_integer, check_switch
from shardflow.errors import ConfigError

MASK_PADDING = 255
"""The value of masks in the padding, which torchvision's segmentation references ignore in the loss."""


PADDING_FIELDS = ("image_size", "pixel_mask")
"""The fields that locate images in a padded batch."""

PATCH_FIELDS = ("cu_seqlens", "positions")
"""The fields that locate images among the patches of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """The rule by which the images of a batch, or their masks, are joined.

    Attributes:
        stack: Whether images become one tensor; otherwise they stay a list.
        pad_to_multiple_of: Pad with zeros at the right and bottom, to the largest height and width of the batch,
            rounded up to a multiple of this; None for images of one size.
        mask_padding: The value that pads masks.
        patch: Cut images into patches with this side instead; masks stay a list.

    Raises:
        ConfigError: A value is out of its range, or a list would be padded.
    """

    stack: bool = True
    pad_to_multiple_of: int | None = None
    mask_padding: int = MASK_PADDING
    patch: int | None = None

    def __post_init__(self) -> None:
        check_switch("stack", self.stack)
        check_integer("mask_padding", self.mask_padding, -(2**31), 2**31 - 1)
        if self.pad_to_multiple_of is not None:
            check_integer("pad_to_multiple_of", self.pad_to_multiple_of, 1)
            if not self.stack:
                raise ConfigError("stack=False returns unpadded images; leave it or pad_to_multiple_of out")

    def join_masks(self, masks: Sequence[torch.Tensor]) -> torch.Tensor | list[torch.Tensor]:
        """Return masks [C, H, W] as one [B, C, H, W], or as a list; as int32 if their dtype cannot hold the padding.

        Raises:
            ConfigError: They are bool, which cannot hold the padding; or as for `join`.
        """
        if self.pad_to_multiple_of is None:
            return self.join(masks)
        return self.join([self._with_room(mask) for mask in masks], self.mask_padding)

    def pad_box_masks(self, masks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the masks of boxes, [N, H, W] of each image, padded with zeros as the images are."""
        if self.pad_to_multiple_of is None or not masks:
            return list(masks)
        height, width = self.size(masks)
        return [F.pad(own, (0, width - own.shape[-1], 0, height - own.shape[-2])) for own in masks]

    def _with_room(self, mask: torch.Tensor) -> torch.Tensor:
        """Return a mask in a dtype that can hold the padding, even if it needs none."""
        if mask.dtype == torch.bool and self.mask_padding not in (0, 1):
            raise ConfigError(
                f"bool masks cannot hold the padding {self.mask_padding}; return uint8 from the transform, or use "
                "decoders.Image(mask_padding=0)"
            )
        if mask.dtype == torch.bool or mask.is_floating_point():
            return mask
        limits = torch.iinfo(mask.dtype)
        return mask if limits.min <= self.mask_padding <= limits.max else mask.to(torch.int32)

    def join(self, images: Sequence[torch.Tensor], padding: int = 0) -> torch.Tensor | list[torch.Tensor]:
        """Return tensors [C, H, W] as one [B, C, H, W], or as a list.

        Raises:
            ConfigError: They have different dtypes, or different sizes that cannot be stacked.
        """
        if not self.stack:
            return list(images)
        if len(dtypes := {image.dtype for image in images}) > 1:  # scales may differ, and values overflow
            found = ", ".join(sorted(map(str, dtypes)))
            raise ConfigError(f"images or masks of {found} cannot form a batch; return one dtype from the transforms")
        shapes = {tuple(image.shape) for image in images}
        if len(shapes) == 1 and self.pad_to_multiple_of is None:
            return torch.stack(list(images))
        if self.pad_to_multiple_of is None or len({(len(shape), shape[:-2]) for shape in shapes}) > 1:
            raise ConfigError(f"images of sizes {sorted(shapes)[:3]} cannot be stacked; choose {ONE_SIZE}")
        padded = images[0].new_full((len(images), *images[0].shape[:-2], *self.size(images)), padding)
        for row, image in zip(padded, images, strict=True):
            row[..., : image.shape[-2], : image.shape[-1]] = image
        return padded

    def size(self, images: Sequence[torch.Tensor]) -> tuple[int, int]:
        """Return height and width of the batch."""
        multiple = self.pad_to_multiple_of or 1
        height, width = (max(image.shape[axis] for image in images) for axis in (-2, -1))
        return -(-height // multiple) * multiple, -(-width // multiple) * multiple


ONE_SIZE = (
    "decoders.RandomResizedCrop or CenterCrop, a `transform` that ends in one size, "
    "decoders.Image(pad_to_multiple_of=32) to pad each batch, or decoders.Image(stack=False) for a list of images"
)
"""The remedies for images of different sizes."""


def cumulative_patches(sizes: torch.Tensor, patch: int) -> torch.Tensor:
    """Return the boundaries of the patches of images of these heights and widths: int32 [B + 1]."""
    counts = (sizes.numpy() // patch).prod(axis=1)
    return torch.from_numpy(np.cumsum([0, *counts.tolist()], dtype=np.int32))


def patch_positions(sizes: torch.Tensor, patch: int) -> torch.Tensor:
    """Return row and column of each patch of images of these heights and widths: int64 [T, 2]."""
    grids = sizes.numpy() // patch
    counts = grids.prod(axis=1)
    numbers = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return torch.from_numpy(np.stack(np.divmod(numbers, np.repeat(grids[:, 1], counts)), axis=1))


def image_sizes(images: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return height and width of each image: int64 [B, 2]."""
    return torch.tensor([image.shape[-2:] for image in images], dtype=torch.int64, device="cpu").view(-1, 2)


def pixel_mask(sizes: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return the mask of images of these sizes in a padded batch: bool [B, height, width]."""
    rows = torch.arange(height, device="cpu") < sizes[:, :1]
    columns = torch.arange(width, device="cpu") < sizes[:, 1:]
    mask: torch.Tensor = rows[:, :, None] & columns[:, None, :]
    return mask
