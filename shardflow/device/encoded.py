"""Encoded images all the way to the device, and decoding there.

`EncodedDecoder` in the worker decodes nothing: it puts the files side by side into one uint8 tensor, which travels like
any batch. `DecodeJpeg` as the prefetcher's first stage makes images of them: with nvJPEG on a GPU, with what workers
decode with on a CPU. Both ways crop the same boxes that `RandomResizedCropDecoder` would have cropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torchvision.io import ImageReadMode, decode_jpeg

from shardflow.errors import ConfigError, DecodeError
from shardflow.keyed import U64
from shardflow.load.crop import random_resized_crops
from shardflow.load.decode import CenterCropDecoder, Empty, ImageDecoder, RandomResizedCropDecoder, new

_LENGTH_BYTES = 8
_STEP_BYTES = 1 << 14
"""Rows are as long as the longest file, rounded up to this, so that shared memory of one size serves most batches."""
_JPEG = b"\xff\xd8"


class EncodedDecoder:
    """Hands the encoded images on, for `DecodeJpeg` to decode on the device.

    >>> loader = shardflow.Loader(                                        # doctest: +SKIP
    ...     "photos256", batch_size=256, decoder=shardflow.EncodedDecoder(), fields=("image", "label", "random_key")
    ... )
    """

    def __call__(
        self,
        payloads: Sequence[memoryview],
        keys: U64,  # noqa: ARG002 - nothing random here
        empty: Empty = new,
    ) -> tuple[torch.Tensor, dict[int, DecodeError]]:
        """Return uint8 [B, longest], each row a file's length as int64, its bytes, and whatever the memory held."""
        longest = _LENGTH_BYTES + max(map(len, payloads))
        rows = empty((len(payloads), -(-longest // _STEP_BYTES) * _STEP_BYTES))
        view = rows.numpy()
        for row, payload in zip(view, payloads, strict=True):
            end = _LENGTH_BYTES + len(payload)
            row[:_LENGTH_BYTES] = np.frombuffer(len(payload).to_bytes(_LENGTH_BYTES, "little"), np.uint8)
            row[_LENGTH_BYTES:end] = np.frombuffer(payload, np.uint8)
        return rows, {}


def files_of(rows: torch.Tensor) -> list[torch.Tensor]:
    """Return the files, uint8 [length] each, in what `EncodedDecoder` made."""
    lengths = rows[:, :_LENGTH_BYTES].contiguous().view(torch.int64)[:, 0].tolist()
    return [row[_LENGTH_BYTES : _LENGTH_BYTES + length] for row, length in zip(rows, lengths, strict=True)]


class DecodeJpeg:
    """The first of a prefetcher's stages: decodes on the device what `EncodedDecoder` handed on, and crops there.

    On a CUDA device the JPEG files of a batch go through nvJPEG together; if it refuses, each by itself, and those that
    it still refuses, like everything that is no JPEG, are decoded on the CPU. On the CPU it is the decoder itself.

    Args:
        crop: Says which boxes are cropped and to what size, by default `RandomResizedCropDecoder(224)`.

    Raises:
        ConfigError: The crop is of another kind.
    """

    def __init__(self, crop: RandomResizedCropDecoder | CenterCropDecoder | None = None) -> None:
        crop = RandomResizedCropDecoder() if crop is None else crop
        if not isinstance(crop, (RandomResizedCropDecoder, CenterCropDecoder)):
            raise ConfigError(f"crop must be a RandomResizedCropDecoder or CenterCropDecoder, found {crop!r}")
        self.crop = crop

    @property
    def needs_keys(self) -> bool:
        """Whether the crop draws anything."""
        return isinstance(self.crop, RandomResizedCropDecoder)

    def __call__(self, rows: torch.Tensor, keys: torch.Tensor | None, device: torch.device) -> torch.Tensor:
        """Return uint8 [B, 3, size, size] on the device.

        Args:
            rows: uint8 [B, longest] on the CPU, from `EncodedDecoder`.
            keys: int64 [B] on the CPU, the samples' `random_key`; not needed for a centre crop.
            device: Where to decode.

        Raises:
            DecodeError: A file does not decode.
        """
        if rows.dtype != torch.uint8 or rows.dim() != 2:
            raise ConfigError("DecodeJpeg takes what EncodedDecoder() hands on; give it to the loader as its decoder")
        files = files_of(rows)
        host_keys = np.zeros(len(files), np.uint64) if keys is None else keys.numpy().view(np.uint64)
        if not files:
            return torch.empty((0, 3, self.crop.size, self.crop.size), dtype=torch.uint8, device=device)
        if device.type != "cuda":
            payloads = [file.numpy().data for file in files]
            images, failures = self.crop(payloads, host_keys)
            _raise_first(failures)
            return images.to(device)
        return self._crop(_decode_on_gpu(files, device), host_keys)

    def _crop(self, images: list[torch.Tensor], keys: U64) -> torch.Tensor:
        """Crop and resize whole images, uint8 [3, H, W], on whatever device they are."""
        sizes = np.array([(image.shape[2], image.shape[1]) for image in images], dtype=np.int64)
        if isinstance(self.crop, RandomResizedCropDecoder):
            boxes, flips = random_resized_crops(sizes, keys, self.crop.scale, self.crop.ratio)
            mirrored = (flips < self.crop.hflip).tolist()
            cut = [image[:, y : y + h, x : x + w] for image, (x, y, w, h) in zip(images, boxes.tolist(), strict=True)]
            resized = [_resize(image, self.crop.size, self.crop.size) for image in cut]
            return torch.stack(
                [image.flip(-1) if flip else image for image, flip in zip(resized, mirrored, strict=True)]
            )
        cropped = []
        for image, (width, height) in zip(images, sizes.tolist(), strict=True):
            height, width = (side * self.crop.resize // min(image.shape[1:]) for side in (height, width))
            top, left = round((height - self.crop.size) / 2), round((width - self.crop.size) / 2)
            whole = _resize(image, height, width)
            cropped.append(whole[:, top : top + self.crop.size, left : left + self.crop.size])
        return torch.stack(cropped)


def _resize(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return uint8 [3, height, width]; a GPU has the antialiased kernel for floating point only."""
    resized = torch.nn.functional.interpolate(
        image[None].to(torch.float32), (height, width), mode="bilinear", antialias=True
    )
    return resized[0].round().clamp(0, 255).to(torch.uint8)


def _decode_on_gpu(files: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    jpegs = [index for index, file in enumerate(files) if bytes(file[:2].numpy()) == _JPEG]
    decoded: dict[int, torch.Tensor] = {}
    try:
        together = decode_jpeg([files[index] for index in jpegs], mode=ImageReadMode.RGB, device=device)
        decoded = dict(zip(jpegs, together, strict=True))
    except RuntimeError:
        for index in jpegs:
            try:
                decoded[index] = decode_jpeg(files[index], mode=ImageReadMode.RGB, device=device)
            except RuntimeError:
                continue  # a kind of JPEG that nvJPEG does not know; the CPU's decoder will say if it is worse
    left = [index for index in range(len(files)) if index not in decoded]
    if left:
        payloads = [files[index].numpy().data for index in left]
        images, failures = ImageDecoder()(payloads, np.zeros(len(left), np.uint64))
        _raise_first({left[place]: error for place, error in failures.items()})
        decoded |= {index: image.to(device) for index, image in zip(left, images, strict=True)}
    return [decoded[index] for index in range(len(files))]


def _raise_first(failures: dict[int, DecodeError]) -> None:
    if failures:
        first = min(failures)
        raise DecodeError(f"image {first} of the batch: {failures[first]}") from failures[first]
