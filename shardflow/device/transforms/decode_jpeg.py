"""Decoding on the device.

`decoders.Raw` in the worker packs the encoded images into one uint8 tensor, which travels like any batch. `DecodeJpeg`,
the prefetcher's first transform, decodes them with nvJPEG on a GPU, or with the workers' decoder on a CPU. It crops the
same boxes as a decoder in the worker.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from shardflow._rgb import is_plain_jpeg
from shardflow.errors import ConfigError, SampleError
from shardflow.formats.image_types import jpeg_components
from shardflow.geometry.crops import Crops
from shardflow.loading.decoders.crop_decoder import CropDecoder, check_crop_decoder
from shardflow.loading.decoders.decoder import Failures
from shardflow.loading.decoders.pixels import check_resized, crop_pixels, jpeg_decoder
from shardflow.loading.decoders.raw import STEP_BYTES, EncodedImages, check_file
from shardflow.loading.decoders.standard_crops import RandomResizedCrop
from shardflow.loading.decoders.whole_image import Image

_NO_NVJPEG = re.compile(r"not compiled with nvJPEG|Failed to (initialize|create) |nvjpegGetProperty failed")
"""torchvision's messages about nvJPEG, not about an image."""

logger = logging.getLogger(__name__)


class DecodeJpeg:
    """Decodes and crops the images of `decoders.Raw` on the device; must be a prefetcher's first transform.

    On a CUDA device, nvJPEG decodes the JPEGs of a batch together; a batch that it refuses is halved repeatedly to find
    the refused files. A CPU thread decodes these, other formats, CMYK files, and JPEGs that must be turned upright or
    converted to sRGB. On a CPU, `crop` decodes all images.

    Args:
        crop: The decoder that plans the crops, by default `decoders.RandomResizedCrop(224)`.

    Attributes:
        refused: Number of JPEGs that nvJPEG has refused. The first is logged as a warning, with nvJPEG's reason.

    Raises:
        ConfigError: The crop is not a decoder that crops.
    """

    def __init__(self, crop: CropDecoder | None = None) -> None:
        self.crop: CropDecoder = RandomResizedCrop() if crop is None else crop
        self.refused = 0
        check_crop_decoder("crop", self.crop)

    def __call__(self, rows: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return the crops, uint8 [B, 3, height, width], on the device.

        Args:
            rows: uint8 [B, row length] on the CPU, a whole batch of `decoders.Raw`.
            device: The device to decode on.

        Raises:
            DecodeError: An image cannot be decoded.
            TooLargeError: An image is larger than `crop.max_pixels` allows.
            ConfigError: The batch is not from `decoders.Raw`, or nvJPEG is missing or does not start.
            torch.cuda.OutOfMemoryError: The images do not fit into the device's memory.
        """
        if rows.dtype != torch.uint8 or rows.dim() != 2 or rows.shape[1] % STEP_BYTES:
            raise ConfigError("DecodeJpeg needs encoded images; give the loader decoder=decoders.Raw()")
        sizes = np.zeros((len(rows), 2), dtype=np.int64)
        if not len(rows):
            none = self.crop.plan(0, None, sizes, np.zeros(0, dtype=np.uint64))
            assert isinstance(none, Crops)
            assert none.size is not None
            return torch.empty((0, 3, *none.size[::-1]), dtype=torch.uint8, device=device)
        encoded = EncodedImages(rows)
        files = [encoded.file(index) for index in range(len(rows))]
        if device.type == "cuda":
            return self._crop(self._decode_on_gpu(files, device), encoded)
        payloads = [file.numpy().data for file in files]
        decoded = self.crop(payloads, sizes, encoded.keys, epoch=encoded.epoch, shape=encoded.shape)
        _raise_first(decoded.failures, range(len(rows)))
        images: torch.Tensor = decoded.images
        return images.to(device)

    def _crop(self, images: list[torch.Tensor], encoded: EncodedImages) -> torch.Tensor:
        """Return the crops of whole images, uint8 [3, H, W], on their device: uint8 [B, 3, height, width]."""
        sizes = np.array([image.shape[:0:-1] for image in images])
        crops = self.crop.plan(encoded.epoch, encoded.shape, sizes, encoded.keys)
        assert isinstance(crops, Crops)
        for index, size in enumerate(crops.resized.tolist()):
            with _naming(index):
                check_resized(size, self.crop.max_pixels)
        cropped = torch.stack([crop_pixels(crops, index, image, _resize) for index, image in enumerate(images)])
        return cropped.round_().clamp_(0, 255).to(torch.uint8)

    def _decode_on_gpu(self, files: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
        """Return the whole images, uint8 [3, H, W], of encoded images."""
        payloads = [file.numpy().data for file in files]
        for index, payload in enumerate(payloads):
            with _naming(index):
                check_file(payload, self.crop.max_pixels)
        if device.type == "cuda":
            # torchvision decodes on another stream, which does not wait for the current one, into freed memory that
            # work on the current stream may still read.
            queued = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            queued.record(torch.cuda.current_stream(device))
            queued.synchronize()
        # A file that nvJPEG refuses fails its whole batch, so known kinds are sorted out, as are files whose metadata
        # nvJPEG would ignore.
        jpegs = [
            index
            for index, payload in enumerate(payloads)
            if jpeg_components(payload) in (1, 3) and is_plain_jpeg(payload, self.crop.max_pixels)
        ]
        images = self._decode_with_nvjpeg([files[index] for index in jpegs], device)
        decoded = {index: image for index, image in zip(jpegs, images, strict=True) if image is not None}
        if remaining := [index for index in range(len(files)) if index not in decoded]:
            sizes, keys = np.zeros((len(remaining), 2), dtype=np.int64), np.zeros(len(remaining), dtype=np.uint64)
            decoder = Image(max_pixels=self.crop.max_pixels)
            others, _, failures = decoder([payloads[index] for index in remaining], sizes, keys)
            _raise_first(failures, remaining)
            decoded |= {index: image.to(device) for index, image in zip(remaining, others, strict=True)}
        return [decoded[index] for index in range(len(files))]

    def _decode_with_nvjpeg(self, files: list[torch.Tensor], device: torch.device) -> list[torch.Tensor | None]:
        """Return the whole images of JPEGs, None for those that nvJPEG refuses."""
        if not files:
            return []
        if (decode := jpeg_decoder()) is None:
            raise ConfigError("DecodeJpeg needs torchvision or torchcodec with a JPEG decoder; pip install torchcodec")
        try:
            images: list[torch.Tensor | None] = decode(files, device=device)
            return images
        except torch.cuda.OutOfMemoryError:
            raise  # the batch is too large for the device; decoding on the CPU would hide this
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            if "out of memory" in reason:  # torchvision makes a RuntimeError of every error
                raise torch.cuda.OutOfMemoryError(reason) from error
            if _NO_NVJPEG.search(reason):
                raise ConfigError(
                    f"nvJPEG cannot be used: {reason}; install a CUDA build of torchvision that the driver supports, "
                    "or leave out DecodeJpeg and give the crop to the loader as its decoder"
                ) from error
            if len(files) == 1:  # an unsupported or damaged JPEG: the CPU decoder will tell
                if not self.refused:
                    logger.warning("nvJPEG refused an image; the CPU decodes such images, which is slow: %s", reason)
                self.refused += 1
                return [None]
        middle = len(files) // 2
        return self._decode_with_nvjpeg(files[:middle], device) + self._decode_with_nvjpeg(files[middle:], device)


def _resize(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return float32 [3, height, width]: on a GPU, antialiased resizing needs floating point."""
    return torch.nn.functional.interpolate(
        image[None].to(torch.float32), (height, width), mode="bilinear", antialias=True
    )[0]


@contextlib.contextmanager
def _naming(index: int) -> Iterator[None]:
    """Add the number of an image in the batch to its error."""
    try:
        yield
    except SampleError as error:
        raise type(error)(f"image {index} of the batch: {error}") from error


def _raise_first(failures: Failures, indexes: Sequence[int]) -> None:
    """Raise the first failure, if any; image i of the failures is image `indexes[i]` of the batch."""
    for first in sorted(failures)[:1]:
        with _naming(indexes[first]):
            raise failures[first]
