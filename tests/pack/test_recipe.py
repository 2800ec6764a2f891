from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps, JpegImagePlugin

from pack.folders import encoded, photo
from pack.kernel import without_kernel
from shardflow import native
from shardflow.errors import ConfigError, DecodeError, EncodeError, SampleError
from shardflow.pack.recipe import Recipe

Pixels = npt.NDArray[np.uint8]

FINE = Recipe(short_side=32, quality=100, subsampling="4:4:4")  # what differs is then not the codec's doing


@pytest.fixture(autouse=True, scope="module", params=["kernel", "Pillow"])
def _decoder(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every rule holds whoever decodes the JPEGs."""
    if request.param == "Pillow":
        with without_kernel():
            yield
    elif native.available():
        yield
    else:
        pytest.skip(native.why())


def _shades(width: int = 96, height: int = 64) -> Pixels:
    """Smooth colours, so that a resize and a JPEG hardly change them, and no two corners alike."""
    y, x = np.mgrid[0:height, 0:width]
    channels = [255 * x / width, 255 * y / height, 127 + 100 * np.sin(x / 25 + y / 15)]
    return np.stack(channels, -1).astype(np.uint8)


SHADES = _shades()
GREY = SHADES[..., 2]
ALPHA = SHADES[..., 0]


def _decoded(jpeg: bytes) -> npt.NDArray[np.float64]:
    return np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB")).astype(float)


def _expected(pixels: npt.NDArray[np.float64] | Pixels, size: tuple[int, int] = (48, 32)) -> npt.NDArray[np.float64]:
    image = Image.fromarray(np.asarray(pixels).round().astype(np.uint8)).convert("RGB")
    return np.asarray(image.resize(size, Image.Resampling.BICUBIC)).astype(float)


def _on_white(pixels: Pixels, alpha: Pixels) -> npt.NDArray[np.float64]:
    weight = alpha.astype(float)[..., None] / 255
    return pixels * weight + 255 * (1 - weight)


def _png(pixels: npt.NDArray[np.uint16], colour_type: int) -> bytes:
    """A 16-bit PNG, which Pillow does not write in colour (W3C PNG, 11.2.2)."""
    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0))]
    chunks += [(b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    framed = (struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


def _pgm(pixels: Pixels, most: int) -> bytes:
    height, width = pixels.shape
    values = np.round(pixels / 255 * most).astype(">u2")
    return b"P5 %d %d %d\n" % (width, height, most) + values.tobytes()


def _tiff12(pixels: Pixels) -> bytes:
    """An uncompressed 12-bit grey TIFF, two pixels in three bytes (TIFF 6.0, section 3)."""
    height, width = pixels.shape
    values = np.round(pixels / 255 * 4095).astype(np.uint32).reshape(-1, 2)
    packed = (values[:, 0] << 12 | values[:, 1]).astype(">u4").tobytes()
    data = b"".join(packed[at + 1 : at + 4] for at in range(0, len(packed), 4))
    tags = [
        (256, width),
        (257, height),
        (258, 12),
        (259, 1),
        (262, 1),
        (273, 8),
        (277, 1),
        (278, height),
        (279, len(data)),
    ]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return struct.pack("<2sHI", b"II", 42, 8 + len(data)) + data + struct.pack("<H", len(tags)) + entries + bytes(4)


def _palette(alpha: bytes | None) -> bytes:
    image = Image.fromarray((np.arange(96 * 64).reshape(64, 96) // 32 % 192).astype(np.uint8), "P")
    image.putpalette([value for entry in range(256) for value in (entry, 255 - entry, entry // 2)])
    return encoded(image, "PNG", **({} if alpha is None else {"transparency": alpha}))


def _palette_pixels(alpha: int = 255) -> npt.NDArray[np.float64]:
    entries = (np.arange(96 * 64).reshape(64, 96) // 32 % 192).astype(np.uint8)
    colours = np.stack([entries, 255 - entries, entries // 2], -1)
    return _on_white(colours, np.full_like(entries, alpha))


WIDE = SHADES.astype(np.uint16) * 257
RGB = Image.fromarray(SHADES)
COLOURS: dict[str, tuple[bytes, npt.NDArray[np.float64] | Pixels]] = {
    "RGB": (encoded(RGB, "PNG"), SHADES),
    "RGB BMP": (encoded(RGB, "BMP"), SHADES),
    "RGB TIFF": (encoded(RGB, "TIFF"), SHADES),
    "RGB TIFF with LZW": (encoded(RGB, "TIFF", compression="tiff_lzw"), SHADES),
    "RGB WebP": (encoded(RGB, "WEBP", lossless=True), SHADES),
    "RGB PPM": (encoded(RGB, "PPM"), SHADES),
    "grey PNG": (encoded(Image.fromarray(GREY), "PNG"), GREY),
    "grey JPEG": (encoded(Image.fromarray(GREY), "JPEG", quality=100), GREY),
    "grey GIF": (encoded(Image.fromarray(GREY), "GIF"), GREY),
    "bilevel": (encoded(Image.fromarray(GREY > 128), "PNG"), 255 * (GREY > 128)),
    "CMYK JPEG": (encoded(RGB.convert("CMYK"), "JPEG", quality=100), SHADES),
    "CMYK TIFF": (encoded(RGB.convert("CMYK"), "TIFF"), SHADES),
    "YCbCr TIFF": (encoded(RGB.convert("YCbCr"), "TIFF"), SHADES),
    "palette": (_palette(None), _palette_pixels()),
    "palette with alpha": (_palette(bytes([100] * 256)), _palette_pixels(100)),
    "RGBA": (encoded(Image.fromarray(np.dstack([SHADES, ALPHA])), "PNG"), _on_white(SHADES, ALPHA)),
    "RGBA WebP": (
        encoded(Image.fromarray(np.dstack([SHADES, ALPHA])), "WEBP", lossless=True, exact=True),
        _on_white(SHADES, ALPHA),
    ),
    "grey with alpha": (
        encoded(Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(ALPHA)]), "PNG"),
        _on_white(np.dstack([GREY] * 3), ALPHA),
    ),
    "one transparent colour": (
        encoded(Image.new("RGB", (96, 64), (200, 30, 40)), "PNG", transparency=(200, 30, 40)),
        np.full((64, 96, 3), 255, np.uint8),
    ),
    "16-bit grey PNG": (_png(WIDE[..., 2], 0), GREY),
    "16-bit grey TIFF": (encoded(Image.fromarray(WIDE[..., 2]), "TIFF"), GREY),
    "16-bit colour PNG": (_png(WIDE, 2), SHADES),
    "16-bit PGM": (_pgm(GREY, 65535), GREY),
    "10-bit PGM": (_pgm(GREY, 1023), GREY),
    "12-bit TIFF": (_tiff12(GREY), GREY),
}


@pytest.mark.parametrize("case", COLOURS)
def test_colours(case: str) -> None:
    """Every kind of pixel becomes the RGB that it shows: scaled to 8 bits, on white where it is transparent."""
    data, pixels = COLOURS[case]
    difference = np.abs(_decoded(FINE.process(data).jpeg) - _expected(pixels))
    assert difference.mean() < 1.5
    assert difference.max() < 12


@pytest.mark.parametrize("image", [Image.new("F", (40, 40), 0.5), Image.new("I", (40, 40), 1 << 20)], ids=["F", "I"])
def test_pixels_without_a_range_are_refused(image: Image.Image) -> None:
    """Numbers that could mean anything are quarantined rather than guessed at."""
    with pytest.raises(DecodeError, match="no defined range"):
        FINE.process(encoded(image, "TIFF"))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format_name", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_orientation(orientation: int, format_name: str) -> None:
    """The picture stands as its EXIF orientation says, and says nothing about it afterwards."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"JPEG": {"quality": 100, "subsampling": 0}, "WEBP": {"lossless": True}}.get(format_name, {})
    data = encoded(RGB, format_name, exif=exif, **options)
    jpeg = FINE.process(data).jpeg
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    size = (48, 32) if orientation < 5 else (32, 48)
    assert np.abs(_decoded(jpeg) - _expected(upright, size)).mean() < 2
    assert not Image.open(io.BytesIO(jpeg)).getexif()


@pytest.mark.parametrize("size", [(1600, 1200), (1601, 1203), (1999, 700)])
def test_large_originals(size: tuple[int, int]) -> None:
    """Decoding at a reduced scale shifts nothing: the result is that of a full decode and the same filter."""
    pixels = _shades(*size)
    data = encoded(Image.fromarray(pixels), "JPEG", quality=95, subsampling=0)
    decoded = _decoded(FINE.process(data).jpeg)
    difference = np.abs(decoded - _expected(pixels, (decoded.shape[1], 32)))
    assert difference.mean() < 1
    assert difference.max() < 12


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 64), st.booleans())
def test_size(width: int, height: int, short_side: int, enlarge: bool) -> None:
    """The short side is exact, the long side is the nearest to the same ratio, and nothing grows unless asked."""
    recipe = Recipe(short_side=short_side, enlarge=enlarge)
    packed = Image.open(io.BytesIO(recipe.process(encoded(Image.new("L", (width, height)), "BMP")).jpeg))
    if min(width, height) < short_side and not enlarge:
        assert packed.size == (width, height)
    else:
        scale = short_side / min(width, height)
        assert min(packed.size) == short_side
        assert packed.width == pytest.approx(width * scale, abs=0.5)
        assert packed.height == pytest.approx(height * scale, abs=0.5)


