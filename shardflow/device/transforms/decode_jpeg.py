"""Encoded images all the way to the device, and decoding there.

`EncodedDecoder` in the worker puts the files side by side into one uint8 tensor, which travels like any batch.
`DecodeJpeg` as the prefetcher's first stage makes images of them: with nvJPEG on a GPU, with what workers decode with
on a CPU. Both ways crop the same boxes that `RandomResizedCropDecoder` would have cropped. A share of the images can be
decoded in the worker all the same, so that cores and GPU decode side by side.
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

from .jpeg_buffer import STEP_BYTES, Rows, row_bytes

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
        """Return uint8 [B, longest], laid out as `Rows`, and what went wrong with the images decoded here."""
        here = keyed_rng.uniforms(keyed_rng.fold_array(_SHARE, keys), 1)[:, 0] < self.cpu_share
        ours, theirs = np.flatnonzero(here), np.flatnonzero(~here).tolist()
        crop_bytes = 3 * self.crop.size**2 if len(ours) else 0
        rows = empty((len(payloads), row_bytes(max([crop_bytes, *(len(payloads[index]) for index in theirs)]))))
        contents = Rows(rows)
        for index in theirs:
            contents.put_file(index, payloads[index], int(keys[index]))
        if not len(ours):
            return rows, {}
        crops, failures = self.crop([payloads[index] for index in ours.tolist()], keys[ours])
        contents.put_crops(ours, crops, _fingerprint(self.crop))
        return rows, {int(ours[place]): error for place, error in failures.items()}


class DecodeJpeg:
    """The first of a prefetcher's stages: decodes on the device what `EncodedDecoder` handed on, and crops there.

    On a CUDA device the JPEG files of a batch go through nvJPEG together; if it refuses, each by itself, and those that
    it still refuses, like everything that is no JPEG, are decoded on the CPU. On the CPU it is the decoder itself.

    Args:
        crop: Says which boxes are cropped and to what size, by default `RandomResizedCropDecoder(224)`.

    Raises:
        ConfigError: The crop is of another kind.
    """

    def __init__(self, crop: Crop | None = None) -> None:
        self.crop = _checked(crop)

    def __call__(self, rows: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return uint8 [B, 3, size, size] on the device.

        Args:
            rows: uint8 [B, longest] on the CPU, from `EncodedDecoder`.
            device: Where to decode.

        Raises:
            DecodeError: A file does not decode.
            ConfigError: The batch is not from an `EncodedDecoder`, or from one that crops differently; or this
                torchvision cannot decode on a GPU.
        """
        if rows.dtype != torch.uint8 or rows.dim() != 2 or rows.shape[1] % STEP_BYTES:
            raise ConfigError("DecodeJpeg takes what EncodedDecoder() hands on; give it to the loader as its decoder")
        contents, size = Rows(rows), self.crop.size
        cropped = contents.cropped
        if (contents.words[cropped] != np.uint64(_fingerprint(self.crop))).any():
            raise ConfigError(
                f"DecodeJpeg crops by {describe_object(self.crop)}, and the loader's EncodedDecoder, which decodes a "
                "share of the images, by another one; give both the same: EncodedDecoder(cpu_share, crop) and "
                "DecodeJpeg(crop)"
            )
        files = {index: contents.file(index) for index in np.flatnonzero(~cropped).tolist()}
        keys = contents.words[~cropped]
        if len(files) == len(rows) > 0:
            return self._decoded(files, keys, device)
        images = torch.empty((len(rows), 3, size, size), dtype=torch.uint8, device=device)
        if cropped.any():
            images[torch.from_numpy(cropped).to(device)] = contents.crops(size).to(device)
        if files:
            images[torch.from_numpy(~cropped).to(device)] = self._decoded(files, keys, device)
        return images

    def _decoded(self, files: Mapping[int, torch.Tensor], keys: U64, device: torch.device) -> torch.Tensor:
        """Return the crops of one or more files, given by their place in the batch."""
        if device.type == "cuda":
            return self._crop(_decode_on_gpu(files, device), keys)
        images, failures = self.crop([file.numpy().data for file in files.values()], keys)
        _raise_first(failures, [*files])
        return images.to(device)

    def _crop(self, images: list[torch.Tensor], keys: U64) -> torch.Tensor:
        """Crop and resize whole images, uint8 [3, H, W], on whatever device they are."""
        crops = self.crop.crops(np.array([image.shape[:0:-1] for image in images]), keys)
        return torch.stack([crops.cut(index, image, _resize) for index, image in enumerate(images)])


def _resize(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return uint8 [3, height, width]; a GPU has the antialiased kernel for floating point only."""
    resized = torch.nn.functional.interpolate(
        image[None].to(torch.float32), (height, width), mode="bilinear", antialias=True
    )
    return resized[0].round().clamp(0, 255).to(torch.uint8)


def _decode_on_gpu(files: Mapping[int, torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Return the whole images, uint8 [3, H, W], of files given by their place in the batch."""
    if device.type == "cuda":
        # torchvision decodes on a stream of its own, which does not wait for this one, into memory that this one has
        # set free: what is queued here may still read there the images of the batch before.
        torch.cuda.current_stream(device).synchronize()
    jpegs = [index for index, file in files.items() if is_jpeg(file.numpy().data)]
    decoded: dict[int, torch.Tensor] = {}
    try:
        if jpegs:
            together = decode_jpeg([files[index] for index in jpegs], mode=ImageReadMode.RGB, device=device)
            decoded = dict(zip(jpegs, together, strict=True))
    except torch.cuda.OutOfMemoryError:
        raise  # the batch is too large for the device: decoding it on the CPU would hide that, and be slow
    except RuntimeError as error:
        if "not compiled with nvJPEG" in str(error):
            raise ConfigError(
                "this torchvision was built without nvJPEG, so it cannot decode on a GPU; install a CUDA build of it, "
                "or leave DecodeJpeg out and give the crop to the loader as its decoder"
            ) from error
        for index in jpegs:
            try:
                decoded[index] = decode_jpeg(files[index], mode=ImageReadMode.RGB, device=device)
            except torch.cuda.OutOfMemoryError:
                raise
            except RuntimeError:
                continue  # a kind of JPEG that nvJPEG does not know; the CPU's decoder will say if it is worse
    left = [index for index in files if index not in decoded]
    if left:
        payloads = [files[index].numpy().data for index in left]
        images, failures = ImageDecoder()(payloads, np.zeros(len(left), np.uint64))
        _raise_first(failures, left)
        decoded |= {index: image.to(device) for index, image in zip(left, images, strict=True)}
    return [decoded[index] for index in files]


def _raise_first(failures: Mapping[int, DecodeError], places: Sequence[int]) -> None:
    """Raise the first of the failures, given by index, of images that have these places in the batch."""
    if failures:
        first = min(failures)
        raise DecodeError(f"image {places[first]} of the batch: {failures[first]}") from failures[first]


def _checked(crop: Crop | None) -> Crop:
    if crop is None:
        return RandomResizedCropDecoder()
    if not isinstance(crop, (RandomResizedCropDecoder, CenterCropDecoder)):
        raise ConfigError(f"crop must be a RandomResizedCropDecoder or CenterCropDecoder, found {crop!r}")
    return crop


def _fingerprint(crop: Crop) -> int:
    """Return 64 bits of what a crop is and how it was set up, the same in every process."""
    return keyed_rng.key(str(describe_object(crop)))
