"""Decoding on the device, of encoded images that the workers hand on.

`EncodedDecoder` in the worker packs the encoded images into one uint8 tensor, which travels like any batch.
`DecodeJpeg`, the prefetcher's first transform, decodes them: with nvJPEG on a GPU, with the workers' decoder on a CPU.
Both crop the boxes that the decoder in the worker would crop.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from shardflow._pillow import map_codec_errors, open_image
from shardflow._rgb import is_plain_jpeg
from shardflow._validation import check_integer
from shardflow.errors import ConfigError, DecodeError, SampleError, TooLargeError
from shardflow.formats.image_limits import MAX_PIXELS, check_image
from shardflow.formats.image_types import is_jpeg, jpeg_components
from shardflow.loading.decoders import (
    CenterCropDecoder,
    Decoded,
    Empty,
    ImageDecoder,
    RandomResizedCropDecoder,
    check_resized,
    jpeg_decoder,
    new,
)
from shardflow.loading.geometry import Sizes
from shardflow.order.keyed_rng import U64

Crop = RandomResizedCropDecoder | CenterCropDecoder

STEP_BYTES = 1 << 12
"""Rows are as long as the images need on average, rounded up to this, so that few sizes of shared memory occur."""

_WORD_BYTES = 8
_NO_NVJPEG = re.compile(r"not compiled with nvJPEG|Failed to (initialize|create) |nvjpegGetProperty failed")
"""What torchvision says of nvJPEG itself, and not of an image."""

logger = logging.getLogger(__name__)


class JpegBuffer:
    """The encoded images of a batch, packed into one tensor: uint8 [B, row length]. Its bytes, row behind row, are:

        int64         B, the number of images
        int64 [B, 2]  where each encoded image begins and ends, in bytes from the start
        uint64 [B]    keys of the samples, from which the crops are drawn
        bytes         the encoded images, one behind the other; the rest is arbitrary

    As B rows such a tensor travels like any batch of images, but a row is not an image: only all rows together mean
    something. So a large image takes its own size, and not that size for every image of the batch.

    Raises:
        ConfigError: The tensor holds something else.
    """

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory, count = memory.view(-1), len(memory)
        self._places, self.keys = self._header(self._memory, count)
        begins, ends = self._places.T
        inside = (begins >= 0) & (begins <= ends) & (ends <= len(self._memory))
        if self._memory[:_WORD_BYTES].view(torch.int64) != count or not inside.all():
            raise ConfigError("DecodeJpeg needs all of the batches of an EncodedDecoder, as they are")

    @staticmethod
    def _header(memory: torch.Tensor, count: int) -> tuple[npt.NDArray[np.int64], U64]:
        words = memory[_WORD_BYTES : _WORD_BYTES * (1 + 3 * count)].numpy()
        return words.view(np.int64)[: 2 * count].reshape(count, 2), words.view(np.uint64)[2 * count :]

    @classmethod
    def pack(cls, payloads: Sequence[memoryview], keys: U64, empty: Empty = new) -> torch.Tensor:
        """Return the tensor of a batch of one or more images."""
        count = len(payloads)
        ends = [*itertools.accumulate(map(len, payloads), initial=_WORD_BYTES * (1 + 3 * count))]
        memory = empty((count, -(-ends[-1] // (count * STEP_BYTES)) * STEP_BYTES))
        packed = memory.view(-1)
        packed[:_WORD_BYTES].view(torch.int64)[:] = count
        places, its_keys = cls._header(packed, count)
        places[:], its_keys[:] = [*itertools.pairwise(ends)], keys
        for payload, (begin, end) in zip(payloads, itertools.pairwise(ends), strict=True):
            packed[begin:end].numpy()[:] = np.frombuffer(payload, np.uint8)
        return memory

    def file(self, index: int) -> torch.Tensor:
        """Return an encoded image: uint8 [length]."""
        begin, end = self._places[index].tolist()
        return self._memory[begin:end]

    def copy_file(self, index: int, source: int) -> None:
        """Let image `source` stand for image `index` as well, with its key."""
        self._places[index], self.keys[index] = self._places[source], self.keys[source]


class EncodedDecoder:
    """Hands the encoded images on, byte for byte, for `DecodeJpeg` to decode on the device.

    Args:
        max_pixels: As for `RandomResizedCropDecoder`. Images that are too large are failures here already, so that the
            loader's `max_bad` counts them. Give the crop of `DecodeJpeg` the same limit.

    >>> loader = shardflow.Loader("photos256", batch_size=256, decoder=shardflow.decoders.Raw())  # doctest: +SKIP
    >>> batches = shardflow.device.Prefetcher(loader, "cuda", [shardflow.device.DecodeJpeg()])  # doctest: +SKIP
    """

    def __init__(self, *, max_pixels: int = MAX_PIXELS) -> None:
        self.max_pixels = check_integer("max_pixels", max_pixels, 1)

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
        failures: dict[int, SampleError] = {}
        for index, payload in enumerate(payloads):
            try:
                _check(payload, self.max_pixels)
            except TooLargeError as error:
                failures[index] = error
        kept = [memoryview(b"") if index in failures else payload for index, payload in enumerate(payloads)]
        return Decoded(JpegBuffer.pack(kept, keys, empty), None, failures)

    def copy_image(self, rows: torch.Tensor, index: int, source: int) -> None:
        """Replace an encoded image by another one of the batch; see `loading.stages.substitute`."""
        JpegBuffer(rows).copy_file(index, source)


class DecodeJpeg:
    """Decodes and crops on the device the images of an `EncodedDecoder`; the first of a prefetcher's transforms.

    On a CUDA device, nvJPEG decodes the JPEG files of a batch together. If it refuses a batch, it decodes the halves,
    and so on down to the files that it refuses. One CPU thread decodes those, other formats, CMYK files, and JPEGs that
    have to be turned or converted to sRGB. On a CPU, `crop` decodes all of them.

    Args:
        crop: Determines the boxes and their size, by default `RandomResizedCropDecoder(224)`.

    Attributes:
        refused: How many JPEG files nvJPEG has refused so far. The first is logged as a warning, with nvJPEG's reason.

    Raises:
        ConfigError: The crop is neither a `RandomResizedCropDecoder` nor a `CenterCropDecoder`.
    """

    def __init__(self, crop: Crop | None = None) -> None:
        self.crop: Crop = RandomResizedCropDecoder() if crop is None else crop
        self.refused = 0
        if not isinstance(self.crop, (RandomResizedCropDecoder, CenterCropDecoder)):
            raise ConfigError(f"crop must be a RandomResizedCropDecoder or CenterCropDecoder, found {crop!r}")

    def __call__(self, rows: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return uint8 [B, 3, size, size] on the device.

        Args:
            rows: uint8 [B, row length] on the CPU, from `EncodedDecoder`: a whole batch of it.
            device: The device to decode on.

        Raises:
            DecodeError: An image does not decode.
            TooLargeError: An image is larger than `crop.max_pixels` allows.
            ConfigError: The batch is not from an `EncodedDecoder`, or nvJPEG is missing or does not start.
            torch.cuda.OutOfMemoryError: The images do not fit into the device's memory.
        """
        if rows.dtype != torch.uint8 or rows.dim() != 2 or rows.shape[1] % STEP_BYTES:
            raise ConfigError("DecodeJpeg needs encoded images; give the loader decoder=EncodedDecoder()")
        if not len(rows):
            return torch.empty((0, 3, self.crop.size, self.crop.size), dtype=torch.uint8, device=device)
        buffer = JpegBuffer(rows)
        files = [buffer.file(index) for index in range(len(rows))]
        if device.type == "cuda":
            return self._crop(self._decode_on_gpu(files, device), buffer.keys)
        payloads = [file.numpy().data for file in files]
        images, _, failures = self.crop(payloads, np.zeros((len(rows), 2), dtype=np.int64), buffer.keys)
        _raise_first(failures, range(len(rows)))
        assert isinstance(images, torch.Tensor)  # crops have one size
        return images.to(device)

    def _crop(self, images: list[torch.Tensor], keys: U64) -> torch.Tensor:
        """Return crops of whole images, uint8 [3, H, W], on the device of the images: uint8 [B, 3, size, size]."""
        geometry = self.crop.geometry(np.array([image.shape[:0:-1] for image in images]), keys)
        for index, size in enumerate(geometry.resized.tolist()):
            try:
                check_resized(size, self.crop.max_pixels)
            except TooLargeError as error:
                raise TooLargeError(f"image {index} of the batch: {error}") from error
        crops = torch.stack([geometry.crop(index, image, _resize) for index, image in enumerate(images)])
        return crops.round_().clamp_(0, 255).to(torch.uint8)

    def _decode_on_gpu(self, files: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
        """Return the whole images, uint8 [3, H, W], of encoded images."""
        payloads = [file.numpy().data for file in files]
        for index, payload in enumerate(payloads):
            try:
                _check(payload, self.crop.max_pixels)
            except TooLargeError as error:
                raise TooLargeError(f"image {index} of the batch: {error}") from error
        if device.type == "cuda":
            # torchvision decodes on a stream of its own, which does not wait for the current one, into memory that the
            # current one has freed. Work that is queued here may still read images of the previous batch there.
            queued = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            queued.record(torch.cuda.current_stream(device))
            queued.synchronize()
        # One file that nvJPEG refuses costs the others of its batch their place, so the known ones are sorted out.
        # It knows no metadata either.
        jpegs = [
            index
            for index, payload in enumerate(payloads)
            if jpeg_components(payload) in (1, 3) and is_plain_jpeg(payload, self.crop.max_pixels)
        ]
        images = self._decode_with_nvjpeg([files[index] for index in jpegs], device)
        decoded = {index: image for index, image in zip(jpegs, images, strict=True) if image is not None}
        if remaining := [index for index in range(len(files)) if index not in decoded]:
            sizes, keys = np.zeros((len(remaining), 2), dtype=np.int64), np.zeros(len(remaining), dtype=np.uint64)
            decoder = ImageDecoder(max_pixels=self.crop.max_pixels)
            others, _, failures = decoder([payloads[index] for index in remaining], sizes, keys)
            _raise_first(failures, remaining)
            decoded |= {index: image.to(device) for index, image in zip(remaining, others, strict=True)}
        return [decoded[index] for index in range(len(files))]

    def _decode_with_nvjpeg(self, files: list[torch.Tensor], device: torch.device) -> list[torch.Tensor | None]:
        """Return the whole images of JPEG files, None in place of those that nvJPEG refuses."""
        if not files:
            return []
        if (decode := jpeg_decoder()) is None:
            raise ConfigError("DecodeJpeg needs torchvision or torchcodec with a JPEG decoder; pip install torchcodec")
        try:
            images: list[torch.Tensor | None] = decode(files, device=device)
            return images
        except torch.cuda.OutOfMemoryError:
            raise  # the batch is too large for the device; decoding it on the CPU would hide that, and be slow
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            if "out of memory" in reason:  # torchvision makes a RuntimeError of every error
                raise torch.cuda.OutOfMemoryError(reason) from error
            if _NO_NVJPEG.search(reason):
                raise ConfigError(
                    f"nvJPEG cannot be used: {reason}; install a CUDA build of torchvision that the driver supports, "
                    "or leave out DecodeJpeg and give the crop to the loader as its decoder"
                ) from error
            if (
                len(files) == 1
            ):  # a kind of JPEG that nvJPEG cannot decode, or a damaged one: the CPU's decoder will tell
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


def _check(payload: memoryview, max_pixels: int) -> None:
    """Raise TooLargeError if an image must not be decoded; whether it can be is found out later."""
    try:
        if is_jpeg(payload):
            check_image(payload, max_pixels)
        else:
            with contextlib.suppress(DecodeError), map_codec_errors(DecodeError):
                open_image(payload, max_pixels=max_pixels).close()
    except TooLargeError as error:
        raise TooLargeError(f"the image {error}") from error


def _raise_first(failures: Mapping[int, SampleError], indexes: Sequence[int]) -> None:
    """Raise the first failure, if any; image i of the failures is image `indexes[i]` of the batch."""
    if failures:
        first = min(failures)
        error = failures[first]
        raise type(error)(f"image {indexes[first]} of the batch: {error}") from error
