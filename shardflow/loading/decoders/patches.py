"""Patches: images at the sizes that a token budget gives each, cut into the patches of a vision transformer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from shardflow._validation import check_integer, check_probability, check_switch
from shardflow.errors import ConfigError, SampleError
from shardflow.formats.image_limits import MAX_PIXELS
from shardflow.geometry.crops import Crops, Sizes
from shardflow.loading.padding import Padding
from shardflow.order import keyed_rng
from shardflow.order.keyed_rng import U64

from .crop_decoder import CropDecoder, pixel_source
from .decoder import BatchShape, Failures, Images, Payloads, Plan
from .pixels import PixelSource, layout


class Patches(CropDecoder):
    """Resizes each image to the size that `samplers.TokenBudget` gives it, and hands it over as patches.

    A batch has `batch_size` bins of whole samples, one bin after the other, without padding. The fields:

    - "image": uint8 [T, 3·patch²], all patches of the batch: image after image, each in rows from left to right. The
      values of a patch are in the order of a `Conv2d`'s weights: channel, row, column.
    - "cu_seqlens": int32 [B + 1], where the patches of each of the B samples begin and end.
    - "positions": int64 [T, 2], row and column of each patch in its image.
    - "bin": int64 [B], the number of each sample's bin in the batch.
    - "image_size": int64 [B, 2], height and width of the images in pixels.

    >>> sampler = shardflow.samplers.TokenBudget(8192, patch=16)  # doctest: +SKIP
    >>> fields = ("image", "cu_seqlens", "positions", "label")  # doctest: +SKIP
    >>> loader = shardflow.Loader(url, batch_size=4, sampler=sampler, fields=fields)  # doctest: +SKIP

    Args:
        patch: Height and width of a patch in pixels, which divides that of the sampler.
        stack: False for a list of images [3, H, W] in place of the patches.
        hflip: Probability of a horizontal flip, 0 … 1. Captions may name sides, such as "on the left".
        max_pixels: As for `RandomResizedCrop`.

    Raises:
        ConfigError: A value is out of its range.

    Source: Dehghani et al., "Patch n' Pack: NaViT, a vision transformer for any aspect ratio and resolution", 2023.
    """

    def __init__(self, patch: int, *, stack: bool = True, hflip: float = 0, max_pixels: int = MAX_PIXELS) -> None:
        self.patch, self.stack = check_integer("patch", patch, 1), check_switch("stack", stack)
        self.padding = Padding(stack=False, patch=self.patch if stack else None)
        self.hflip = check_probability("hflip", hflip)
        self.max_pixels = check_integer("max_pixels", max_pixels, 1)

    def plan(self, epoch: int, shape: BatchShape, sizes: Sizes, keys: U64) -> Crops:  # noqa: ARG002
        """Return the crops of images of these sizes: all of each, resized.

        Raises:
            ConfigError: The images have no shapes.
        """
        if shape is None:
            raise ConfigError(
                "decoders.Patches needs the sizes that sampler=samplers.TokenBudget(...) gives the images"
            )
        flip = keyed_rng.uniforms(keys, 1)[:, 0] < self.hflip
        return Crops.of(np.maximum(sizes, 1), resized=np.broadcast_to(shape, sizes.shape)[:, ::-1], flip=flip)

    def decode(self, payloads: Payloads, crops: Plan, out: Images) -> Failures:
        """Decode a batch into a list of uint8 [3, H, W]: those of one size together, each as alone."""
        assert isinstance(crops, Crops)
        failures: dict[int, SampleError] = {}
        channels, dtype = layout(payloads.files)
        for width, height in np.unique(crops.resized, axis=0).tolist():
            rows = np.flatnonzero((crops.resized == (width, height)).all(axis=1))
            images = torch.empty((len(rows), channels, height, width), dtype=dtype)
            own = replace(crops[rows], size=(width, height))
            found = super().decode(payloads[rows], own, images)
            crops.replace(rows, own)
            failures |= {int(rows[index]): error for index, error in found.items()}
            for row, image in zip(rows.tolist(), images, strict=True):
                out[row] = image
        return failures

    @property
    def takes_pixels_of(self) -> PixelSource | None:
        """The kernel or else libraries; None for a subclass that decodes otherwise, and may expect bytes."""
        return pixel_source() if type(self).decode is Patches.decode else None
