"""Decoding on the device, of encoded images that the workers hand on.

`EncodedDecoder` in the worker puts the encoded images side by side into one uint8 tensor, which travels like any batch.
`DecodeJpeg`, the prefetcher's first transform, decodes them: with nvJPEG on a GPU, with the workers' decoder on a CPU.
Both crop the boxes that the decoder in the worker would crop. The worker can decode a share of the images, so that CPU
cores and GPU decode side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torchvision.io import ImageReadMode, decode_jpeg

from shardflow._validation import check_probability
from shardflow.errors import ConfigError, DecodeError
from shardflow.formats.image_types import is_jpeg
from shardflow.loading.decoders import CenterCropDecoder, Empty, ImageDecoder, RandomResizedCropDecoder, new
from shardflow.loading.provenance import describe_object
from shardflow.order import keyed_rng
from shardflow.order.keyed_rng import U64

from .jpeg_buffer import STEP_BYTES, JpegBuffer, row_bytes

_SHARE = keyed_rng.key("cpu_share")

Crop = RandomResizedCropDecoder | CenterCropDecoder


class EncodedDecoder:
    """Hands the encoded images on, for `DecodeJpeg` to decode on the device; some of them decoded and cropped already.

    >>> crop = shardflow.RandomResizedCropDecoder(224)                                            # doctest: +SKIP
    >>> decoder = shardflow.EncodedDecoder(cpu_share=0.25, crop=crop)                             # doctest: +SKIP
    >>> loader = shardflow.Loader("photos256", batch_size=256, decoder=decoder)                   # doctest: +SKIP
    >>> batches = shardflow.DevicePrefetcher(loader, "cuda", [shardflow.DecodeJpeg(crop)])        # doctest: +SKIP

    Args:
        cpu_share: Share of the images that the worker decodes, 0 … 1. Which ones depends on (seed, epoch, sample)
            alone, and a larger share takes more to those of a smaller one.
        crop: What decodes and crops those: the one that `DecodeJpeg` is given, by default
            `RandomResizedCropDecoder(224)`.

    Raises:
        ConfigError: The share is out of its range, or the crop of another kind.
    """

    def __init__(self, cpu_share: float = 0.0, crop: Crop | None = None) -> None:
        self.cpu_share, self.crop = check_probability("cpu_share", cpu_share), _checked(crop)

    def __repr__(self) -> str:
        if not self.cpu_share:
            return "EncodedDecoder()"
        return f"EncodedDecoder(cpu_share={self.cpu_share}, crop={describe_object(self.crop)})"

    def __call__(
        self, payloads: Sequence[memoryview], keys: U64, empty: Empty = new
    ) -> tuple[torch.Tensor, dict[int, DecodeError]]:
        """Return uint8 [B, longest], laid out as `JpegBuffer`, and what went wrong with the images decoded here."""
        here = keyed_rng.uniforms(keyed_rng.fold_array(_SHARE, keys), 1)[:, 0] < self.cpu_share
        ours, theirs = np.flatnonzero(here), np.flatnonzero(~here).tolist()
        crop_bytes = 3 * self.crop.size**2 if len(ours) else 0
        rows = empty((len(payloads), row_bytes(max([crop_bytes, *(len(payloads[index]) for index in theirs)]))))
        contents = JpegBuffer(rows)
        for index in theirs:
            contents.put_file(index, payloads[index], int(keys[index]))
        if not len(ours):
            return rows, {}
        crops, failures = self.crop([payloads[index] for index in ours.tolist()], keys[ours])
        contents.put_crops(ours, crops, _crop_hash(self.crop))
        return rows, {int(ours[place]): error for place, error in failures.items()}


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
        self.crop = _checked(crop)

    def __call__(self, rows: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return uint8 [B, 3, size, size] on the device.

        Args:
            rows: uint8 [B, row length] on the CPU, from `EncodedDecoder`.
            device: The device to decode on.

        Raises:
            DecodeError: An image does not decode.
            ConfigError: The batch is not from an `EncodedDecoder`, or from one with another crop; or this torchvision
                cannot decode on a GPU.
        """
        if rows.dtype != torch.uint8 or rows.dim() != 2 or rows.shape[1] % STEP_BYTES:
            raise ConfigError("DecodeJpeg needs encoded images; give the loader decoder=EncodedDecoder()")
        buffer, size = JpegBuffer(rows), self.crop.size
        is_crop = buffer.is_crop
        if (buffer.crop_hashes != np.uint64(_crop_hash(self.crop))).any():
            raise ConfigError(
                f"DecodeJpeg has the crop {describe_object(self.crop)}, and the loader's EncodedDecoder, which decodes "
                "a share of the images, has another one; give both the same: EncodedDecoder(cpu_share, crop) and "
                "DecodeJpeg(crop)"
            )
        files = {index: buffer.file(index) for index in np.flatnonzero(~is_crop).tolist()}
        if len(files) == len(rows) > 0:
            return self._decoded(files, buffer.file_keys, device)
        images = torch.empty((len(rows), 3, size, size), dtype=torch.uint8, device=device)
        if is_crop.any():
            images[torch.from_numpy(is_crop).to(device)] = buffer.crops(size).to(device)
        if files:
            images[torch.from_numpy(~is_crop).to(device)] = self._decoded(files, buffer.file_keys, device)
        return images

    def _decoded(self, files: Mapping[int, torch.Tensor], keys: U64, device: torch.device) -> torch.Tensor:
        """Return the crops, uint8 [B, 3, size, size], of one or more encoded images by their index in the batch."""
        if device.type == "cuda":
            return self._crop(_decode_on_gpu(files, device), keys)
        images, failures = self.crop([file.numpy().data for file in files.values()], keys)
        _raise_first(failures, [*files])
        return images.to(device)

    def _crop(self, images: list[torch.Tensor], keys: U64) -> torch.Tensor:
        """Return crops of whole images, uint8 [3, H, W], on the device of the images: uint8 [B, 3, size, size]."""
        crops = self.crop.crops(np.array([image.shape[:0:-1] for image in images]), keys)
        return torch.stack([crops.cut(index, image, _resize) for index, image in enumerate(images)])


