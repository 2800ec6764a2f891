"""Pixels: one encoded image decoded as a whole, upright and in sRGB, by whichever library decodes it best.

One that is too large for `formats.image_limits` is refused by all decoders alike, before memory is allocated for it.
"""

from __future__ import annotations

import functools
import logging
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import PIL
import torch

from shardflow import native
from shardflow._pillow import map_codec_errors, open_image
from shardflow._rgb import is_plain_jpeg, rgb_pixels
from shardflow.errors import ConfigError, DecodeError, SampleError, TooLargeError
from shardflow.formats.image_array import is_array, kind
from shardflow.formats.image_array import pixels as array_pixels
from shardflow.formats.image_array import shape as array_shape
from shardflow.formats.image_limits import check_image
from shardflow.formats.image_types import image_size, is_jpeg
from shardflow.geometry.crops import Crops
from shardflow.loading.run_metadata import package_version
from shardflow.native.binding import Problem, Status

logger = logging.getLogger(__name__)

_EXIF = re.compile(rb"\xff\xe1..Exif\0\0", re.DOTALL)  # begins a segment; entropy-coded data cannot hold it
_ENCODED = 3, 1  # channels, and bytes per value, of all that is not an array

Pixels = npt.NDArray[np.uint8]
"""A decoded image: [H, W, 3], RGB, contiguous."""

PixelSource = Literal["kernel", "libraries"]

Payload = memoryview | Pixels
"""An encoded image, or a decoded one in its place."""


def decode_image(payload: Payload, max_pixels: int, problem: Problem | None = None) -> torch.Tensor:
    """Return a whole image, upright in sRGB, [3, H, W]; `problem` is the native kernel's, if it was asked."""
    if isinstance(payload, np.ndarray):
        return torch.from_numpy(payload).permute(2, 0, 1)
    try:
        check_image(payload, max_pixels)
        if is_array(payload):
            planes = array_pixels(payload).transpose(2, 0, 1).copy()  # writable, as a transform may expect
            return torch.from_numpy(planes)
        if problem is not None and problem.status is Status.TOO_LARGE:
            raise TooLargeError(problem.message)
        is_plain = is_jpeg(payload) and is_plain_jpeg(payload, max_pixels)
        decode_jpeg = jpeg_decoder() if is_plain else None
        with map_codec_errors(DecodeError):  # torchvision and torchcodec raise RuntimeError; Pillow nearly anything
            if decode_jpeg is not None:
                image: torch.Tensor = decode_jpeg(torch.frombuffer(payload, dtype=torch.uint8))
                return image
            # Not torchvision's PNG decoder: damaged files can end the process there.
            with open_image(payload, max_pixels=max_pixels) as opened:
                return torch.from_numpy(rgb_pixels(opened)).permute(2, 0, 1)
    except TooLargeError as error:
        raise TooLargeError(f"the image {error}") from error
    except DecodeError as error:
        raise DecodeError(f"the image cannot be decoded: {str(error).splitlines()[0]}") from error


def decode_whole(source: PixelSource, payload: memoryview, width: int, height: int, max_pixels: int) -> Pixels | None:
    """Return the pixels of an encoded image; None when it is damaged or not of that size."""
    if image_size(payload) != (width, height) or is_array(payload):  # arrays are decoded already
        return None
    try:
        check_image(payload, max_pixels)
        if source == "kernel":
            pixels = np.empty((height, width, 3), dtype=np.uint8)
            problem = native.decode_resized(payload, pixels, oversampling=0, max_pixels=max_pixels)
            if problem is None:
                return pixels
            if is_jpeg(payload) and problem.status is not Status.UNSUPPORTED:
                return None
        image = decode_image(payload, max_pixels)
    except SampleError:
        return None
    return np.ascontiguousarray(image.permute(1, 2, 0).numpy()) if image.shape[1:] == (height, width) else None


def pixels_version(source: PixelSource, max_pixels: int) -> str:
    """Return versions and limit, on which what `decode_whole` returns depends."""
    kernel = native.version() if source == "kernel" else "none"
    return f"kernel {kernel}, torchvision {package_version('torchvision')}, Pillow {PIL.__version__}, {max_pixels}"


def layout(payloads: Sequence[Payload]) -> tuple[int, torch.dtype]:
    """Return the channels and the dtype of the images of a batch; ConfigError if they differ."""
    found = {
        _ENCODED if isinstance(payload, np.ndarray) or not is_array(payload) else array_shape(payload)[2:]
        for payload in payloads
    } - {(0, 0)}  # of a damaged header, which is found again when its image is decoded
    if len(found) > 1:
        described = ", ".join(kind(*each) for each in sorted(found))
        raise ConfigError(f"images of {described} do not form a batch; pack each kind as a separate dataset")
    channels, value_bytes = found.pop() if found else _ENCODED
    return channels, torch.uint8 if value_bytes == 1 else torch.uint16