def test_output_is_a_baseline_jpeg_without_metadata() -> None:
    """What is packed is baseline, in the subsampling asked for, and carries none of the source's metadata."""
    exif = Image.Exif()
    exif[0x010F] = "a camera"
    data = encoded(RGB, "JPEG", exif=exif, comment="private", icc_profile=b"profile" * 40, progressive=True)
    for subsampling, code in {"4:4:4": 0, "4:2:2": 1, "4:2:0": 2}.items():
        jpeg = Recipe(short_side=32, subsampling=subsampling).process(data).jpeg
        image = Image.open(io.BytesIO(jpeg))
        assert isinstance(image, JpegImagePlugin.JpegImageFile)
        assert set(image.info) <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}
        assert JpegImagePlugin.get_sampling(image) == code
        assert b"private" not in jpeg


def test_quality() -> None:
    """A higher quality makes larger files."""
    sizes = [len(Recipe(short_side=64, quality=quality).process(photo(1)).jpeg) for quality in (30, 60, 90)]
    assert sizes == sorted(set(sizes))


def test_first_frame() -> None:
    """Of an animated image the first frame is packed."""
    frames = [Image.new("RGB", (40, 40), colour) for colour in ("red", "green", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert _decoded(FINE.process(data).jpeg)[20, 20] == pytest.approx([255, 0, 0], abs=3)


def test_pixel_sums() -> None:
    """The sums give the mean and the standard deviation of the pixels, as numpy has them."""
    packed = Recipe(short_side=64, quality=100, subsampling="4:4:4").process(encoded(RGB, "PNG"))
    assert packed.pixels.mean == pytest.approx(SHADES.reshape(-1, 3).mean(0) / 255, abs=1e-5)
    assert packed.pixels.std == pytest.approx(SHADES.reshape(-1, 3).std(0) / 255, abs=1e-5)


def _oriented() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(RGB, "JPEG", exif=exif)


SMALL = Recipe(short_side=64, keep_small=True)
NOT_KEPT: dict[str, Callable[[], bytes]] = {
    "larger": lambda: encoded(Image.new("RGB", (66, 65)), "JPEG"),
    "progressive": lambda: encoded(RGB, "JPEG", progressive=True),
    "grey": lambda: encoded(RGB.convert("L"), "JPEG"),
    "CMYK": lambda: encoded(RGB.convert("CMYK"), "JPEG"),
    "oriented": _oriented,
    "PNG": lambda: encoded(RGB, "PNG"),
}


def test_keep_small_copies() -> None:
    """A small upright baseline JPEG is copied byte for byte if asked, and encoded again if not."""
    data = encoded(RGB, "JPEG", quality=77, comment="kept")
    assert SMALL.process(data).jpeg == data
    assert Recipe(short_side=64).process(data).jpeg != data
    assert Recipe(short_side=65, keep_small=True, enlarge=True).process(data).jpeg != data


@pytest.mark.parametrize("case", NOT_KEPT)
def test_keep_small_encodes_the_rest(case: str) -> None:
    """What a plain decoder could not take as it is, is encoded again in spite of `keep_small`."""
    data = NOT_KEPT[case]()
    jpeg = SMALL.process(data).jpeg
    assert jpeg != data
    image = Image.open(io.BytesIO(jpeg))
    assert image.mode == "RGB"
    assert min(image.size) == 64
    assert "progressive" not in image.info


def test_keep_small_still_decodes() -> None:
    """A damaged file is not copied just because it is small."""
    with pytest.raises(DecodeError, match="truncated"):
        SMALL.process(photo(1)[:-200])


def _forged(width: int, height: int) -> bytes:
    """A JPEG whose frame header lies about its size (ITU-T T.81, B.2.2)."""
    data = bytearray(photo(1))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(data)


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "text": (b"<!DOCTYPE html><html></html>", "not an image in one of the formats"),
    "PostScript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image in one of the formats"),
    "zeros": (bytes(5000), "not an image in one of the formats"),
    "JPEG cut short": (photo(1)[: len(photo(1)) // 2], "truncated"),
    "JPEG header alone": (photo(1)[:20], "."),
    "PNG cut short": (encoded(RGB, "PNG")[:300], "."),
    "WebP cut short": (encoded(RGB, "WEBP")[:200], "."),
    "GIF cut short": (encoded(RGB, "GIF")[:900], "."),
    "TIFF cut short": (encoded(RGB, "TIFF")[:5000], "."),
    "JPEG said to be huge": (_forged(65000, 65000), "more than 178956970 pixels"),
    "JPEG said to be just too large": (_forged(14000, 13000), "more than 178956970 pixels"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files(case: str) -> None:
    """What is no whole image of sane size is refused with a reason that says nothing about this run."""
    data, reason = HOSTILE[case]
    with pytest.raises(DecodeError, match=reason) as first:
        FINE.process(data)
    with pytest.raises(DecodeError) as second:
        FINE.process(bytes(bytearray(data)))
    assert str(first.value) == str(second.value)


FILES = [encoded(RGB, name) for name in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM")]


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(FILES), st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=6)
)
def test_flipped_bytes(data: bytes, flips: list[tuple[int, int]]) -> None:
    """A damaged file becomes a sound JPEG or a reason, and nothing else."""
    damaged = bytearray(data)
    for position, value in flips:
        damaged[position % len(damaged)] = value
    try:
        jpeg = FINE.process(bytes(damaged)).jpeg
    except SampleError:
        return
    Image.open(io.BytesIO(jpeg)).load()


def test_too_long_for_a_jpeg() -> None:
    """An image that JPEG cannot hold at its size is refused before it is made."""
    data = encoded(Image.new("L", (70_000, 3)), "PNG")
    with pytest.raises(EncodeError, match="65500 a side is JPEG's limit"):
        Recipe(short_side=256).process(data)
    with pytest.raises(EncodeError, match="65500 a side is JPEG's limit"):
        Recipe(short_side=256, enlarge=True).process(encoded(Image.new("L", (3000, 3)), "PNG"))
    assert Recipe(short_side=2).process(data).jpeg


@pytest.mark.parametrize("wrong", [{"short_side": 0}, {"quality": 101}, {"subsampling": "4:1:1"}])
def test_settings_are_checked(wrong: dict[str, object]) -> None:
    """A setting out of its range is refused with the values allowed."""
    with pytest.raises(ConfigError, match="allowed are"):
        Recipe(**wrong)  # type: ignore[arg-type]


def test_digest() -> None:
    """Two recipes have the same digest exactly when all their settings are the same."""
    others = [Recipe(short_side=255), Recipe(quality=91), Recipe(subsampling="4:4:4"), Recipe(keep_small=True)]
    digests = {recipe.digest for recipe in [Recipe(), *others, Recipe(enlarge=True)]}
    assert len(digests) == 6
    assert Recipe().digest == Recipe(short_side=256).digest