def _resize(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return uint8 [3, height, width]; on a GPU, antialiased resizing needs floating point."""
    resized = torch.nn.functional.interpolate(
        image[None].to(torch.float32), (height, width), mode="bilinear", antialias=True
    )
    return resized[0].round().clamp(0, 255).to(torch.uint8)


def _decode_on_gpu(files: Mapping[int, torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Return the whole images, uint8 [3, H, W], of encoded images by their index in the batch."""
    if device.type == "cuda":
        # torchvision decodes on a stream of its own, which does not wait for the current one, into memory that the
        # current one has freed. Work that is queued here may still read images of the previous batch there.
        torch.cuda.current_stream(device).synchronize()
    jpegs = [index for index, file in files.items() if is_jpeg(file.numpy().data)]
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
    remaining = [index for index in files if index not in decoded]
    if remaining:
        payloads = [files[index].numpy().data for index in remaining]
        images, failures = ImageDecoder()(payloads, np.zeros(len(remaining), np.uint64))
        _raise_first(failures, remaining)
        decoded |= {index: image.to(device) for index, image in zip(remaining, images, strict=True)}
    return [decoded[index] for index in files]


def _raise_first(failures: Mapping[int, DecodeError], indexes: Sequence[int]) -> None:
    """Raise the first failure, if any; image i of the failures is image `indexes[i]` of the batch."""
    if failures:
        first = min(failures)
        raise DecodeError(f"image {indexes[first]} of the batch: {failures[first]}") from failures[first]


def _checked(crop: Crop | None) -> Crop:
    if crop is None:
        return RandomResizedCropDecoder()
    if not isinstance(crop, (RandomResizedCropDecoder, CenterCropDecoder)):
        raise ConfigError(f"crop must be a RandomResizedCropDecoder or CenterCropDecoder, found {crop!r}")
    return crop


def _crop_hash(crop: Crop) -> int:
    """Return a 64-bit hash of a crop's class and settings, the same in every process."""
    return keyed_rng.key(str(describe_object(crop)))
