"""Crops that cover the shape of their batch, on which a sampler decides."""

from __future__ import annotations

import numpy as np

from shardflow._validation import check_integer, check_probability
from shardflow.errors import ConfigError
from shardflow.formats.image_limits import MAX_PIXELS
from shardflow.geometry.crops import Crops, Sizes
from shardflow.order import keyed_rng
from shardflow.order.keyed_rng import U64

from .crop_decoder import CropDecoder


class Cover(CropDecoder):
    """Resizes each image to cover the shape of its batch and crops it to that: hardly anything is cut off.

    `samplers.AspectBuckets` decides which shape a batch has, and implies this decoder.

    >>> buckets = shardflow.samplers.AspectBuckets([(224, 224), (192, 256), (256, 192)])  # doctest: +SKIP
    >>> decoder = shardflow.decoders.Cover(hflip=0)  # doctest: +SKIP
    >>> loader = shardflow.Loader(url, batch_size=64, decoder=decoder, sampler=buckets)             # doctest: +SKIP

    Args:
        random: Crop at random along the side that is too long; otherwise in the middle.
        hflip: Probability of a horizontal flip, 0 … 1.
        max_pixels: As for `RandomResizedCrop`.

    Raises:
        ConfigError: A value is out of its range.
    """

    needs_shape = True

    def __init__(self, *, random: bool = True, hflip: float = 0.5, max_pixels: int = MAX_PIXELS) -> None:
        self.random, self.hflip = bool(random), check_probability("hflip", hflip)
        self.max_pixels = check_integer("max_pixels", max_pixels, 1)

    def plan(self, epoch: int, shape: tuple[int, int] | None, sizes: Sizes, keys: U64) -> Crops:  # noqa: ARG002
        """Return the crops of images of these sizes.

        Raises:
            ConfigError: The batch has no shape.
        """
        if shape is None:
            raise ConfigError(
                "decoders.Cover crops to the shape of a batch, and no sampler chose one; give the loader "
                "sampler=samplers.AspectBuckets([...]), or use RandomResizedCrop"
            )
        height, width = shape
        known = np.maximum(sizes, 1)
        scale = np.maximum(width / known[:, 0], height / known[:, 1])[:, None]
        resized = np.maximum(np.rint(known * scale), [width, height]).astype(np.int64)
        chance = keyed_rng.uniforms(keys, 3)
        where = chance[:, :2] if self.random else np.full((len(sizes), 2), 0.5)
        offset = where * (resized - [width, height] + 1)
        return Crops.of(sizes, resized=resized, offset=offset, flip=chance[:, 2] < self.hflip, size=(width, height))
