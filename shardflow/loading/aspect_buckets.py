"""Aspect buckets: whole images in a few shapes, batches of one shape each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shardflow._validation import check_integer
from shardflow.dataset.dataset import Split
from shardflow.errors import ConfigError
from shardflow.formats.image_limits import MAX_PIXELS
from shardflow.geometry.crops import Crops, Sizes
from shardflow.order.keyed_rng import U64

from .decoders.cover import Cover


class AspectBucketDecoder(Cover):
    """A `Cover` with the shapes of the batches: each image is in the bucket with the nearest ratio of width and height.

    `Loader` fills each batch from one bucket, the same on all ranks, and hands the last samples of a bucket on to the
    next: so each sample comes once.

    >>> decoder = shardflow.AspectBucketDecoder([(224, 224), (192, 256), (256, 192)])     # doctest: +SKIP

    Args:
        sizes: Shapes of the buckets, (height, width) in pixels.
        random, hflip, max_pixels: As for `Cover`.

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
        super().__init__(random=random, hflip=hflip, max_pixels=max_pixels)
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

    def plan(self, epoch: int, shape: tuple[int, int] | None, sizes: Sizes, keys: U64) -> Crops:
        """Return the crops; without a shape those of the bucket of the first image."""
        shape = shape or self.sizes[int(self.buckets(np.maximum(sizes[:1], 1))[0])]
        return super().plan(epoch, shape, sizes, keys)


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