def header_size(payload: Payload, max_pixels: int) -> tuple[int, int]:
    """Return width and height of an image; zeros where the header does not say, and of JPEGs not for the kernel."""
    if isinstance(payload, np.ndarray):
        return payload.shape[1], payload.shape[0]
    return image_size(payload) if not is_jpeg(payload) or is_plain_jpeg(payload, max_pixels) else (0, 0)


def crop_pixels(
    crops: Crops, index: int, image: torch.Tensor, resize: Callable[[torch.Tensor, int, int], torch.Tensor]
) -> torch.Tensor:
    """Return the crop of image `index` of the batch, [C, H, W]; `resize` takes an image, a height and a width."""
    x, y, box_width, box_height = crops.box[index].tolist()
    width, height = crops.resized[index].tolist()
    left, top = crops.offset[index].tolist()
    across, down = crops.extents[index].tolist()
    if not (
        (0 <= x < x + box_width <= image.shape[2] and 0 <= y < y + box_height <= image.shape[1])
        and (0 <= left < left + across <= width and 0 <= top < top + down <= height)
        and crops.size in (None, (across, down))
    ):
        raise ConfigError(
            f"the decoder planned the crop box={(x, y, box_width, box_height)}, resized={(width, height)}, "
            f"offset={(left, top)}, size={crops.size} of an image of {image.shape[2]} x {image.shape[1]}: the box must "
            "lie within the image, and the output within the resized box"
        )
    resized = resize(image[:, y : y + box_height, x : x + box_width], height, width)
    cropped = resized[:, top : top + down, left : left + across]
    return cropped.flip(-1) if crops.flip[index] else cropped


def check_resized(size: Sequence[int], max_pixels: int) -> None:
    """Refuse an image so long and thin that it would be enlarged to gigabytes on the way to its crop."""
    width, height = size
    if width * height > max_pixels:
        raise TooLargeError(
            f"the image would be resized to {width:,} x {height:,} pixels; the limit is {max_pixels:,} pixels; leave "
            "it out, or raise max_pixels"
        )


def resize(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return an image [C, H, W], resized with antialiasing, as the kernel does it."""
    if image.shape[1:] == (height, width):
        return image
    # The kernel behind torchvision's antialiased resize, without the wrappers around it.
    resized: torch.Tensor = torch.ops.aten._upsample_bilinear2d_aa(image[None], [height, width], False)[0]
    return resized


@functools.cache
def jpeg_decoder() -> Callable[..., Any] | None:
    """Return the JPEG decoder of torchvision, or of torchcodec, to which torchvision hands it over; None without both.

    It turns uint8 [bytes] into uint8 [3, H, W], and a list into a list, which it decodes on the `device` that is given.
    The pixels are the same: both call libjpeg-turbo alike.

    Importing torchvision takes as long as torch, and 100 MB. With the kernel hardly any image needs it; a loader
    without calls this before its workers are forked, so that they share it.
    """
    try:
        from torchvision.io import ImageReadMode, decode_jpeg
    except ImportError:
        return _torchcodec_decoder()
    # The warning is for those who choose a decoder, and comes with every image.
    warnings.filterwarnings("ignore", "The image decoding and encoding capabilities of TorchVision", DeprecationWarning)
    return functools.partial(decode_jpeg, mode=ImageReadMode.RGB)


def _torchcodec_decoder() -> Callable[..., Any] | None:
    try:
        from torchcodec.decoders import decode_jpeg
    except (ImportError, OSError, RuntimeError):  # it is not there, or its libraries cannot be loaded
        return None

    def hide_orientation(data: torch.Tensor) -> torch.Tensor:
        """Make EXIF segments APP15, which none reads: torchcodec turns images as they say, unlike the others."""
        found = data.numpy().tobytes()
        hidden = _EXIF.sub(lambda segment: b"\xff\xef" + segment[0][2:], found)
        return data if hidden == found else torch.frombuffer(bytearray(hidden), dtype=torch.uint8)

    def decode(data: torch.Tensor | list[torch.Tensor], **arguments: Any) -> Any:
        hidden = [hide_orientation(one) for one in data] if isinstance(data, list) else hide_orientation(data)
        return decode_jpeg(hidden, mode="RGB", **arguments)

    return decode


@functools.cache
def warn_without_kernel() -> None:
    """Log, the first time in this process, that the native kernel is missing."""
    if not native.available():
        jpeg_decoder()
        logger.warning("JPEGs are decoded at less than half the speed: %s", native.describe())
