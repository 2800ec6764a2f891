"""Images as arrays: the exact values of a file, whatever its format, or an error."""

from __future__ import annotations

import contextlib
import io
import itertools
import struct
import sys
import zlib
from typing import Any

import imagecodecs
import numpy as np
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardflow._orientation import apply_orientation, turn_array
from shardflow.errors import ConfigError, DecodeError, SampleError, TooLargeError
from shardflow.formats import image_array
from shardflow.packing.image.pipeline import pack_image
from shardflow.packing.recipe import Recipe, make_recipe
from tests.helpers.examples import examples
from tests.helpers.folders import encoded, png_chunk

EXACT = Recipe(format="npy", short_side=None)


def values(channels: int, dtype: Any, height: int = 21, width: int = 34) -> Any:
    """Return noise over the whole range."""
    rng = np.random.default_rng(channels)
    return rng.integers(0, np.iinfo(dtype).max, (height, width, channels), dtype=dtype, endpoint=True)


def packed(data: bytes, recipe: Recipe = EXACT) -> Any:
    """Return the values that are packed."""
    return image_array.pixels(pack_image(data, recipe).image)


def pillow(pixels: Any, form: str, **how: Any) -> bytes:
    """Return a file that Pillow writes."""
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(buffer, form, **how)
    return buffer.getvalue()


def tiff(pixels: Any, **how: Any) -> bytes:
    """Return a TIFF that tifffile writes, of an image [H, W, C]; with planarconfig "separate", channel by channel."""
    buffer = io.BytesIO()
    planes = how.setdefault("planarconfig", "contig" if pixels.shape[2] > 1 else None) == "separate"
    pixels = pixels[..., 0] if pixels.shape[2] == 1 else pixels.transpose(2, 0, 1) if planes else pixels
    tifffile.imwrite(buffer, pixels, **{"photometric": "minisblack", **how})
    return buffer.getvalue()


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("form", ["PNG", "TIFF", "TIFF, deflate, tiles", "TIFF, planes", "TIFF, associated alpha"])
def test_values_of_png_and_tiff_are_exact(channels: int, dtype: Any, form: str) -> None:
    """Grey, grey with alpha, RGB and RGBA, in 8 and 16 bits, are packed bit by bit."""
    pixels = values(channels, dtype)
    how: dict[str, Any] = {"photometric": "rgb"} if channels > 2 else {}
    if "tiles" in form:
        how |= {"compression": "zlib", "tile": (16, 16)}
    if "planes" in form and channels > 1:
        how["planarconfig"] = "separate"
    if form == "TIFF, associated alpha" and channels in (2, 4):
        how["extrasamples"] = ["assocalpha"]
    data = imagecodecs.png_encode(pixels) if form == "PNG" else tiff(pixels, **how)
    found = packed(data)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, pixels)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [5, 12, 16])
def test_tiffs_of_many_channels_are_exact(channels: int, dtype: Any) -> None:
    """Up to 16 channels are packed bit by bit; 17 are refused, and floating point."""
    pixels = values(channels, dtype)
    np.testing.assert_array_equal(packed(tiff(pixels)), pixels)
    for wrong in (values(17, dtype), pixels.astype(np.float32)):
        with pytest.raises(DecodeError, match=r"arrays"):
            packed(tiff(wrong))


def test_lossy_files_have_the_values_that_pillow_decodes() -> None:
    """JPEG, WebP and BMP become what they decode to; grey stays one channel; arrays are packed again as they are."""
    for form, channels in (("JPEG", 3), ("JPEG", 1), ("WEBP", 3), ("BMP", 3)):
        data = pillow(values(channels, np.uint8), form)
        found = packed(data)
        np.testing.assert_array_equal(found, np.atleast_3d(np.asarray(Image.open(io.BytesIO(data)))))
        assert found.shape[2] == channels
    array = image_array.to_bytes(values(7, np.uint16))
    assert pack_image(array, EXACT).image == array


