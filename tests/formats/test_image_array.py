"""The part `image.npy`: what numpy writes, read without evaluating anything."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.errors import DecodeError, TooLargeError
from shardflow.formats import image_array
from shardflow.formats.image_limits import check_image
from shardflow.formats.image_types import image_size

SIDES = st.integers(1, 40)


def saved(pixels: Any) -> bytes:
    """Return an array as numpy saves it."""
    buffer = io.BytesIO()
    np.save(buffer, pixels)
    return buffer.getvalue()


@given(height=SIDES, width=SIDES, channels=st.integers(1, 16), dtype=st.sampled_from([np.uint8, np.uint16]))
def test_bytes_are_those_of_numpy(height: int, width: int, channels: int, dtype: Any) -> None:
    """Whatever the shape, the bytes are numpy's own, and are read as the same values, with their size."""
    pixels = np.arange(height * width * channels).reshape(height, width, channels).astype(dtype)
    data = image_array.to_bytes(pixels)
    assert data == saved(pixels) == image_array.to_bytes(pixels.astype(pixels.dtype.newbyteorder(">")))
    found = image_array.pixels(memoryview(data))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, pixels)
    assert image_size(data) == (width, height)


@pytest.mark.parametrize(
    "data",
    [
        b"\x93NUMPY",
        saved(np.zeros((4, 4, 3), np.uint8))[:-1],
        saved(np.zeros((4, 4, 3), np.uint8)) + b"\0",
        saved(np.zeros((4, 4, 3), np.float32)),
        saved(np.zeros((4, 4, 3), ">u2")),
        saved(np.asfortranarray(np.zeros((4, 4, 3), np.uint8))),
        saved(np.zeros((4, 4), np.uint8)),
        saved(np.zeros((4, 4, 17), np.uint8)),
        saved(np.zeros((0, 4, 3), np.uint8)),
        saved(np.zeros((0, 4, 3), np.float32)),
        saved(np.array([[[{}]]], dtype=object)),
        saved(np.zeros((4, 4, 3), np.uint8)).replace(b"\x01\x00v", b"\x01\x00u", 1),
        saved(np.zeros((4, 4, 3), np.uint8)).replace(b"(4, 4, 3)", b"(4, 4, 9)", 1),
    ],
)
def test_other_arrays_are_refused(data: bytes) -> None:
    """What is cut short, has another type, order, shape or header, or pickled objects, is a DecodeError."""
    check_image(data)
    with pytest.raises(DecodeError):
        image_array.pixels(data)


@pytest.mark.parametrize(("shape", "most"), [((10, 10, 1), 99), ((10, 10, 16), 1000)])
def test_limits_follow_from_the_header(shape: tuple[int, int, int], most: int) -> None:
    """Too many pixels, or channels that make them too large, are TooLargeError before anything is allocated."""
    header = image_array.to_bytes(np.zeros(shape, np.uint16))[:128]
    with pytest.raises(TooLargeError):
        check_image(header, most)
    check_image(header, 10 * most)
