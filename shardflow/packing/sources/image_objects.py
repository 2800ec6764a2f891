"""Images as objects, made into files without loss, so that they reach the recipe as any other image does."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from shardflow.errors import SampleError

_PLAIN_MODES = ("L", "RGB")
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


def is_image(value: object) -> bool:
    """Whether a value is an image: Pillow's, an array or tensor, or a file as Hugging Face datasets give it."""
    if isinstance(value, Mapping):
        return {"bytes", "path"} == value.keys()
    return isinstance(value, Image.Image) or len(getattr(value, "shape", ())) in (2, 3)


def encoded(value: Any, *, as_png: bool = False) -> bytes | Path:
    """Return an image as the bytes of a file, or where that file is.

    Args:
        value: Bytes of a file, a path, {"bytes": ..., "path": ...}, a Pillow image, or an array or tensor of uint8
            (grey: also uint16): [height, width], [height, width, channels], or, of torch, [channels, height, width].
        as_png: Write PNG, as masks are read, and not what is cheapest.

    Raises:
        SampleError: It is none of them.
    """
    if isinstance(value, Mapping) and is_image(value):
        value = value["bytes"] if value["bytes"] is not None else value["path"]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str | Path):
        return Path(value).absolute()
    if not isinstance(value, Image.Image):
        value = Image.fromarray(_pixels(value))
    return _file(value, as_png)


def _pixels(value: Any) -> npt.NDArray[Any]:
    if not hasattr(value, "shape"):
        raise SampleError(f"expected an image, found {type(value).__name__}")
    pixels = np.asarray(value)
    if pixels.dtype != np.uint8 and not (pixels.dtype == np.uint16 and pixels.ndim == 2):
        raise SampleError(f"an array of {pixels.dtype} has no defined range; expected uint8, or uint16 of grey")
    if pixels.ndim == 3 and type(value).__module__.startswith("torch"):
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in (3, 4)):
        raise SampleError(f"an array of shape {pixels.shape} is no image; expected [height, width, 1, 3 or 4 channels]")
    return np.ascontiguousarray(pixels)


def _file(image: Image.Image, as_png: bool) -> bytes:
    """Return a file of the format that is cheapest to write and to read, of those that can hold the image."""
    upright = ImageOps.exif_transpose(image)  # its EXIF does not come along
    profile = image.info.get("icc_profile")
    buffer = io.BytesIO()
    if upright.mode in _PLAIN_MODES and not profile and not as_png:
        upright.save(buffer, "PPM")
    elif upright.mode in _PNG_MODES:
        upright.save(buffer, "PNG", compress_level=1, icc_profile=profile)
    else:
        upright.save(buffer, "TIFF", icc_profile=profile)
    return buffer.getvalue()