@examples(40)
@given(
    width=st.integers(1, 60), height=st.integers(1, 60), side=st.integers(1, 60), channels=st.sampled_from([1, 3, 6])
)
def test_resized_values_are_those_of_floating_point(width: int, height: int, side: int, channels: int) -> None:
    """A resize computes in floating point and rounds; where the size stays, so do the values."""
    pixels = values(channels, np.uint16, height, width)
    found = packed(image_array.to_bytes(pixels), Recipe(format="npy", short_side=side))
    assert min(found.shape[:2]) == min(side, width, height)
    size = (found.shape[1], found.shape[0])
    for channel in range(channels):
        exact = Image.fromarray(pixels[..., channel].astype(np.float32)).resize(size, Image.Resampling.BICUBIC)
        wanted = np.asarray(exact).clip(0, 65535)
        assert np.abs(found[..., channel] - wanted).max() <= 0.5
        if side >= min(width, height):
            np.testing.assert_array_equal(found[..., channel], pixels[..., channel])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_as_they_say(orientation: int) -> None:
    """Orientations of PNG and TIFF are followed, in 8 and 16 bits, as for other formats; a square crop comes after."""
    grey = values(1, np.uint8)
    wanted = np.asarray(apply_orientation(Image.fromarray(grey[..., 0]), orientation))
    np.testing.assert_array_equal(turn_array(grey, orientation)[..., 0], wanted)
    exif = Image.Exif()
    exif[0x0112] = orientation
    np.testing.assert_array_equal(packed(pillow(grey, "PNG", exif=exif))[..., 0], wanted)
    np.testing.assert_array_equal(packed(pillow(grey, "TIFF", exif=exif))[..., 0], wanted)
    deep = values(3, np.uint16)
    turned = turn_array(deep, orientation)
    data = tiff(deep, photometric="rgb", extratags=[(274, "H", 1, orientation, True)])
    np.testing.assert_array_equal(packed(data), turned)
    square = packed(data, Recipe(format="npy", short_side=None, square=True))
    assert square.shape == (21, 21, 3)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no image",
        pillow(values(4, np.uint8), "TIFF")[:200],
        imagecodecs.png_encode(values(3, np.uint16))[:90],
        image_array.to_bytes(values(3, np.uint16))[:-1],
        b"P5 4 4 65535\n" + bytes(32),
    ],
)
def test_what_is_damaged_or_not_exact_is_refused(data: bytes) -> None:
    """A file that is cut short, or whose exact values are not to be had, is a DecodeError."""
    with pytest.raises(DecodeError):
        packed(data)


def test_cmyk_is_refused() -> None:
    """CMYK has no values that a model expects."""
    buffer = io.BytesIO()
    Image.new("CMYK", (8, 8)).save(buffer, "JPEG")
    with pytest.raises(DecodeError, match="without CMYK"):
        packed(buffer.getvalue())


@pytest.mark.parametrize("encode", [lambda pixels: tiff(pixels, photometric="rgb"), imagecodecs.png_encode])
def test_limits_are_checked_before_decoding(encode: Any) -> None:
    """Headers that ask for more than the limit are refused, tiles included."""
    with pytest.raises(TooLargeError):
        packed(encode(values(3, np.uint16)), Recipe(format="npy", max_pixels=700))
    tile = tiff(values(3, np.uint16), photometric="rgb", tile=(1024, 1024), compression="zlib")
    with pytest.raises(TooLargeError):
        packed(tile, Recipe(format="npy", max_pixels=5000))


@examples(150)
@given(data=st.data())
def test_damage_is_an_error_of_the_sample(data: st.DataObject) -> None:
    """Whatever bits of a TIFF or PNG flip, there is an array or a typed error."""
    files = [
        tiff(values(5, np.uint16), compression="zlib"),
        imagecodecs.png_encode(values(3, np.uint16)),
    ]
    damaged = bytearray(data.draw(st.sampled_from(files)))
    for at in data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=4)):
        damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(SampleError):
        packed(bytes(damaged), Recipe(format="npy", short_side=None, max_pixels=100_000))


