from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardflow._pillow import MISSING_CODECS
from shardflow.formats.image_types import (
    IMAGE_PARTS,
    IMAGE_TYPES,
    SOURCE_PARTS,
    UNREAD_EXTENSIONS,
    ImageType,
    image_size,
    image_type,
    is_jpeg,
    jpeg_components,
    type_of_part,
)
from tests.helpers.folders import encoded, turned
from tests.helpers.making import jpeg

SIZES = [(1, 1), (300, 200), (1, 999), (4000, 3), (17, 65_500)]


def plain(mode: str, size: tuple[int, int], image_format: str, **options: Any) -> bytes:
    """A plain image as Pillow encodes it."""
    return encoded(Image.new(mode, size, 1), image_format, **options)


def segment(marker: int, data: bytes, fill: int = 0) -> bytes:
    """A JPEG marker segment after some fill bytes."""
    return b"\xff" * fill + bytes([0xFF, marker]) + (len(data) + 2).to_bytes(2, "big") + data


def test_part_names() -> None:
    """Each part name is of one format, which `pack` reads; datasets hold images under these six names."""
    assert [type_of_part(part) for part in SOURCE_PARTS] == [each for each in IMAGE_TYPES for _ in each.parts]
    assert {"avif", "image.npy", "jpeg", "jpg", "png", "webp"} == IMAGE_PARTS
    assert type_of_part("txt") is None
    assert UNREAD_EXTENSIONS.isdisjoint(SOURCE_PARTS)


@pytest.mark.parametrize("kind", [each for each in IMAGE_TYPES if each.by_pillow], ids=lambda kind: kind.name)
@pytest.mark.parametrize("mode", ["RGB", "L", "1"])
def test_signatures(kind: ImageType, mode: str) -> None:
    """A file that Pillow wrote begins as its format, also as a slice of a map, and as no other format does."""
    if kind.name in MISSING_CODECS:
        pytest.skip(MISSING_CODECS[kind.name])
    image = plain("L" if kind.is_lossy else mode, (30, 20), kind.name)
    assert [each for each in IMAGE_TYPES if each.signature.match(image)] == [kind]
    for payload in (image, memoryview(b"xx" + image)[2:]):
        assert image_type(payload) is kind
        assert is_jpeg(payload) == (kind.name == "JPEG")


@pytest.mark.parametrize("data", [b"", b"\xff", b"P", b"RIFF....WAVE", b"....ftypqt  ", b"BMW", b"P2P", bytes(100)])
def test_other_bytes_have_no_type(data: bytes) -> None:
    """What begins as none of the formats has no type."""
    assert image_type(data) is None
    assert not is_jpeg(data)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg(size: tuple[int, int], mode: str, progressive: bool) -> None:
    """Width and height of colour, grey and CMYK JPEGs, baseline and progressive, are those that Pillow encoded."""
    assert image_size(plain(mode, size, "JPEG", progressive=progressive)) == size


@pytest.mark.parametrize(("mode", "components"), [("L", 1), ("RGB", 3), ("CMYK", 4)])
@pytest.mark.parametrize("progressive", [False, True])
def test_components_of_a_jpeg(mode: str, components: int, progressive: bool) -> None:
    """The number of components is read from the frame header; a file without one, or of another format, has 0."""
    payload = plain(mode, (20, 30), "JPEG", progressive=progressive)
    assert jpeg_components(payload) == components
    assert jpeg_components(payload[:20]) == jpeg_components(plain("L", (20, 30), "PNG")) == jpeg_components(b"") == 0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "1", "I;16"])
def test_png(size: tuple[int, int], mode: str) -> None:
    """Width and height of PNGs of any kind are those that Pillow encoded."""
    assert image_size(plain(mode, size, "PNG")) == size


@pytest.mark.parametrize("size", [(1, 1), (300, 200), (16_383, 3)])
@pytest.mark.parametrize("options", [{"quality": 5}, {"lossless": True}, {"save_all": True}], ids=str)
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_webp(mode: str, size: tuple[int, int], options: dict[str, Any]) -> None:
    """Width and height of WebPs of any coding are those that Pillow encoded."""
    assert image_size(plain(mode, size, "WEBP", method=0, **options)) == size


