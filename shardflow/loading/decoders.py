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
import PIL
import torch
import torchvision
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg

from shardflow import native
from shardflow._validation import check_probability, check_range
from shardflow.errors import ConfigError, DecodeError
from shardflow.formats.image_types import image_size, is_jpeg
from shardflow.order.keyed_rng import U64

from .crop_sampling import Crops, Sizes, random_resized_crops

Images = torch.Tensor | list[torch.Tensor]
"""uint8, RGB: one tensor [B, 3, H, W] where all have one size, else a list of tensors [3, H, W]."""


Empty = Callable[[tuple[int, ...]], torch.Tensor]
"""Makes a uint8 tensor of a shape, its values arbitrary."""

Pixels = npt.NDArray[np.uint8]
"""A decoded image: [H, W, 3], RGB, contiguous."""

Payload = memoryview | Pixels
"""An encoded image, or a decoded one in its place: the decoders of this module take either."""


def new(shape: tuple[int, ...]) -> torch.Tensor:
    """Return fresh memory: the plainest `Empty`."""
    return torch.empty(shape, dtype=torch.uint8)


class Decoder(Protocol):
    """Turns encoded images into tensors."""

    def __call__(
        self, payloads: Sequence[memoryview], keys: U64, empty: Empty = new
    ) -> tuple[Images, dict[int, DecodeError]]:
        """Decode a batch of one or more images.

        Args:
            payloads: The encoded images.
            keys: uint64 [B], the only source of randomness.
            empty: What it makes, once per call, need not be copied on its way to the training process. It is lent for
                this batch: keep no view of it.

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
        self.size = size
        self.scale, self.ratio = check_range("scale", scale, most=1), check_range("ratio", ratio)
        self.hflip = check_probability("hflip", hflip)

    def __call__(
        self, payloads: Sequence[Payload], keys: U64, empty: Empty = new
    ) -> tuple[torch.Tensor, dict[int, DecodeError]]:
        """Return uint8 [B, 3, size, size]."""
        return _cropped(self, payloads, keys, empty)

    def crops(self, sizes: Sizes, keys: U64) -> Crops:
        """Return what becomes of images of these sizes."""
        boxes, flip = random_resized_crops(np.maximum(sizes, 1), keys, self.scale, self.ratio)
        resized = np.full((len(sizes), 4), (self.size, self.size, 0, 0), dtype=np.int32)
        return Crops(self.size, boxes, resized, flip < self.hflip)


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

    def __call__(
        self, payloads: Sequence[Payload], keys: U64, empty: Empty = new
    ) -> tuple[torch.Tensor, dict[int, DecodeError]]:
        """Return uint8 [B, 3, size, size]."""
        return _cropped(self, payloads, keys, empty)

    def crops(self, sizes: Sizes, keys: U64) -> Crops:  # noqa: ARG002 - nothing random here
        """Return what becomes of images of these sizes."""
        whole = np.concatenate([np.zeros_like(sizes), sizes], axis=1).astype(np.int32)
        # Rounded down as torchvision's Resize does.
        resized = sizes * self.resize // np.maximum(sizes.min(axis=1, keepdims=True), 1)
        window = np.rint((resized - self.size) / 2).astype(np.int64)
        placed = np.concatenate([resized, window], axis=1).astype(np.int32)
        return Crops(self.size, whole, placed, np.zeros(len(sizes), dtype=np.bool_))


class ImageDecoder:
    """Whole images as they are; the loader's `transform` then has to end in one size."""

    def __call__(
        self,
        payloads: Sequence[Payload],
        keys: U64,  # noqa: ARG002 - nothing random here
        empty: Empty = new,  # noqa: ARG002 - nothing that is one size
    ) -> tuple[Images, dict[int, DecodeError]]:
        """Return a list of uint8 [3, H, W]."""
        images, failures = [], {}
        for index, payload in enumerate(payloads):
            try:
                image = _decode(payload)
                # Pixels are lent for this batch; what is handed out here is kept.
                images.append(image.clone() if isinstance(payload, np.ndarray) else image)
            except DecodeError as error:
                images.append(torch.zeros((3, 1, 1), dtype=torch.uint8))
                failures[index] = error
        return images, failures


