"""Decoders: from encoded images to uint8 tensors, a batch at a time, cropping included.

A decoder is called with the encoded images of a batch and the samples' keys. Decoding and cropping are one step so that
a crop can be decoded without decoding the rest. A bad image is that image's failure alone.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg

from shardflow.errors import ConfigError, DecodeError
from shardflow.keyed import U64

from .crop import random_resized_crops

Images = torch.Tensor | list[torch.Tensor]
"""uint8, RGB: one tensor [B, 3, H, W] where all have one size, else a list of tensors [3, H, W]."""


class Decoder(Protocol):
    """Turns encoded images into tensors."""

    def __call__(self, payloads: Sequence[memoryview], keys: U64) -> tuple[Images, dict[int, DecodeError]]:
        """Decode a batch of one or more images.

        Args:
            payloads: The encoded images.
            keys: uint64 [B], the only source of randomness.

        Returns:
            The images, and what went wrong by index; the image of a failed index is arbitrary.
        """


class RandomResizedCropDecoder:
    """A random part of each image, resized to one size and flipped half of the time: the usual training crop.

    The crops are distributed as those of `torchvision.transforms.v2.RandomResizedCrop` followed by
    `RandomHorizontalFlip`; resizing is antialiased and bilinear.

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
        hflip: float = 0.5,
    ) -> None:
        if size < 1:
            raise ConfigError(f"size must be 1 or more, found {size}")
        if not 0 < scale[0] <= scale[1] <= 1:
            raise ConfigError(f"scale must be a range within (0, 1], found {scale}")
        if not 0 < ratio[0] <= ratio[1]:
            raise ConfigError(f"ratio must be a range above 0, found {ratio}")
        if not 0 <= hflip <= 1:
            raise ConfigError(f"hflip must be 0 … 1, found {hflip}")
        self.size, self.scale, self.ratio, self.hflip = size, scale, ratio, hflip

    def __call__(self, payloads: Sequence[memoryview], keys: U64) -> tuple[torch.Tensor, dict[int, DecodeError]]:
        """Return uint8 [B, 3, size, size]."""
        images, failures = decode_all(payloads)
        sizes = np.array([(image.shape[2], image.shape[1]) for image in images], dtype=np.int64)
        boxes, flip = random_resized_crops(sizes, keys, self.scale, self.ratio)
        return _crop_all(images, boxes, flip < self.hflip, self.size), failures


class CenterCropDecoder:
    """The centre of each image after its short side was resized: the usual evaluation crop.

    Args:
        size: Height and width of the result in pixels, 1 or more.
        resize: Short side before the crop; by default 8/7 of `size` (256 for 224).

    Raises:
        ConfigError: A value is out of its range.
    """

    def __init__(self, size: int = 224, *, resize: int | None = None) -> None:
        self.size = size
        self.resize = math.ceil(size * 8 / 7) if resize is None else resize
        if not 1 <= self.size <= self.resize:
            raise ConfigError(f"size must be 1 … resize, found size {self.size} and resize {self.resize}")

    def __call__(self, payloads: Sequence[memoryview], keys: U64) -> tuple[torch.Tensor, dict[int, DecodeError]]:  # noqa: ARG002 - nothing random here
        """Return uint8 [B, 3, size, size]."""
        images, failures = decode_all(payloads)
        batch = torch.empty((len(images), 3, self.size, self.size), dtype=torch.uint8)
        for slot, image in zip(batch, images, strict=True):
            height, width = image.shape[1:]
            short = min(height, width)
            # Rounded down as torchvision's Resize does.
            resized = _resize(image, height * self.resize // short, width * self.resize // short)
            top, left = round((resized.shape[1] - self.size) / 2), round((resized.shape[2] - self.size) / 2)
            slot.copy_(resized[:, top : top + self.size, left : left + self.size])
        return batch, failures


class ImageDecoder:
    """Whole images as they are; the loader's `transform` then has to end in one size."""

    def __call__(self, payloads: Sequence[memoryview], keys: U64) -> tuple[Images, dict[int, DecodeError]]:  # noqa: ARG002 - nothing random here
        """Return a list of uint8 [3, H, W]."""
        return decode_all(payloads)


def decode_all(payloads: Sequence[memoryview]) -> tuple[list[torch.Tensor], dict[int, DecodeError]]:
    """Decode whole images to uint8 [3, H, W], RGB; a bad one becomes a single black pixel and a failure."""
    images, failures = [], {}
    for index, payload in enumerate(payloads):
        try:
            images.append(_decode(payload))
        except DecodeError as error:
            images.append(torch.zeros((3, 1, 1), dtype=torch.uint8))
            failures[index] = error
    return images, failures


def _decode(payload: memoryview) -> torch.Tensor:
    decode: Callable[[memoryview], torch.Tensor] = _decode_jpeg if bytes(payload[:2]) == b"\xff\xd8" else _decode_other
    try:
        return decode(payload)
    # torchvision raises RuntimeError; Pillow nearly anything, SyntaxError included.
    except Exception as error:
        raise DecodeError(f"the image cannot be decoded: {str(error).splitlines()[0]}") from error


def _decode_jpeg(payload: memoryview) -> torch.Tensor:
    image: torch.Tensor = decode_jpeg(torch.frombuffer(payload, dtype=torch.uint8), mode=ImageReadMode.RGB)
    return image


def _decode_other(payload: memoryview) -> torch.Tensor:
    # Not torchvision's PNG decoder: damaged files can end the process there.
    with Image.open(io.BytesIO(payload)) as image:
        pixels = np.array(image.convert("RGB"))
    return torch.from_numpy(pixels).permute(2, 0, 1)


def _crop_all(
    images: Sequence[torch.Tensor], boxes: npt.NDArray[np.int32], flips: npt.NDArray[np.bool_], size: int
) -> torch.Tensor:
    batch = torch.empty((len(images), 3, size, size), dtype=torch.uint8)
    for slot, image, (x, y, w, h), flip in zip(batch, images, boxes.tolist(), flips.tolist(), strict=True):
        cropped = _resize(image[:, y : y + h, x : x + w], size, size)
        slot.copy_(cropped.flip(-1) if flip else cropped)
    return batch


def _resize(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    if image.shape[1:] == (height, width):
        return image
    # The kernel behind torchvision's antialiased resize, without the wrappers around it.
    resized: torch.Tensor = torch.ops.aten._upsample_bilinear2d_aa(image[None], [height, width], False)[0]
    return resized
