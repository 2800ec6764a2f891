"""JPEGs of every kind the tests need, made here: photo-like pixels, Pillow's codings, and forged bytes."""

from __future__ import annotations

import functools
import io
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torchvision
from numpy.typing import NDArray
from packaging.version import Version
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms.v2 import functional as F  # noqa: N812 - its usual name

from shardflow.native import binding


def pixels(number: int, width: int, height: int) -> NDArray[np.uint8]:
    """Return smooth shades, edges in saturated colours and some noise, [height, width, 3]."""
    rng = np.random.default_rng(number)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / rng.uniform(3, 20) + y / rng.uniform(3, 20) + rng.uniform(0, 6)) for _ in range(3)]
    values = 128 + 90 * np.stack(waves, -1)
    for _ in range(3):
        inside = (x - rng.uniform(0, width)) * rng.uniform(-1, 1) + (y - rng.uniform(0, height)) * rng.uniform(
            -1, 1
        ) > 0
        values += 60 * rng.uniform(-1, 1, 3) * inside[..., None]
    return (values + rng.normal(0, 6, values.shape)).clip(0, 255).astype(np.uint8)


@functools.lru_cache(maxsize=1024)
def make(number: int = 0, width: int = 64, height: int = 48, *, mode: str = "RGB", **how: Any) -> bytes:
    """Return a JPEG; `how` goes to Pillow: subsampling 0, 1, 2 for 4:4:4, 4:2:2, 4:2:0, progressive, and so on."""
    buffer = io.BytesIO()
    image = Image.fromarray(pixels(number, width, height)).convert(mode)
    image.save(buffer, "JPEG", **{"quality": 90, "subsampling": 2 if mode == "RGB" else -1, **how})
    return buffer.getvalue()


def reference(payload: bytes, box: tuple[int, int, int, int], size: tuple[int, int], flip: bool) -> NDArray[np.uint8]:
    """Return torchvision's crop, [3, height, width]; `box` is x, y, width, height, `size` is height, width."""
    x, y, width, height = box
    image = F.crop(_decoded_by_torchvision(payload), y, x, height, width)
    if Version(torchvision.__version__) < Version("0.24"):  # which goes through floats on a processor with AVX-512
        image = torch.nn.functional.interpolate(image[None], list(size), mode="bilinear", antialias=True)[0]
    else:
        image = F.resize(image, list(size), antialias=True)
    result: NDArray[np.uint8] = (F.hflip(image) if flip else image).numpy()
    return result


def decoded(payload: bytes) -> NDArray[np.uint8]:
    """Return the pixels of torchvision, [3, height, width], or of Pillow where torchvision's libjpeg-turbo is old.

    The wheels of torchvision before 0.28 hold libjpeg-turbo 2.0, which repeats the colours of 4:4:0 where later ones
    interpolate, and smooths incomplete progressive files in another way.
    """
    if Version(torchvision.__version__) < Version("0.28"):
        return np.asarray(Image.open(io.BytesIO(payload)).convert("RGB")).transpose(2, 0, 1)
    pixels: NDArray[np.uint8] = _decoded_by_torchvision(payload).numpy()
    return pixels


def _decoded_by_torchvision(payload: bytes) -> torch.Tensor:
    return decode_jpeg(torch.frombuffer(bytearray(payload), dtype=torch.uint8), mode=ImageReadMode.RGB)


def set_size(payload: bytes, width: int, height: int) -> bytes:
    """Return the JPEG with other dimensions in its frame header."""
    at = frame(payload)
    return payload[: at + 5] + struct.pack(">HH", height, width) + payload[at + 9 :]


def flipped(payload: bytes, rng: random.Random, count: int) -> bytes:
    """Return the JPEG with bits flipped, wherever they are."""
    data = bytearray(payload)
    for _ in range(count):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def frame(payload: bytes) -> int:
    """Return where the frame header's marker is."""
    return next(i for i in range(len(payload)) if payload[i] == 0xFF and payload[i + 1] in (0xC0, 0xC1, 0xC2))


def without_segments(payload: bytes, marker: int) -> bytes:
    """Return the JPEG without the segments of a kind that come before its scan."""
    kept, at = payload[:2], 2
    while payload[at + 1] != 0xDA:
        length = 2 + struct.unpack(">H", payload[at + 2 : at + 4])[0]
        if payload[at + 1] != marker:
            kept += payload[at : at + length]
        at += length
    return kept + payload[at:]


@contextmanager
def decoder(
    *, fast: bool = True, plain: bool = False, kernel: binding.Kernel | None = None
) -> Iterator[binding.Decoder]:
    """Make this thread decode with a kernel: fast, in plain C, or by libjpeg-turbo alone."""
    kernel = kernel or loaded_kernel()
    way = binding.Way.PLAIN if plain else binding.Way.FAST if fast else binding.Way.LIBRARY
    binding._threads.decoder = decoder = binding.Decoder(kernel, way)
    try:
        yield decoder
    finally:
        del binding._threads.decoder


def loaded_kernel() -> binding.Kernel:
    """Return the kernel of this process."""
    kernel = binding.load()
    assert isinstance(kernel, binding.Kernel)
    return kernel


def segments(payload: bytes) -> list[tuple[int, bytes]]:
    """Return the segments of a JPEG, each a marker and everything up to the next one, entropy-coded data included."""
    found, at = [], 2
    while payload[at + 1] != 0xD9:
        end = at + 2 + struct.unpack(">H", payload[at + 2 : at + 4])[0]
        if payload[at + 1] == 0xDA:
            while payload[end] != 0xFF or payload[end + 1] in (0, *range(0xD0, 0xD8)):
                end += 1
        found.append((payload[at + 1], payload[at:end]))
        at = end
    return found