def decoder_versions(decoder: Decoder) -> str | None:
    """Name what `decode_whole` decodes with: other versions may give other pixels. None when the decoder takes none."""
    if type(decoder) not in (RandomResizedCropDecoder, CenterCropDecoder, ImageDecoder):
        return None  # not those derived from them either, which may expect bytes
    kernel = native.version() if _natively(decoder) else "none"
    return f"kernel {kernel}, torchvision {torchvision.__version__}, Pillow {PIL.__version__}"


def decode_whole(decoder: Decoder, payload: memoryview, width: int, height: int) -> Pixels | None:
    """Return the pixels that this decoder sees in an encoded image; None when it is damaged or not of that size.

    Called with them in the image's place, the decoder returns what it returns for the encoded image, bit by bit.
    """
    if image_size(payload) != (width, height):
        return None
    if _natively(decoder):
        pixels = np.empty((height, width, 3), dtype=np.uint8)
        problem = native.decode_resized(payload, pixels, oversampling=0)
        if problem is None:
            return pixels
        if is_jpeg(payload) and problem.status is not native.Status.UNSUPPORTED:
            return None
    try:
        image = _decode(payload)
    except DecodeError:
        return None
    return np.ascontiguousarray(image.permute(1, 2, 0).numpy()) if image.shape[1:] == (height, width) else None


def _natively(decoder: Decoder) -> bool:
    return native.available() and not isinstance(decoder, ImageDecoder)


def _sizes(payloads: Sequence[Payload]) -> Sizes:
    """Return sizes as the headers say, zeros where not known."""
    return np.array(
        [payload.shape[1::-1] if isinstance(payload, np.ndarray) else image_size(payload) for payload in payloads],
        dtype=np.int64,
    )


def _cropped(
    decoder: RandomResizedCropDecoder | CenterCropDecoder, payloads: Sequence[Payload], keys: U64, empty: Empty
) -> tuple[torch.Tensor, dict[int, DecodeError]]:
    """Decode and crop a batch: with the native kernel, and what that leaves as whole images. Failed ones are black."""
    sizes = _sizes(payloads)
    crops, batch = decoder.crops(sizes, keys), empty((len(payloads), 3, decoder.size, decoder.size))
    failures = {}
    for index in _left_by_the_kernel(payloads, sizes, crops, batch):
        try:
            image = _decode(payloads[index])
        except DecodeError as error:
            batch[index] = 0
            failures[index] = error
            continue
        size = np.array([image.shape[:0:-1]])
        if (size == sizes[index]).all():
            batch[index] = crops.cut(index, image, _resize)
        else:  # what the header says was not known, or not true
            batch[index] = decoder.crops(size, keys[index : index + 1]).cut(0, image, _resize)
    return batch, failures


def _left_by_the_kernel(payloads: Sequence[Payload], sizes: Sizes, crops: Crops, batch: torch.Tensor) -> list[int]:
    """Decode into the batch with the native kernel, and return the indexes of the images that it leaves."""
    if not native.available():
        return list(range(len(payloads)))
    # Other formats are problems to it; that they are none to their neighbours keeps pixels independent of the batch.
    problems = native.decode_crops(payloads, crops.boxes, crops.flips, batch.numpy(), resized=crops.resized)
    # Corrupt data that decodes all the same is accepted, as torchvision and Pillow do: the CRC says it was packed so.
    left = {problem.index for problem in problems if problem.status is not native.Status.DAMAGED}
    # The crop of a JPEG whose header does not say its size was made up.
    return sorted(left.union(np.flatnonzero(~sizes.all(axis=1)).tolist()))


def _decode(payload: Payload) -> torch.Tensor:
    if isinstance(payload, np.ndarray):
        return torch.from_numpy(payload).permute(2, 0, 1)
    decode: Callable[[memoryview], torch.Tensor] = _decode_jpeg if is_jpeg(payload) else _decode_other
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


def _resize(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    if image.shape[1:] == (height, width):
        return image
    # The kernel behind torchvision's antialiased resize, without the wrappers around it.
    resized: torch.Tensor = torch.ops.aten._upsample_bilinear2d_aa(image[None], [height, width], False)[0]
    return resized
