"""Decoding on the device, of encoded images that the workers hand on.

`EncodedDecoder` in the worker puts the encoded images side by side into one uint8 tensor, which travels like any batch.
`DecodeJpeg`, the prefetcher's first transform, decodes them: with nvJPEG on a GPU, with the workers' decoder on a CPU.
Both crop the boxes that the decoder in the worker would crop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torchvision.io import ImageReadMode, decode_jpeg

from shardflow.errors import ConfigError, DecodeError
from shardflow.formats.image_types import is_jpeg
from shardflow.loading.decoders import CenterCropDecoder, Decoded, Empty, ImageDecoder, RandomResizedCropDecoder, new
from shardflow.loading.geometry import Sizes
from shardflow.order.keyed_rng import U64

Crop = RandomResizedCropDecoder | CenterCropDecoder

HEADER_BYTES = 16
STEP_BYTES = 1 << 14
"""Rows are as long as the longest image needs, rounded up to this, so that few sizes of shared memory occur."""


class JpegBuffer:
    """The encoded images of a batch, side by side in one tensor: uint8 [B, `row_bytes`]. Each row holds one image:

        int64     length of the encoded image in bytes
        uint64    the sample's key, from which the crop is drawn
        bytes     the encoded image; the rest is arbitrary

    Such a tensor travels like any batch of images. A row is complete by itself, so one can be copied over another.
    """

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory
        self._bytes = memory.numpy()
        header = self._bytes[:, :HEADER_BYTES]
        self._lengths, self.keys = header.view(np.int64)[:, 0], header.view(np.uint64)[:, 1]

    def file(self, index: int) -> torch.Tensor:
        """Return the encoded image of a row: uint8 [length]."""
        return self._memory[index, HEADER_BYTES : HEADER_BYTES + int(self._lengths[index])]

    def put_file(self, index: int, payload: memoryview, key: int) -> None:
        """Write an encoded image and its key into a row."""
        self._lengths[index], self.keys[index] = len(payload), key
        self._bytes[index, HEADER_BYTES : HEADER_BYTES + len(payload)] = np.frombuffer(payload, np.uint8)


class EncodedDecoder:
    """Hands the encoded images on, for `DecodeJpeg` to decode on the device.

    >>> loader = shardflow.Loader("photos256", batch_size=256, decoder=shardflow.EncodedDecoder())  # doctest: +SKIP
    >>> batches = shardflow.DevicePrefetcher(loader, "cuda", [shardflow.DecodeJpeg()])              # doctest: +SKIP
    """

    def __repr__(self) -> str:
        return "EncodedDecoder()"

    def __call__(
        self,
        payloads: Sequence[memoryview],
        sizes: Sizes,  # noqa: ARG002 - the crop is planned on the device
        keys: U64,
        empty: Empty = new,
    ) -> Decoded:
        """Return uint8 [B, row length], laid out as `JpegBuffer`."""
        row_bytes = -(-(HEADER_BYTES + max(map(len, payloads))) // STEP_BYTES) * STEP_BYTES
        rows = empty((len(payloads), row_bytes))
        buffer = JpegBuffer(rows)
        for index, (payload, key) in enumerate(zip(payloads, keys.tolist(), strict=True)):
            buffer.put_file(index, payload, key)
        return Decoded(rows, None, {})


class DecodeJpeg:
    """Decodes and crops on the device the images of an `EncodedDecoder`; the first of a prefetcher's transforms.

    On a CUDA device, nvJPEG decodes the JPEG files of a batch together. If it refuses the batch, it decodes each file
    by itself. The CPU decodes files that nvJPEG still refuses, and other formats. On a CPU, `crop` decodes all of them.

    Args:
        crop: Determines the boxes and their size, by default `RandomResizedCropDecoder(224)`.

    Raises:
        ConfigError: The crop is neither a `RandomResizedCropDecoder` nor a `CenterCropDecoder`.
    """

    def __init__(self, crop: Crop | None = None) -> None:
        self.crop: Crop = RandomResizedCropDecoder() if crop is None else crop
        if not isinstance(self.crop, (RandomResizedCropDecoder, CenterCropDecoder)):
            raise ConfigError(f"crop must be a RandomResizedCropDecoder or CenterCropDecoder, found {crop!r}")

    def __call__(self, rows: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return uint8 [B, 3, size, size] on the device.

        Args:
            rows: uint8 [B, row length] on the CPU, from `EncodedDecoder`.
            device: The device to decode on.

        Raises:
            DecodeError: An image does not decode.
            ConfigError: The batch is not from an `EncodedDecoder`, or this torchvision cannot decode on a GPU.
        """
        if rows.dtype != torch.uint8 or rows.dim() != 2 or rows.shape[1] % STEP_BYTES:
            raise ConfigError("DecodeJpeg needs encoded images; give the loader decoder=EncodedDecoder()")
        if not len(rows):
            return torch.empty((0, 3, self.crop.size, self.crop.size), dtype=torch.uint8, device=device)
        buffer = JpegBuffer(rows)
        files = [buffer.file(index) for index in range(len(rows))]
        if device.type == "cuda":
            return self._crop(_decode_on_gpu(files, device), buffer.keys)
        payloads = [file.numpy().data for file in files]
        images, _, failures = self.crop(payloads, np.zeros((len(files), 2), dtype=np.int64), buffer.keys)
        _raise_first(failures, range(len(files)))
        assert isinstance(images, torch.Tensor)  # crops have one size
        return images.to(device)

    def _crop(self, images: list[torch.Tensor], keys: U64) -> torch.Tensor:
        """Return crops of whole images, uint8 [3, H, W], on the device of the images: uint8 [B, 3, size, size]."""
        geometry = self.crop.geometry(np.array([image.shape[:0:-1] for image in images]), keys)
        return torch.stack([geometry.crop(index, image, _resize) for index, image in enumerate(images)])


