"""Decoders: from encoded images to uint8 tensors, a batch at a time, cropping included.

A decoder is called with the encoded images of a batch and the samples' keys. Decoding and cropping are one step so that
a crop can be decoded without decoding the rest. A bad image is that image's failure alone.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import PIL
import torch
import torchvision
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg

from shardflow import native
from shardflow.errors import ConfigError, DecodeError
from shardflow.imagesize import image_size
from shardflow.keyed import U64

from .checked import check_probability, check_range
from .crop import random_resized_crops

Images = torch.Tensor | list[torch.Tensor]
"""uint8, RGB: one tensor [B, 3, H, W] where all have one size, else a list of tensors [3, H, W]."""


Empty = Callable[[tuple[int, ...]], torch.Tensor]
"""Makes a uint8 tensor of a shape, its values arbitrary."""

Pixels = npt.NDArray[np.uint8]
"""A decoded image: [H, W, 3], RGB, contiguous. The decoders of this module take it in the place of an encoded one."""

_JPEG = b"\xff\xd8"


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
        self, payloads: Sequence[memoryview | Pixels], keys: U64, empty: Empty = new
    ) -> tuple[torch.Tensor, dict[int, DecodeError]]:
        """Return uint8 [B, 3, size, size]."""
        sizes = _sizes(payloads)
        boxes, flip = random_resized_crops(np.maximum(sizes, 1), keys, self.scale, self.ratio)
        flips = flip < self.hflip

        def crop(index: int, image: torch.Tensor) -> torch.Tensor:
            x, y, w, h = boxes[index].tolist()
            height, width = image.shape[1:]
            if (width, height) != tuple(sizes[index]):  # what the header says was not known, or not true
                own, _ = random_resized_crops(
                    np.array([[width, height]]), keys[index : index + 1], self.scale, self.ratio
                )
                x, y, w, h = own[0].tolist()
            cropped = _resize(image[:, y : y + h, x : x + w], self.size, self.size)
            return cropped.flip(-1) if flips[index] else cropped

        batch = empty((len(payloads), 3, self.size, self.size))
        left = _decode_natively(payloads, sizes, boxes, flips, batch)
        return batch, _decode_generally(payloads, left, crop, batch)


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
        self,
        payloads: Sequence[memoryview | Pixels],
        keys: U64,  # noqa: ARG002 - nothing random here
        empty: Empty = new,
    ) -> tuple[torch.Tensor, dict[int, DecodeError]]:
        """Return uint8 [B, 3, size, size]."""
        sizes = _sizes(payloads)
        # Rounded down as torchvision's Resize does.
        resized = sizes * self.resize // np.maximum(sizes.min(axis=1, keepdims=True), 1)
        window = np.rint((resized - self.size) / 2).astype(np.int64)

        def crop(_index: int, image: torch.Tensor) -> torch.Tensor:
            height, width = (side * self.resize // min(image.shape[1:]) for side in image.shape[1:])
            top, left = round((height - self.size) / 2), round((width - self.size) / 2)
            return _resize(image, height, width)[:, top : top + self.size, left : left + self.size]

        batch = empty((len(payloads), 3, self.size, self.size))
        whole = np.concatenate([np.zeros_like(sizes), sizes], axis=1).astype(np.int32)
        placed = np.concatenate([resized, window], axis=1).astype(np.int32)
        left = _decode_natively(payloads, sizes, whole, np.zeros(len(payloads), dtype=np.bool_), batch, placed)
        return batch, _decode_generally(payloads, left, crop, batch)


class ImageDecoder:
    """Whole images as they are; the loader's `transform` then has to end in one size."""

    def __call__(
        self,
        payloads: Sequence[memoryview | Pixels],
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
    kernel = native.why() if _natively(decoder) else "no kernel"
    return f"{kernel}, torchvision {torchvision.__version__}, Pillow {PIL.__version__}"


def decode_whole(decoder: Decoder, payload: memoryview, width: int, height: int) -> Pixels | None:
    """Return the pixels that this decoder sees in an encoded image; None when it is damaged or not of that size.

    Called with them in the image's place, the decoder returns what it returns for the encoded image, bit by bit.
    """
    if _natively(decoder):
        pixels = np.empty((height, width, 3), dtype=np.uint8)
        box = np.array([[0, 0, width, height]], dtype=np.int32)
        planes = pixels.transpose(2, 0, 1)[np.newaxis]
        problems = native.decode_crops([payload], box, np.zeros(1, dtype=np.bool_), planes)
        if not problems:
            return pixels
        if bytes(payload[:2]) == _JPEG and problems[0].status is not native.Status.UNSUPPORTED:
            return None
    try:
        image = _decode(payload)
    except DecodeError:
        return None
    return np.ascontiguousarray(image.permute(1, 2, 0).numpy()) if image.shape[1:] == (height, width) else None


def _natively(decoder: Decoder) -> bool:
    return native.available() and not isinstance(decoder, ImageDecoder)


def _sizes(payloads: Sequence[memoryview | Pixels]) -> npt.NDArray[np.int64]:
    """Return width and height as the headers say: int64 [B, 2], zeros where not known."""
    return np.array(
        [payload.shape[1::-1] if isinstance(payload, np.ndarray) else image_size(payload) for payload in payloads],
        dtype=np.int64,
    )


def _decode_natively(
    payloads: Sequence[memoryview | Pixels],
    sizes: npt.NDArray[np.int64],
    boxes: npt.NDArray[np.int32],
    flips: npt.NDArray[np.bool_],
    batch: torch.Tensor,
    resized: npt.NDArray[np.int32] | None = None,
) -> list[int]:
    """Decode with the native kernel, and return the indexes of the images that are left for the general decoder."""
    if not native.available():
        return list(range(len(payloads)))
    # Other formats are problems to it; that they are none to their neighbours keeps pixels independent of the batch.
    problems = native.decode_crops(payloads, boxes, flips, batch.numpy(), resized=resized)
    # Corrupt data that decodes all the same is accepted, as torchvision and Pillow do: the CRC says it was packed so.
    left = {problem.index for problem in problems if problem.status is not native.Status.DAMAGED}
    # The crop of a JPEG whose header does not say its size was made up.
    return sorted(left.union(np.flatnonzero(~sizes.all(axis=1)).tolist()))


def _decode_generally(
    payloads: Sequence[memoryview | Pixels],
    indexes: Iterable[int],
    crop: Callable[[int, torch.Tensor], torch.Tensor],
    batch: torch.Tensor,
) -> dict[int, DecodeError]:
    """Decode whole images and crop them into the batch; return what went wrong, those images black."""
    failures = {}
    for index in indexes:
        try:
            batch[index] = crop(index, _decode(payloads[index]))
        except DecodeError as error:
            batch[index] = 0
            failures[index] = error
    return failures


def _decode(payload: memoryview | Pixels) -> torch.Tensor:
    if isinstance(payload, np.ndarray):
        return torch.from_numpy(payload).permute(2, 0, 1)
    decode: Callable[[memoryview], torch.Tensor] = _decode_jpeg if bytes(payload[:2]) == _JPEG else _decode_other
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
