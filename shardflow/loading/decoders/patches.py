"""Patches: images resized to fit a token budget, cut into the patches of a vision transformer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from shardflow import native
from shardflow._validation import check_integer, check_probability, check_switch
from shardflow.errors import ConfigError, SampleError
from shardflow.formats.image_limits import MAX_PIXELS
from shardflow.geometry.crops import Crops, Sizes
from shardflow.loading.padding import Padding
from shardflow.loading.ragged_images import RaggedImages
from shardflow.order import keyed_rng
from shardflow.order.keyed_rng import U64

from .crop_decoder import CropDecoder, decode_in_kernel, pixel_source
from .decoder import Allocator, BatchShape, Failures, Images, Payloads, Plan
from .decoder import allocate as fresh
from .pixels import PixelSource, layout


class Patches(CropDecoder):
    """Resizes each image to the size that `samplers.TokenBudget` chose, and returns it as patches.

    A batch has `batch_size` bins of whole samples, one after the other, without padding. Its fields:

    - "image": uint8 [T, 3·patch²], all patches of the batch: image after image, each in rows from left to right. The
      values of a patch are in the order of a `Conv2d`'s weights: channel, row, column.
    - "cu_seqlens": int32 [B + 1], the boundaries between the patches of the B samples.
    - "positions": int64 [T, 2], row and column of each patch in its image.
    - "bin": int64 [B], the number of each sample's bin in the batch.
    - "image_size": int64 [B, 2], height and width of the images in pixels.

    >>> sampler = shardflow.samplers.TokenBudget(8192, patch=16)
    >>> fields = ("image", "cu_seqlens", "positions", "label")
    >>> loader = shardflow.Loader(url, batch_size=4, sampler=sampler, fields=fields)

    Args:
        patch: Height and width of a patch in pixels; divides the sampler's `patch`.
        stack: False for a list of images [3, H, W] instead of patches.
        hflip: Probability of a horizontal flip, 0 … 1. With captions such as "on the left", keep it at 0.
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
        """Return crops that show all of each image, resized to its `shape`.

        Raises:
            ConfigError: `shape` is None.
        """
        if shape is None:
            raise ConfigError(
                "decoders.Patches needs the sizes that sampler=samplers.TokenBudget(...) gives the images"
            )
        flip = keyed_rng.uniforms(keys, 1)[:, 0] < self.hflip
        return Crops.of(np.maximum(sizes, 1), resized=np.broadcast_to(shape, sizes.shape)[:, ::-1], flip=flip)

    def allocate_images(self, payloads: Payloads, crops: Plan, allocate: Allocator) -> RaggedImages:
        """Return memory for images of different sizes, as patches or whole."""
        assert isinstance(crops, Crops)
        sizes = crops.resized[:, ::-1].astype(np.int64)
        channels, dtype = layout([file for file in payloads.files if len(file)])
        if not self.stack:  # a list is copied anyway
            return RaggedImages(sizes, channels, dtype, fresh)
        return RaggedImages(sizes, channels, dtype, allocate, self.patch)

    def decode(self, payloads: Payloads, crops: Plan, out: Images) -> Failures:
        """Decode a batch into `RaggedImages`."""
        assert isinstance(crops, Crops)
        failures: dict[int, SampleError] = {}
        expected = self._complete(payloads, (crops,))
        for index in decode_in_kernel(payloads, expected, _kernel_views(crops, out), self.max_pixels):
            row = slice(index, index + 1)
            height, width = out.sizes[index].tolist()
            image = torch.empty((1, out.channels, height, width), dtype=out.dtype, device="cpu")
            if found := super().decode(payloads[row], replace(crops[row], size=(width, height)), image):
                failures[index] = found[0]
            out[index] = image[0]
        return failures

    @property
    def takes_pixels_of(self) -> PixelSource | None:
        """ "kernel" or "libraries"; None for a subclass with another `decode`, which may expect encoded bytes."""
        return pixel_source() if type(self).decode is Patches.decode else None


def _kernel_views(crops: Crops, images: RaggedImages) -> list[native.View]:
    if images.channels != 3 or images.dtype != torch.uint8:
        return []
    resized = np.concatenate([crops.resized, crops.offset], axis=1)
    return [native.View(crops.box, crops.flip, images.memory.numpy(), resized, images.places, images.patch or 0)]