def _resize(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return uint8 [3, height, width]; on a GPU, antialiased resizing needs floating point."""
    resized = torch.nn.functional.interpolate(
        image[None].to(torch.float32), (height, width), mode="bilinear", antialias=True
    )
    return resized[0].round().clamp(0, 255).to(torch.uint8)


def _decode_on_gpu(files: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Return the whole images, uint8 [3, H, W], of encoded images."""
    if device.type == "cuda":
        # torchvision decodes on a stream of its own, which does not wait for the current one, into memory that the
        # current one has freed. Work that is queued here may still read images of the previous batch there.
        torch.cuda.current_stream(device).synchronize()
    jpegs = [index for index, file in enumerate(files) if is_jpeg(file.numpy().data)]
    decoded: dict[int, torch.Tensor] = {}
    try:
        if jpegs:
            together = decode_jpeg([files[index] for index in jpegs], mode=ImageReadMode.RGB, device=device)
            decoded = dict(zip(jpegs, together, strict=True))
    except torch.cuda.OutOfMemoryError:
        raise  # the batch is too large for the device; decoding it on the CPU would hide that, and be slow
    except RuntimeError as error:
        if "not compiled with nvJPEG" in str(error):
            raise ConfigError(
                "this torchvision was built without nvJPEG, so it cannot decode on a GPU; install a CUDA build of "
                "torchvision, or leave out DecodeJpeg and give the crop to the loader as its decoder"
            ) from error
        for index in jpegs:
            try:
                decoded[index] = decode_jpeg(files[index], mode=ImageReadMode.RGB, device=device)
            except torch.cuda.OutOfMemoryError:
                raise
            except RuntimeError:
                continue  # a kind of JPEG that nvJPEG cannot decode, or a damaged one: the CPU's decoder will tell
    remaining = [index for index in range(len(files)) if index not in decoded]
    if remaining:
        payloads = [files[index].numpy().data for index in remaining]
        sizes, keys = np.zeros((len(remaining), 2), dtype=np.int64), np.zeros(len(remaining), dtype=np.uint64)
        images, _, failures = ImageDecoder()(payloads, sizes, keys)
        _raise_first(failures, remaining)
        decoded |= {index: image.to(device) for index, image in zip(remaining, images, strict=True)}
    return [decoded[index] for index in range(len(files))]


def _raise_first(failures: Mapping[int, DecodeError], indexes: Sequence[int]) -> None:
    """Raise the first failure, if any; image i of the failures is image `indexes[i]` of the batch."""
    if failures:
        first = min(failures)
        raise DecodeError(f"image {indexes[first]} of the batch: {failures[first]}") from failures[first]
