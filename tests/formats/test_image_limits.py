from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardflow.errors import SampleError, TooLargeError
from shardflow.formats.image_limits import MAX_PIXELS, check_image, check_size
from shardflow.formats.image_types import IMAGE_TYPES
from tests.helpers import jpegs
from tests.helpers.folders import encoded

TYPES = {each.name: each for each in IMAGE_TYPES}
SIDE = 100


def refused(payload: bytes, max_pixels: int) -> bool:
    """Return whether an image is too large."""
    try:
        check_image(payload, max_pixels)
    except TooLargeError as error:
        return "limit" in str(error)
    return False


def least(payload: bytes) -> int:
    """Return the smallest limit that allows an image."""
    low, high = 0, 1 << 40
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if refused(payload, middle) else (low, middle)
    return high


def image(kind: str, mode: str = "RGB", **options: object) -> bytes:
    """Return a file of 100 x 80 pixels."""
    return encoded(Image.new(mode, (SIDE, 80)), kind, **options)


EXTENDED = image("WEBP", "RGBA", lossless=True, icc_profile=b"any")


@pytest.mark.parametrize(
    ("payload", "bytes_per_pixel"),
    [
        (image("JPEG"), 0),
        (image("JPEG", "CMYK"), 0),
        (image("JPEG", progressive=True), 4 + 2 * 3),
        (image("JPEG", "L", progressive=True), 4 + 2),
        (image("JPEG", "CMYK", progressive=True), 4 + 2 * 4),
        (image("PNG"), 10),
        (image("GIF", "P"), 10),
        (image("WEBP"), 16),
        (image("WEBP", lossless=True), 16),
        (EXTENDED, 16),
    ],
)
def test_one_number_scales_all_limits(payload: bytes, bytes_per_pixel: int) -> None:
    """An image is allowed from as many pixels on as it has, or as have its memory at nine bytes each."""
    assert EXTENDED[12:16] == b"VP8X"  # with the size of the canvas
    pixels = SIDE * 80
    by_scans = -(-pixels * payload.count(b"\xff\xda") // 15) if bytes_per_pixel else 0
    assert least(payload) == max(pixels, -(-pixels * bytes_per_pixel // 9), by_scans)


def test_the_default_is_a_number_of_pixels() -> None:
    """Phones take pictures of 108 million pixels; those of formats that cost more may have fewer."""
    check_size(TYPES["JPEG"], 12_000, 9_000)
    check_size(TYPES["PNG"], 11_000, 9_000)
    with pytest.raises(TooLargeError, match=r"11,000.*10,001.*110,000,000.*max_pix"):
        check_size(TYPES["JPEG"], 11_000, 10_001)
    with pytest.raises(TooLargeError, match=r"1,728,000,000.*990,000,000"):
        check_size(TYPES["WEBP"], 12_000, 9_000)
    assert MAX_PIXELS == 110_000_000
    assert issubclass(TooLargeError, SampleError)


@pytest.mark.parametrize("count", [499, 500, 501, 3000])
def test_scans_are_counted(count: int) -> None:
    """More than 500 scans are too many, however small the image is; scans of other images inside are not counted."""
    payload = jpegs.make(1, progressive=True)
    segments = jpegs.segments(payload)
    (head, scan), tail = (b"".join(segment for _, segment in segments[:-1]), segments[-1][1]), b"\xff\xd9"
    scans = sum(marker == 0xDA for marker, _ in segments[:-1])
    comment = b"\xff\xfe" + struct.pack(">H", 2 + 8) + b"\xff\xda\xff\xd9" * 2
    repeated = b"\xff\xd8" + head + (comment + scan) * (count - scans)
    assert refused(repeated + tail, MAX_PIXELS) == (count > 500)
    assert not refused(payload + scan * 600, MAX_PIXELS)  # what follows the end is no part of the image


def test_pixels_of_all_scans_are_bounded() -> None:
    """Fifteen passes over as many pixels as are allowed are the most."""
    payload = jpegs.make(1, progressive=True, width=SIDE, height=SIDE)
    scans = sum(marker == 0xDA for marker, _ in jpegs.segments(payload))
    assert scans == 10
    large = jpegs.set_size(payload, 9_900, 10_000)
    assert not refused(large, MAX_PIXELS)
    *_, (_, last) = jpegs.segments(large)
    assert not refused(large[:-2] + 6 * last + large[-2:], MAX_PIXELS)  # 16 scans of 99 million pixels
    assert refused(large[:-2] + 7 * last + large[-2:], MAX_PIXELS)


@pytest.mark.parametrize("before", [b"", b"garbage", b"\xff" * 9, b"\xff\x01", b"\xff\xd3", b"\xff\x00\xff"])
def test_bytes_between_segments_hide_nothing(before: bytes) -> None:
    """Decoders pass over what stands between two segments, and so does the check."""
    payload = jpegs.set_size(jpegs.make(1), 20_000, 20_000)
    assert refused(payload[:2] + before + payload[2:], MAX_PIXELS)


@given(start=st.sampled_from([image(kind) for kind in ("JPEG", "PNG", "WEBP", "GIF")]), data=st.data())
def test_garbage_never_raises_anything_else(start: bytes, data: st.DataObject) -> None:
    """Damaged and truncated files are allowed or too large."""
    damaged = bytearray(start[: data.draw(st.integers(0, len(start)))])
    for _ in range(data.draw(st.integers(0, 4))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    refused(bytes(damaged), 10_000)
    refused(memoryview(damaged).toreadonly(), 10_000)  # type: ignore[arg-type]


def test_formats_without_a_known_size_are_left_to_pillow() -> None:
    """Of other formats the header is not read here."""
    buffer = io.BytesIO()
    Image.new("L", (200, 200)).save(buffer, "TIFF")
    assert not refused(buffer.getvalue(), 100)
    assert not refused(b"no image", 1)
    assert not refused(b"", 1)
