"""Aspect buckets: whole images in a few shapes, batches of one shape each."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from shardflow._validation import check_integer, check_probability
from shardflow.errors import ConfigError
from shardflow.formats.image_limits import MAX_PIXELS
from shardflow.order import keyed_rng
from shardflow.order.keyed_rng import U64
from shardflow.order.sampler import Shape

from .decoders import Decoded, Empty, Payload, decode_crops, new
from .geometry import Geometry, Sizes


class AspectBucketDecoder:
    """Resizes each image to cover the shape of its batch and crops it to that: hardly anything is cut off.

    `samplers.AspectBuckets` decides which shape a batch has.

    >>> buckets = shardflow.samplers.AspectBuckets([(224, 224), (192, 256), (256, 192)])     # doctest: +SKIP
    >>> decoder = shardflow.AspectBucketDecoder(hflip=0)                                     # doctest: +SKIP
    >>> loader = shardflow.Loader(url, batch_size=64, decoder=decoder, sampler=buckets)      # doctest: +SKIP

    Args:
        random: Crop at random along the side that is too long; otherwise in the middle.
        hflip: Probability of a horizontal flip, 0 … 1.
        max_pixels: As for `RandomResizedCropDecoder`.

    Raises:
        ConfigError: A value is out of its range.
    """

    def __init__(self, *, random: bool = True, hflip: float = 0.5, max_pixels: int = MAX_PIXELS) -> None:
        self.random, self.hflip = bool(random), check_probability("hflip", hflip)
        self.max_pixels = check_integer("max_pixels", max_pixels, 1)
        self._shape: Shape | None = None

    def __repr__(self) -> str:
        return f"AspectBucketDecoder(random={self.random}, hflip={self.hflip})"

    def in_bucket(self, shape: Shape) -> AspectBucketDecoder:
        """Return the decoder of batches of this shape."""
        other = copy.copy(self)
        other._shape = shape
        return other

    def __call__(self, payloads: Sequence[Payload], sizes: Sizes, keys: U64, empty: Empty = new) -> Decoded:
        """Return uint8 [B, 3, height, width], of the shape that was chosen."""
        return decode_crops(self, payloads, sizes, keys, empty)

    def geometry(self, sizes: Sizes, keys: U64) -> Geometry:
        """Return the crops of images of these sizes."""
        if self._shape is None:
            raise ConfigError(
                "AspectBucketDecoder needs sampler=samplers.AspectBuckets([...]), which decides on shapes"
            )
        height, width = self._shape
        known = np.maximum(sizes, 1)
        scale = np.maximum(width / known[:, 0], height / known[:, 1])[:, None]
        resized = np.maximum(np.rint(known * scale), [width, height]).astype(np.int64)
        chance = keyed_rng.uniforms(keys, 3)
        where = chance[:, :2] if self.random else np.full((len(sizes), 2), 0.5)
        return Geometry(
            source=sizes.astype(np.int32),
            box=np.concatenate([np.zeros_like(sizes), sizes], axis=1).astype(np.int32),
            resized=resized.astype(np.int32),
            window=(where * (resized - [width, height] + 1)).astype(np.int32),
            flip=chance[:, 2] < self.hflip,
            size=(width, height),
        )