@pytest.mark.parametrize("image_format", ["GIF", "BMP", "TIFF"])
def test_other_formats_are_not_known(image_format: str) -> None:
    """Formats whose size is not read say (0, 0)."""
    assert image_size(plain("RGB", (30, 20), image_format)) == (0, 0)


@given(
    segments=st.lists(
        st.tuples(st.sampled_from([*range(0xE0, 0xF0), 0xFE, 0xDB, 0xC4]), st.binary(max_size=300), st.integers(0, 5)),
        max_size=6,
    )
)
def test_segments_before_the_frame_are_skipped(segments: list[tuple[int, bytes, int]]) -> None:
    """APPn, comments and tables of any content and length, and fill bytes, do not hide the frame header."""
    image = jpeg(0, 48, 40)
    assert image_size(image[:2] + b"".join(segment(*parts) for parts in segments) + image[2:]) == (48, 40)


def test_thumbnail_is_not_taken_for_the_image() -> None:
    """The frame of an EXIF thumbnail inside of a segment is not the image's."""
    thumbnail, image = jpeg(1, 16, 12), jpeg(0, 48, 40)
    assert image_size(image[:2] + segment(0xE1, b"Exif\0\0" + thumbnail) + image[2:]) == (48, 40)


def test_orientation_is_not_applied() -> None:
    """The size is that of the stored pixels, whatever the EXIF orientation says."""
    assert image_size(plain("RGB", (30, 20), "JPEG", exif=turned(6))) == (30, 20)


def test_memoryview_and_bytes_agree() -> None:
    """A slice of a map is read as bytes are."""
    for image in (jpeg(0, 48, 40), plain("RGB", (48, 40), "PNG")):
        assert image_size(memoryview(b"xx" + image)[2:]) == (48, 40)


@pytest.mark.parametrize(("image_format", "marker", "size_end"), [("JPEG", b"\xff\xc0", 9), ("PNG", b"IHDR", 12)])
def test_truncations(image_format: str, marker: bytes, size_end: int) -> None:
    """A truncated image has the size as soon as it reaches to the end of that in its header, and (0, 0) before."""
    image = plain("RGB", (300, 290), image_format)
    known = image.index(marker) + size_end
    sizes = [image_size(image[:length]) for length in range(len(image))]
    assert sizes == [(0, 0)] * known + [(300, 290)] * (len(image) - known)


def test_frames_without_a_size_are_not_known() -> None:
    """A JPEG that gives its height at the end (DNL), and a PNG of no width, say (0, 0) and no half of a size."""
    image = jpeg(0, 48, 40)
    place = image.index(b"\xff\xc0")
    assert image[place + 5 : place + 9] == b"\0\x28\0\x30"
    assert image_size(image[: place + 5] + b"\0\0" + image[place + 7 :]) == (0, 0)
    png = plain("RGB", (48, 40), "PNG")
    assert image_size(png[:16] + bytes(4) + png[20:]) == (0, 0)


def test_scan_without_a_frame_is_not_known() -> None:
    """What follows the start of a scan is no longer looked at."""
    assert image_size(b"\xff\xd8" + segment(0xDA, b"\0" * 6) + jpeg(0)[2:]) == (0, 0)


@given(data=st.binary(max_size=200), start=st.sampled_from([b"", b"\xff\xd8", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"]))
def test_garbage_never_raises(data: bytes, start: bytes) -> None:
    """Any bytes give two integers, both positive or both zero."""
    width, height = image_size(start + data)
    assert (width > 0 and height > 0) or (width, height) == (0, 0)


@given(position=st.integers(0, 700), value=st.integers(0, 255))
def test_damage_never_raises(position: int, value: int) -> None:
    """A JPEG with a wrong byte anywhere gives two integers."""
    image = bytearray(jpeg(0, 48, 40))
    image[position % len(image)] = value
    width, height = image_size(image)
    assert (width > 0 and height > 0) or (width, height) == (0, 0)
