"""Encoded images, passed through unchanged, for a device to decode."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from shardflow._pillow import map_codec_errors, open_image
from shardflow._validation import check_integer
from shardflow.errors import ConfigError, DecodeError, SampleError, TooLargeError
from shardflow.formats.image_limits import MAX_PIXELS, check_image
from shardflow.formats.image_types import is_jpeg
from shardflow.order.keyed_rng import U64

from .decoder import Allocator, Decoder, Failures, Images, Payloads, Plan
from .pixels import Payload

STEP_BYTES = 1 << 12
"""Row lengths, the average length of the images, are rounded up to this, so that few sizes of shared memory occur."""

_WORD_BYTES = 8
_PLAN_WORDS = 4  # count, epoch, height, width


class Raw(Decoder):
    """Returns the encoded images, byte for byte, for `DecodeJpeg` to decode on the device.

    Args:
        max_pixels: As for `RandomResizedCrop`. Larger images fail in the workers, so the loader's `max_errors` counts
            them. Give the crop of `DecodeJpeg` the same limit.

    >>> loader = shardflow.Loader("photos256", batch_size=256, decoder=shardflow.decoders.Raw())
    >>> batches = shardflow.device.Prefetcher(loader, "cuda", [shardflow.device.DecodeJpeg()])
    """

    rows_are_images = False

    def __init__(self, *, max_pixels: int = MAX_PIXELS) -> None:
        self.max_pixels = check_integer("max_pixels", max_pixels, 1)

    def allocate_images(self, payloads: Payloads, crops: Plan, allocate: Allocator) -> torch.Tensor:  # noqa: ARG002
        """Return memory for `EncodedImages` of these files: uint8 [B, row length]."""
        return allocate(EncodedImages.shape_for(payloads.files))

    def decode(self, payloads: Payloads, crops: Plan, out: Images) -> Failures:  # noqa: ARG002 - cropped on the device
        """Pack the batch, laid out as `EncodedImages`."""
        failures: dict[int, SampleError] = {}
        files: list[memoryview] = []
        for index, file in enumerate(payloads.files):
            assert isinstance(file, memoryview)
            try:
                check_file(file, self.max_pixels)
                files.append(file)
            except TooLargeError as error:
                failures[index] = error
                files.append(memoryview(b""))
        assert not isinstance(payloads.shape, np.ndarray)  # a shape per image is for `Patches` only
        EncodedImages.pack(out, files, payloads.keys, payloads.epoch, payloads.shape)
        return failures

    def copy_image(self, images: torch.Tensor, index: int, source: int) -> None:
        """Replace encoded image `index` by image `source`."""
        encoded = EncodedImages(images)
        encoded.places[index], encoded.keys[index] = encoded.places[source], encoded.keys[source]


class EncodedImages:
    """The encoded images of a batch, packed into one tensor: uint8 [B, row length]. Its bytes, row after row:

        int64 [4]     B, the number of images; the epoch; height and width of the batch, 0 if no sampler chose them
        int64 [B, 2]  begin and end of each encoded image, in bytes from the start of the tensor
        uint64 [B]    keys of the samples, from which the crops are drawn
        bytes         the encoded images, one after the other; the rest is arbitrary

    The tensor has B rows like any batch, but a row is not an image: a large image takes its own size only, not that
    size for every image of the batch.

    Raises:
        ConfigError: The tensor does not hold encoded images.
    """

    def __init__(self, rows: torch.Tensor) -> None:
        self._memory, count = rows.view(-1), len(rows)
        plan, self.places, self.keys = self._header(self._memory, count)
        begins, ends = self.places.T
        inside = (begins >= 0) & (begins <= ends) & (ends <= len(self._memory))
        found, self.epoch, *shape = plan.tolist()
        if found != count or not inside.all():
            raise ConfigError("DecodeJpeg needs whole batches of decoders.Raw; pass them on unchanged")
        self.shape: tuple[int, int] | None = (shape[0], shape[1]) if all(shape) else None

    @staticmethod
    def _header(memory: torch.Tensor, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], U64]:
        words = memory[: _header_bytes(count)].numpy().view(np.int64)
        places, keys = words[_PLAN_WORDS:-count], words[-count:]
        return words[:_PLAN_WORDS], places.reshape(count, 2), keys.view(np.uint64)

    @staticmethod
    def shape_for(files: Sequence[Payload]) -> tuple[int, int]:
        """Return the shape of a tensor for one or more encoded images."""
        count, size = len(files), _header_bytes(len(files)) + sum(map(len, files))
        return count, -(-size // (count * STEP_BYTES)) * STEP_BYTES

    @classmethod
    def pack(
        cls,
        rows: torch.Tensor,
        files: Sequence[memoryview],
        keys: U64,
        epoch: int = 0,
        shape: tuple[int, int] | None = None,
    ) -> None:
        """Write encoded images, their keys, the epoch and the shape of the batch into a tensor."""
        memory = rows.view(-1)
        plan, places, its_keys = cls._header(memory, len(files))
        plan[:], its_keys[:] = [len(files), epoch, *(shape or (0, 0))], keys
        ends = [*itertools.accumulate(map(len, files), initial=_header_bytes(len(files)))]
        places[:] = [*itertools.pairwise(ends)]
        for file, (begin, end) in zip(files, itertools.pairwise(ends), strict=True):
            memory[begin:end].numpy()[:] = np.frombuffer(file, np.uint8)

    def file(self, index: int) -> torch.Tensor:
        """Return an encoded image: uint8 [length]."""
        begin, end = self.places[index].tolist()
        return self._memory[begin:end]


def _header_bytes(count: int) -> int:
    return _WORD_BYTES * (_PLAN_WORDS + 3 * count)


def check_file(payload: memoryview, max_pixels: int) -> None:
    """Raise TooLargeError if an image exceeds the limits; damage is found only by decoding."""
    try:
        if is_jpeg(payload):
            check_image(payload, max_pixels)
        else:
            with contextlib.suppress(DecodeError), map_codec_errors(DecodeError):
                open_image(payload, max_pixels=max_pixels).close()
    except TooLargeError as error:
        raise TooLargeError(f"the image {error}") from error
