"""Image arrays: images of any number of channels, in 8 or 16 bits, as the part `image.npy` of a sample.

An array is [height, width, channels], uint8 or uint16 in little-endian order, in C order. numpy and webdataset read it.
Sources: NumPy Enhancement Proposal 1 (the format); the header is parsed here, by a pattern, and never evaluated.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from shardflow._wording import plural
from shardflow.errors import DecodeError

PART = "image.npy"
MOST_CHANNELS = 16

Array = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]

MAGIC = b"\x93NUMPY"
_HEADER_BYTES = 256  # numpy pads to 64; an array of an image needs 128
_HEADER = re.compile(
    rb"\x93NUMPY\x01\0(?P<length>..)\{'descr': '(?P<dtype>\|u1|<u2)', 'fortran_order': False, "
    rb"'shape': \((?P<height>\d{1,9}), (?P<width>\d{1,9}), (?P<channels>\d{1,2})\), \} *\n",
    re.DOTALL,
)


def is_array(payload: memoryview | bytes) -> bool:
    """Return whether the bytes of an image begin as an array does."""
    return bytes(payload[: len(MAGIC)]) == MAGIC


def to_bytes(pixels: Array) -> bytes:
    """Return an image, uint8 or uint16 [H, W, C], as the bytes of an `.npy` file."""
    descr = "|u1" if pixels.dtype == np.uint8 else "<u2"
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {pixels.shape!r}, }}"
    text += " " * (-(10 + len(text) + 1) % 64) + "\n"
    header = MAGIC + b"\1\0" + len(text).to_bytes(2, "little") + text.encode()
    return header + np.ascontiguousarray(pixels, dtype=np.dtype(descr)).tobytes()


def shape(payload: memoryview | bytes) -> tuple[int, int, int, int]:
    """Return height, width, channels and bytes per value; zeros if the header does not describe an image."""
    found = _HEADER.match(bytes(payload[:_HEADER_BYTES]))
    if found is None or found.end() != 10 + int.from_bytes(found["length"], "little"):
        return 0, 0, 0, 0
    height, width, channels = (int(found[name]) for name in ("height", "width", "channels"))
    if not (height and width and 1 <= channels <= MOST_CHANNELS):
        return 0, 0, 0, 0
    return height, width, channels, 1 if found["dtype"] == b"|u1" else 2


def kind(channels: int, value_bytes: int) -> str:
    """Return the kind of an image, as in "16 bits in 1 channel"; only images of one kind form a batch."""
    return f"{8 * value_bytes} bits in {plural(channels, 'channel')}"


def pixels(payload: memoryview | bytes) -> Array:
    """Return an image as a view of its bytes: uint8 or uint16 [H, W, C].

    Raises:
        DecodeError: It is not such an array, or its data is cut short.
    """
    height, width, channels, value_bytes = shape(payload)
    if not value_bytes:
        raise DecodeError(
            f"not an array of an image: uint8 or uint16 [height, width, 1 to {MOST_CHANNELS} channels], little-endian, "
            "in C order"
        )
    start = 10 + int.from_bytes(payload[8:10], "little")
    expected = height * width * channels * value_bytes
    if len(payload) - start != expected:
        raise DecodeError(f"the array of an image has {len(payload) - start:,} bytes of data, expected {expected:,}")
    values: Array = np.frombuffer(payload, dtype=np.uint8 if value_bytes == 1 else np.uint16, offset=start)
    return values.reshape(height, width, channels)
