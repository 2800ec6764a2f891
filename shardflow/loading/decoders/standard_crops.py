"""The standard crops: random for training, central for evaluation, and covering the shape of a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from shardflow._validation import check_integer, check_probability, check_range, explain_unknown_arguments
from shardflow.errors import ConfigError
from shardflow.formats.image_limits import MAX_PIXELS
from shardflow.geometry.crops import Crops, Sizes
from shardflow.geometry.random_boxes import random_resized_crops
from shardflow.order import keyed_rng
from shardflow.order.keyed_rng import U64

from .crop_decoder import CropDecoder

_TORCHVISION = {"interpolation": "resizing is bilinear", "antialias": "resizing is always antialiased"}
NO_FLIP = "it flips no image; add v2.RandomHorizontalFlip as transform, or use RandomResizedCrop"


class _SizedCrop(CropDecoder):
    def __setattr__(self, name: str, value: object) -> None:
        if name in ("size", "resize") and name in vars(self):  # other values follow from it
            raise AttributeError(f"{name} is fixed once a decoder is made; make another one")
        super().__setattr__(name, value)


class RandomResizedCrop(_SizedCrop):
    """A random part of each image, resized to one size and flipped half of the time: the usual training crop.

    The crops have the distribution of `torchvision.transforms.v2.RandomResizedCrop` followed by `RandomHorizontalFlip`;
    resizing is antialiased and bilinear.

    Args:
        size: Height and width of the result in pixels, 1 or more; or a mapping from first epoch to size, {0: 128, 6:
            160, 14: 192}, for progressive resizing.
        scale: Range of the crop's share of the image's area, within (0, 1].
        ratio: Range of the crop's width / height, above 0.
        hflip: Probability of a horizontal flip, 0 … 1.
        max_pixels: Images with more pixels fail with `TooLargeError`, as do those over the limits of memory and scans
            that follow from it. 110 million pixels take up to 0.99 GB.

    Raises:
        ConfigError: A value is out of its range.
    """

    @explain_unknown_arguments(_TORCHVISION)
    def __init__(
        self,
        size: int | Mapping[int, int] = 224,
        *,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        hflip: float = 0.5,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self._sizes = _size_by_epoch(size)
        self.size = self._sizes if len(self._sizes) > 1 else self._sizes[0]
        self.scale, self.ratio = check_range("scale", scale, most=1), check_range("ratio", ratio)
        self.hflip = check_probability("hflip", hflip)
        self.max_pixels = check_integer("max_pixels", max_pixels, 1)

    def size_at(self, epoch: int) -> int:
        """Return height and width of the crops of an epoch."""
        return self._sizes[max(first for first in self._sizes if first <= epoch)]

    def plan(self, epoch: int, shape: tuple[int, int] | None, sizes: Sizes, keys: U64) -> Crops:  # noqa: ARG002
        """Return the crops of images of these sizes."""
        size = self.size_at(epoch)
        boxes, flip = random_resized_crops(np.maximum(sizes, 1), keys, self.scale, self.ratio)
        return Crops.of(sizes, box=boxes, resized=(size, size), flip=flip < self.hflip, size=(size, size))


def _size_by_epoch(size: int | Mapping[int, int]) -> dict[int, int]:
    """Return first epoch → size; epoch 0 is among the keys."""
    if not isinstance(size, Mapping):
        return {0: check_integer("size", size, 1)}
    sizes = {check_integer("epoch", epoch, 0): check_integer("size", value, 1) for epoch, value in size.items()}
    if 0 not in sizes:
        raise ConfigError(f"size must begin with epoch 0, as in {{0: 128, 6: 160}}, found {dict(size)}")
    return sizes


class CenterCrop(_SizedCrop):
    """The centre of each image after a resize of its short side: the usual evaluation crop.

    Args:
        size: Height and width of the result in pixels, 1 or more.
        resize: Short side before the crop, `size` or more; by default 8/7 of `size`, rounded up (256 for 224).
        max_pixels: As for `RandomResizedCrop`.

    Raises:
        ConfigError: A value is out of its range.
    """

    @explain_unknown_arguments({**_TORCHVISION, "hflip": NO_FLIP})
    def __init__(self, size: int = 224, *, resize: int | None = None, max_pixels: int = MAX_PIXELS) -> None:
        self.size = check_integer("size", size)
        self.resize = math.ceil(size * 8 / 7) if resize is None else check_integer("resize", resize)
        if not 1 <= self.size <= self.resize:
            raise ConfigError(f"size must be 1 … resize, found size {self.size} and resize {self.resize}")
        self.max_pixels = check_integer("max_pixels", max_pixels, 1)

    def plan(self, epoch: int, shape: tuple[int, int] | None, sizes: Sizes, keys: U64) -> Crops:  # noqa: ARG002
        """Return the crops of images of these sizes."""
        # Rounded down as torchvision's Resize does.
        resized = sizes * self.resize // np.maximum(sizes.min(axis=1, keepdims=True), 1)
        offset = np.rint((resized - self.size) / 2)
        return Crops.of(sizes, resized=resized, offset=offset, size=(self.size, self.size))


class Cover(CropDecoder):
    """Resizes each image to cover the shape of its batch, and crops the excess.

    `samplers.AspectBuckets` chooses the shape of a batch, and makes this the default decoder.

    >>> buckets = shardflow.samplers.AspectBuckets([(224, 224), (192, 256), (256, 192)])
    >>> decoder = shardflow.decoders.Cover(hflip=0)
    >>> loader = shardflow.Loader(url, batch_size=64, decoder=decoder, sampler=buckets)

    Args:
        random: Whether the crop is at a random place along the longer side, or in the middle.
        hflip: Probability of a horizontal flip, 0 … 1.
        max_pixels: As for `RandomResizedCrop`.

    Raises:
        ConfigError: A value is out of its range.
    """

    needs_shape = True

    @explain_unknown_arguments(_TORCHVISION)
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