def test_missing_readers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, the files that need it are refused with its name, and others are packed."""
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    monkeypatch.setitem(sys.modules, "tifffile", None)
    for data in (imagecodecs.png_encode(values(3, np.uint16)), tiff(values(5, np.uint8))):
        with pytest.raises(DecodeError, match=r"pip install 'shardflow\[multichannel\]'"):
            packed(data)
    grey = values(1, np.uint16)
    np.testing.assert_array_equal(packed(pillow(grey, "PNG")), grey)


def test_settings_of_other_formats_are_refused() -> None:
    """Quality and subsampling mean nothing for arrays; the manifest says that colours are as stored."""
    for wrong in ({"quality": 80}, {"subsampling": "4:4:4"}):
        with pytest.raises(ConfigError, match=r"npy|only jpeg"):
            make_recipe(format="npy", **wrong)
    assert EXACT.describe()["colour"] == "as stored"


def raw_png(codes: Any, bits: int, colour_type: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """Return a PNG of one channel with so many bits a pixel (W3C PNG 7.2, 11.2), with further chunks."""
    height, width = codes.shape
    rows = np.unpackbits(codes[..., None].astype(np.uint8), axis=2)[..., 8 - bits :].reshape(height, -1)
    packed_rows = b"".join(b"\0" + np.packbits(row).tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", width, height, bits, colour_type, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(packed_rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(itertools.starmap(png_chunk, parts))


def codes(bits: int) -> Any:
    """Return all values of so many bits, some of them often."""
    return np.random.default_rng(bits).integers(0, 1 << bits, (13, 21)).astype(np.uint8)


COLOURS = np.random.default_rng(7).integers(0, 256, (256, 3)).astype(np.uint8)
ALPHA = np.random.default_rng(8).integers(0, 256, 256).astype(np.uint8)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_values_of_few_bits_are_exact(bits: int) -> None:
    """Grey of 1, 2, 4 and 8 bits keeps its values; palettes become their colours, with their alpha if any."""
    stored, count = codes(bits), 1 << bits
    palette, alpha = (b"PLTE", COLOURS[:count].tobytes()), (b"tRNS", ALPHA[:count].tobytes())
    np.testing.assert_array_equal(packed(raw_png(stored, bits, 0))[..., 0], stored)
    np.testing.assert_array_equal(packed(raw_png(stored, bits, 3, palette)), COLOURS[stored])
    with_alpha = np.concatenate([COLOURS, ALPHA[:, None]], 1)
    np.testing.assert_array_equal(packed(raw_png(stored, bits, 3, palette, alpha)), with_alpha[stored])
    if bits in (1, 8):
        grey = tiff((stored > 0 if bits == 1 else stored)[..., None])
        np.testing.assert_array_equal(packed(grey)[..., 0], stored)
    colormap = (COLOURS.T.astype(np.uint16) * 257)[:, :256]
    if bits == 8:
        np.testing.assert_array_equal(
            packed(tiff(stored[..., None], photometric="palette", colormap=colormap)), COLOURS[stored]
        )
    picture = Image.fromarray(stored)
    picture.putpalette(COLOURS[:count].tobytes())
    for form in ("GIF", "BMP"):
        np.testing.assert_array_equal(packed(encoded(picture, form)), COLOURS[stored])
    seethrough = packed(encoded(picture, "GIF", transparency=1))
    np.testing.assert_array_equal(seethrough, np.dstack([COLOURS[stored], 255 * (stored != 1)]))


def test_a_colour_that_stands_for_transparency_is_alpha() -> None:
    """Where a PNG makes one grey or one colour transparent, it becomes a channel of alpha, and the values stay."""
    grey = codes(8)
    data = raw_png(grey, 8, 0, (b"tRNS", struct.pack(">H", grey[0, 0])))
    np.testing.assert_array_equal(packed(data), np.dstack([grey, 255 * (grey != grey[0, 0])]))
    rgb = COLOURS[grey]
    data = encoded(Image.fromarray(rgb), "PNG", transparency=tuple(rgb[0, 0].tolist()))
    np.testing.assert_array_equal(packed(data), np.dstack([rgb, 255 * (rgb != rgb[0, 0]).any(-1)]))


KEY = (b"tRNS", b"\0\1")
INEXACT = {
    "8 bits, 0 is white": tiff(codes(8)[..., None], photometric="miniswhite"),
    "16 bits, 0 is white": tiff(values(1, np.uint16), photometric="miniswhite"),
    "1 bit, 0 is white": tiff(codes(1)[..., None] > 0, photometric="miniswhite"),
    "4 bits, TIFF": tiff(codes(4)[..., None], bitspersample=4),
    "12 bits, TIFF": tiff(values(1, np.uint16) >> 4, bitspersample=12),
    "signed": tiff(codes(8)[..., None].astype(np.int8)),
    "signed, 16 bits": tiff(values(1, np.uint16).astype(np.int16)),
    "palette of 16 bits": tiff(
        codes(8)[..., None], photometric="palette", colormap=(COLOURS.T.astype(np.uint16) * 257) ^ 3
    ),
    "a key of 4 bits": raw_png(codes(4), 4, 0, KEY),
    "a key of 16 bits": encoded(Image.fromarray(values(1, np.uint16)[..., 0]), "PNG", transparency=1),
    "beyond its palette": raw_png(codes(4), 4, 3, (b"PLTE", COLOURS[:9].tobytes())),
    "a BMP of 16 bits": b"BM" + struct.pack("<IIIIiiHHIIiiII", 62, 0, 54, 40, 2, 2, 1, 16, 0, 8, 0, 0, 0, 0) + bytes(8),
    "YCbCr": encoded(Image.fromarray(COLOURS[codes(8)]).convert("YCbCr"), "TIFF"),
    "12 bits": b"P5 2 1 4095 " + bytes([0, 1, 2, 3]),
}


@pytest.mark.parametrize("case", INEXACT)
def test_values_that_a_reader_would_change_are_refused(case: str) -> None:
    """Files whose values are scaled, inverted, cut or wrapped while they are read are refused, with a reason."""
    with pytest.raises(DecodeError, match=r"exact values|arrays have|in colours|palette|values of"):
        packed(INEXACT[case])
