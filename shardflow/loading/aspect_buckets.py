"""Aspect buckets: whole images in a few shapes, batches of one shape each."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shardflow._validation import check_integer, check_probability
from shardflow.dataset.dataset import Split
from shardflow.errors import ConfigError
from shardflow.formats.image_limits import MAX_PIXELS
from shardflow.order import keyed_rng
from shardflow.order.keyed_rng import U64

from .decoders import Decoded, Empty, Payload, decode_crops, new
from .geometry import Geometry, Sizes


class AspectBucketDecoder:
    """Resizes each image to cover the shape of its bucket and crops it to that: hardly anything is cut off.

    The bucket of an image is the one with the nearest ratio of width and height. `Loader` fills each batch from one
    bucket, the same on all ranks, and hands the last samples of a bucket on to the next: so each sample comes once.

    >>> decoder = shardflow.decoders.AspectBucketDecoder([(224, 224), (192, 256), (256, 192)])  # doctest: +SKIP

    Args:
        sizes: Shapes of the buckets, (height, width) in pixels.
        random: Crop at random along the side that is too long; otherwise in the middle.
        hflip: Probability of a horizontal flip, 0 … 1.
        max_pixels: As for `RandomResizedCropDecoder`.

    Attributes:
        sizes: The shapes, from the tallest to the widest.

    Raises:
        ConfigError: There is no size, or a value is out of its range.
    """

    def __init__(
        self,
        sizes: Sequence[tuple[int, int]],
        *,
        random: bool = True,
        hflip: float = 0.5,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        try:
            pairs = [(height, width) for height, width in sizes]
        except (TypeError, ValueError):
            raise ConfigError(
                f"sizes must be a list of pairs of height and width, as [(224, 224), (192, 256)]; found {sizes!r}"
            ) from None
        found = {(check_integer("height", height, 1), check_integer("width", width, 1)) for height, width in pairs}
        if not found:
            raise ConfigError("sizes must have one pair of height and width or more")
        self.sizes = tuple(sorted(found, key=lambda size: (size[1] / size[0], size)))
        self.random, self.hflip = bool(random), check_probability("hflip", hflip)
        self.max_pixels = check_integer("max_pixels", max_pixels, 1)
        self._bucket: int | None = None

    def __repr__(self) -> str:
        return f"AspectBucketDecoder({list(self.sizes)}, random={self.random}, hflip={self.hflip})"

    def buckets(self, sizes: Sizes) -> npt.NDArray[np.int64]:
        """Return the number of the bucket of images of these sizes, int64 [N]."""
        ratios = np.log([width / height for height, width in self.sizes])
        wanted = np.log(sizes[:, 0] / sizes[:, 1])
        right = np.clip(np.searchsorted(ratios, wanted), 1, max(1, len(ratios) - 1))
        left = right - 1
        right = np.minimum(right, len(ratios) - 1)
        nearest: npt.NDArray[np.int64] = np.where(wanted - ratios[left] <= ratios[right] - wanted, left, right)
        return nearest

    def in_bucket(self, bucket: int) -> AspectBucketDecoder:
        """Return the decoder of one bucket."""
        other = copy.copy(self)
        other._bucket = bucket
        return other

    def __call__(self, payloads: Sequence[Payload], sizes: Sizes, keys: U64, empty: Empty = new) -> Decoded:
        """Return uint8 [B, 3, height, width]: of the bucket that was chosen, else of the bucket of the first image."""
        decoder = self
        if self._bucket is None:
            decoder = self.in_bucket(int(self.buckets(np.maximum(sizes[:1], 1))[0]))
        return decode_crops(decoder, payloads, sizes, keys, empty)

    def geometry(self, sizes: Sizes, keys: U64) -> Geometry:
        """Return the crops of images of these sizes."""
        height, width = self.sizes[self._bucket or 0]
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


def sample_buckets(decoder: AspectBucketDecoder, split: Split, samples: int) -> npt.NDArray[np.int64]:
    """Return the bucket of each of the first samples of a split, from the sizes in its indexes: int64 [samples].

    Raises:
        ConfigError: The index does not have the size of an image.
    """
    sizes = split.image_sizes()[:samples]
    if len(unknown := np.flatnonzero(~sizes.all(axis=1))):
        raise ConfigError(
            f"aspect buckets need the sizes of all images; the index lacks {len(unknown)} of {samples}, "
            f"the first is that of sample {unknown[0]}"
        )
    return decoder.buckets(sizes)
