from __future__ import annotations

import io
import struct
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
import pytest
import tifffile
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.version import Version
from PIL import Image, ImageOps, JpegImagePlugin, features

import shardflow as sf
from shardflow.errors import ConfigError, DecodeError, EncodeError, SampleError, TooLargeError
from shardflow.packing.image.pipeline import pack_image
from shardflow.packing.recipe import FILTERS, PRESETS, Filter, Recipe, make_recipe, settings
from tests.helpers.examples import examples
from tests.helpers.folders import XMP_FORMS, encoded, photo, png16, png_chunk, turned, xmp_file
from tests.helpers.reference import decoded

Pixels = npt.NDArray[np.uint8]

FINE = Recipe(short_side=32, quality=100, subsampling="4:4:4")  # what differs is then not the codec's doing

# Pillow before 13 cannot read a TIFF in YCbCr that is not compressed, and packing quarantines it.
YCBCR = {"compression": "raw" if Version(PIL.__version__).major >= 13 else "tiff_lzw"}

pytestmark = pytest.mark.usefixtures("either_decoder")
with_avif = pytest.mark.skipif(not features.version("avif"), reason="this build of Pillow cannot read AVIF")


def _shades(width: int = 96, height: int = 64) -> Pixels:
    """Smooth colours, so that a resize and a JPEG hardly change them, and no two corners alike."""
    y, x = np.mgrid[0:height, 0:width]
    channels = [255 * x / width, 255 * y / height, 127 + 100 * np.sin(x / 25 + y / 15)]
    return np.stack(channels, -1).astype(np.uint8)


SHADES = _shades()
GREY = SHADES[..., 2]
ALPHA = SHADES[..., 0]


def _expected(pixels: npt.NDArray[np.float64] | Pixels, size: tuple[int, int] = (48, 32)) -> npt.NDArray[np.float64]:
    image = Image.fromarray(np.asarray(pixels).round().astype(np.uint8)).convert("RGB")
    return np.asarray(image.resize(size, Image.Resampling.BICUBIC)).astype(float)


def _on_white(pixels: Pixels, alpha: Pixels) -> npt.NDArray[np.float64]:
    weight = alpha.astype(float)[..., None] / 255
    return pixels * weight + 255 * (1 - weight)


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
    tags = {256: width, 257: height, 258: 12, 259: 1, 262: 1, 273: 8, 277: 1, 278: height, 279: len(data)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return struct.pack("<2sHI", b"II", 42, 8 + len(data)) + data + struct.pack("<H", len(tags)) + entries + bytes(4)


def _palette(alpha: int | None) -> tuple[bytes, npt.NDArray[np.float64]]:
    """A PNG with a palette, and its colours on white."""
    entries = (np.arange(96 * 64).reshape(64, 96) // 32 % 192).astype(np.uint8)
    image = Image.fromarray(entries, "P")
    image.putpalette([value for entry in range(256) for value in (entry, 255 - entry, entry // 2)])
    colours = np.stack([entries, 255 - entries, entries // 2], -1)
    shown = _on_white(colours, np.full_like(entries, 255 if alpha is None else alpha))
    return encoded(image, "PNG", **({} if alpha is None else {"transparency": bytes([alpha] * 256)})), shown


WIDE = SHADES.astype(np.uint16) * 257
TRANSLUCENT = Image.fromarray(np.dstack([SHADES, ALPHA]))
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
    "YCbCr TIFF": (encoded(RGB.convert("YCbCr"), "TIFF", **YCBCR), SHADES),
    "palette": _palette(None),
    "palette with alpha": _palette(100),
    "RGBA": (encoded(TRANSLUCENT, "PNG"), _on_white(SHADES, ALPHA)),
    "RGBA WebP": (encoded(TRANSLUCENT, "WEBP", lossless=True, exact=True), _on_white(SHADES, ALPHA)),
    "grey with alpha": (
        encoded(Image.fromarray(np.dstack([GREY, ALPHA])), "PNG"),
        _on_white(np.dstack([GREY] * 3), ALPHA),
    ),
    "one transparent colour": (
        encoded(Image.new("RGB", (96, 64), (200, 30, 40)), "PNG", transparency=(200, 30, 40)),
        np.full((64, 96, 3), 255, np.uint8),
    ),
    "16-bit grey PNG": (png16(WIDE[..., 2], 0), GREY),
    "16-bit grey TIFF": (encoded(Image.fromarray(WIDE[..., 2]), "TIFF"), GREY),
    "16-bit colour PNG": (png16(WIDE, 2), SHADES),
    "16-bit PGM": (_pgm(GREY, 65535), GREY),
    "10-bit PGM": (_pgm(GREY, 1023), GREY),
    "12-bit TIFF": (_tiff12(GREY), GREY),
}


@pytest.mark.parametrize("case", COLOURS)
def test_colours(case: str) -> None:
    """Every kind of pixel becomes the RGB that it shows: scaled to 8 bits, on white where it is transparent."""
    data, pixels = COLOURS[case]
    difference = np.abs(decoded(pack_image(data, FINE).image) - _expected(pixels))
    assert difference.mean() < 1.5
    assert difference.max() < 12


@pytest.mark.parametrize(
    "image",
    [Image.new("F", (40, 40), 0.5), Image.new("I", (40, 40), 1 << 20), Image.new("I", (40, 40), 200)],
    ids=["F", "I", "I of a byte"],
)
def test_pixels_without_a_range_are_refused(image: Image.Image) -> None:
    """Numbers that could mean anything are quarantined rather than guessed at."""
    with pytest.raises(DecodeError, match="no defined range"):
        pack_image(encoded(image, "TIFF"), FINE)


LOSSLESS: dict[str, dict[str, Any]] = {"JPEG": {"quality": 100, "subsampling": 0}, "WEBP": {"lossless": True}}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format_name", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_orientation(orientation: int, format_name: str) -> None:
    """The picture stands as its EXIF orientation says, and says nothing about it afterwards."""
    data = encoded(RGB, format_name, exif=turned(orientation), **LOSSLESS.get(format_name, {}))
    jpeg = pack_image(data, FINE).image
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    size = (48, 32) if orientation < 5 else (32, 48)
    assert np.abs(decoded(jpeg) - _expected(upright, size)).mean() < 2
    assert not Image.open(io.BytesIO(jpeg)).getexif()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format_name", ["JPEG", "PNG", "WEBP", "TIFF", pytest.param("AVIF", marks=with_avif)])
@pytest.mark.parametrize("form", XMP_FORMS)
def test_orientation_in_xmp(orientation: int, format_name: str, form: str) -> None:
    """The image is turned by XMP where EXIF has no orientation, and counted so; EXIF comes first."""
    options = LOSSLESS.get(format_name, {})
    by_exif = pack_image(encoded(RGB, format_name, exif=turned(orientation), **options), FINE)
    by_xmp = pack_image(xmp_file(format_name, RGB, orientation, form, **options), FINE)
    assert np.abs(decoded(by_xmp.image).astype(float) - decoded(by_exif.image)).mean() < 1
    assert by_xmp.geometry.size == by_exif.geometry.size == ((48, 32) if orientation < 5 else (32, 48))
    assert by_xmp.done == by_exif.done == (() if orientation == 1 else ("turned",))
    if (format_name, orientation) != ("AVIF", 1):  # which Pillow writes without an orientation
        both = pack_image(xmp_file(format_name, RGB, 9 - orientation, form, exif=turned(orientation), **options), FINE)
        assert both.image == by_exif.image


def test_odd_metadata_around_xmp() -> None:
    """An XMP packet in ImageMagick's hexadecimal digits is found, and one behind broken EXIF."""
    packet = b'<rdf:Description tiff:Orientation="6"/>'
    png, text = encoded(RGB, "PNG"), f"\nxmp\n{len(packet):8}\n{packet.hex()}\n".encode()
    raw = png[:33] + png_chunk(b"zTXt", b"Raw profile type xmp\0\0" + zlib.compress(text)) + png[33:]
    for data in (raw, encoded(RGB, "JPEG", xmp=packet, exif=b"Exif\0\0garbage")):
        packed = pack_image(data, FINE)
        assert (packed.geometry.size, packed.done) == ((32, 48), ("turned",))


@pytest.mark.parametrize("size", [(1600, 1200), (1601, 1203), (1999, 700)])
def test_large_originals(size: tuple[int, int]) -> None:
    """Decoding at a reduced scale shifts nothing: the result is that of a full decode and the same filter."""
    pixels = _shades(*size)
    data = encoded(Image.fromarray(pixels), "JPEG", quality=95, subsampling=0)
    packed = decoded(pack_image(data, FINE).image)
    difference = np.abs(packed - _expected(pixels, (packed.shape[1], 32)))
    assert difference.mean() < 1
    assert difference.max() < 12


def _packed_size(recipe: Recipe, width: int, height: int) -> tuple[int, int]:
    packed = pack_image(encoded(Image.new("L", (width, height)), "BMP"), recipe)
    assert packed.geometry.size == Image.open(io.BytesIO(packed.image)).size
    return packed.geometry.size


@examples(80)
@example(52, 299, 30, False)  # a ratio of exactly a half
@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 64), st.booleans())
def test_size(width: int, height: int, short_side: int, enlarge: bool) -> None:
    """The short side is exact, the long side is the nearest to the same ratio, and nothing grows unless asked."""
    assert _packed_size(Recipe(short_side=None), width, height) == (width, height)
    size = _packed_size(Recipe(short_side=short_side, enlarge=enlarge), width, height)
    if min(width, height) < short_side and not enlarge:
        assert size == (width, height)
    else:
        scale = short_side / min(width, height)
        assert min(size) == short_side
        assert size[0] == pytest.approx(width * scale, abs=0.5 + 1e-9)
        assert size[1] == pytest.approx(height * scale, abs=0.5 + 1e-9)


@examples(80)
@given(st.integers(1, 300), st.integers(1, 300), st.none() | st.integers(1, 40), st.integers(40, 64), st.booleans())
def test_long_side(width: int, height: int, short_side: int | None, long_side: int, enlarge: bool) -> None:
    """The long side is never above its cap, and the ratio stays: the setting that makes the image smallest counts."""
    size = _packed_size(Recipe(short_side=short_side, long_side=long_side, enlarge=enlarge), width, height)
    assert max(size) <= long_side
    scale = min(long_side / max(width, height), (short_side or long_side) / min(width, height))
    if scale > 1 and not enlarge:
        assert size == (width, height)
    else:
        assert size[0] == pytest.approx(width * scale, abs=0.5001) or size[0] == 1
        assert size[1] == pytest.approx(height * scale, abs=0.5001) or size[1] == 1


@pytest.mark.parametrize(("size", "side"), [((96, 64), 32), ((64, 97), 32), ((20, 50), 20), ((32, 32), 32)])
@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_square(size: tuple[int, int], side: int, orientation: int) -> None:
    """A square is the centre of what would be packed without one, after the picture was turned."""
    data = encoded(Image.fromarray(_shades(*size)), "PNG", exif=turned(orientation))
    cut = decoded(pack_image(data, Recipe(short_side=32, square=True, format="png")).image)
    whole = decoded(pack_image(data, Recipe(short_side=32, format="png")).image)
    top, left = ((length - side) // 2 for length in whole.shape[:2])
    assert (cut == whole[top : top + side, left : left + side]).all()


@pytest.mark.parametrize("name", ["bicubic", "bilinear", "lanczos"])
@pytest.mark.parametrize("format_name", ["JPEG", "PNG"])
def test_filter(name: Filter, format_name: str) -> None:
    """Each filter is Pillow's of that name, with the kernel and without it."""
    pixels = np.asarray(Image.open(io.BytesIO(photo(5, 120, 90))))
    data = encoded(Image.fromarray(pixels), format_name, **({"quality": 100} if format_name == "JPEG" else {}))
    found = decoded(pack_image(data, Recipe(short_side=40, filter=name, format="png")).image).astype(float)
    shown = Image.open(io.BytesIO(data))
    differences = [np.abs(found - np.asarray(shown.resize((53, 40), by))).mean() for by in FILTERS.values()]
    assert np.argmin(differences) == list(FILTERS).index(name)
    assert min(differences) < 0.05


def test_output_is_a_baseline_jpeg_without_metadata() -> None:
    """What is packed is baseline, in the subsampling asked for, and carries none of the source's metadata."""
    exif = Image.Exif()
    exif[0x010F] = "a camera"
    data = encoded(RGB, "JPEG", exif=exif, comment="private", icc_profile=b"profile" * 40, progressive=True)
    for subsampling, code in {"4:4:4": 0, "4:2:2": 1, "4:2:0": 2}.items():
        jpeg = pack_image(data, Recipe(short_side=32, subsampling=subsampling)).image
        image = Image.open(io.BytesIO(jpeg))
        assert isinstance(image, JpegImagePlugin.JpegImageFile)
        assert set(image.info) <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}
        assert JpegImagePlugin.get_sampling(image) == code
        assert b"private" not in jpeg


@pytest.mark.parametrize("format_name", ["jpeg", "webp", "keep"])
def test_quality(format_name: str) -> None:
    """A higher quality makes larger files."""
    recipes = [Recipe(short_side=48, quality=quality, format=format_name) for quality in (30, 60, 90)]
    sizes = [len(pack_image(photo(1), recipe).image) for recipe in recipes]
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize("format_name", ["GIF", "WEBP", "PNG", "TIFF"])
def test_first_frame(format_name: str) -> None:
    """Of an animated image, or one of several pages, the first is packed, and it is said that there were more."""
    frames = [Image.new("RGB", (40, 40), colour) for colour in ("red", "green", "blue")]
    packed = pack_image(encoded(frames[0], format_name, save_all=True, append_images=frames[1:]), FINE)
    assert decoded(packed.image)[20, 20].tolist() == pytest.approx([255, 0, 0], abs=3)
    assert packed.done == ("first_frame",)
    assert pack_image(encoded(frames[0], format_name), FINE).done == ()
    second_view = encoded(RGB, "MPO", save_all=True, append_images=[RGB])  # behind a JPEG, as phones write it
    assert pack_image(second_view, FINE).done == ()


def test_done() -> None:
    """What was done to an image is reported: turned and enlarged here, nothing where it was only made smaller."""
    recipe = Recipe(short_side=80, enlarge=True)
    assert pack_image(encoded(RGB, "JPEG", exif=turned(6)), recipe).done == ("enlarged", "turned")
    assert pack_image(encoded(RGB, "JPEG"), FINE).done == ()


def test_pixel_sums() -> None:
    """The sums give the mean and the standard deviation of the pixels, as numpy has them."""
    packed = pack_image(encoded(RGB, "PNG"), Recipe(short_side=64, quality=100, subsampling="4:4:4"))
    assert packed.pixels.mean == pytest.approx(SHADES.reshape(-1, 3).mean(0) / 255, abs=1e-5)
    assert packed.pixels.std == pytest.approx(SHADES.reshape(-1, 3).std(0) / 255, abs=1e-5)


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
    "JPEG said to be huge": (_forged(65000, 65000), "has 65,000 x 65,000 pixels; the limit is 110,000,000 pixels"),
    "JPEG said to be just too large": (_forged(11000, 10001), "has 11,000 x 10,001 pixels; the limit is 110,000,000"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files(case: str) -> None:
    """What is no whole image of sane size is refused with a reason that says nothing about this run."""
    data, reason = HOSTILE[case]
    kind = TooLargeError if "limit" in reason else DecodeError
    with pytest.raises(kind, match=reason) as first:
        pack_image(data, FINE)
    with pytest.raises(kind) as second:
        pack_image(bytes(bytearray(data)), FINE)
    assert str(first.value) == str(second.value)


FILES = [encoded(RGB, name) for name in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM")]


@examples(150)
@given(
    st.sampled_from(FILES), st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=6)
)
def test_flipped_bytes(data: bytes, flips: list[tuple[int, int]]) -> None:
    """A damaged file becomes a valid JPEG or a reason, and nothing else."""
    damaged = bytearray(data)
    for position, value in flips:
        damaged[position % len(damaged)] = value
    try:
        jpeg = pack_image(bytes(damaged), FINE).image
    except SampleError:
        return
    Image.open(io.BytesIO(jpeg)).load()


def test_too_long_for_a_jpeg() -> None:
    """An image that JPEG cannot hold at its size is refused before it is made."""
    data = encoded(Image.new("L", (70_000, 3)), "PNG")
    with pytest.raises(EncodeError, match=r"65500.*JPEG's"):
        pack_image(data, Recipe(short_side=256))
    with pytest.raises(EncodeError, match=r"16383.*WEBP's"):
        pack_image(data, Recipe(short_side=256, format="webp"))
    assert pack_image(data, Recipe(short_side=2)).image
    assert pack_image(data, Recipe(short_side=256, square=True)).geometry.size == (3, 3)


@pytest.mark.parametrize("square", [False, True])
def test_too_large_to_enlarge(square: bool) -> None:
    """A strip that would be enlarged to gigabytes is refused before they are allocated."""
    data = encoded(Image.new("L", (3000, 3)), "PNG")
    with pytest.raises(EncodeError, match=r"enlarged.*60000000x60000"):
        pack_image(data, Recipe(short_side=60_000, enlarge=True, square=square))


WRONG: dict[str, dict[str, object]] = {
    "short_side is 0; allowed are 1 to 65500": {"short_side": 0},
    "long_side is 70000; allowed are": {"long_side": 70_000},
    "quality is 101; allowed are": {"quality": 101},
    "short_side must be a whole number, found '256'": {"short_side": "256"},
    "long_side must be a whole number, found 300.5": {"long_side": 300.5},
    "quality must be a whole number, found '90'": {"quality": "90"},
    r"filter is \['bicubic'\]; allowed are": {"filter": ["bicubic"]},
    "subsampling is '4:1:1'; allowed are": {"subsampling": "4:1:1"},
    "filter is 'area'; allowed are bicubic, bilinear, lanczos": {"filter": "area"},
    "format is 'heic'; allowed are jpeg, ": {"format": "heic"},
    "long_side and square exclude each other": {"long_side": 512, "square": True},
    "long_side is 200, less than short_side, 256": {"long_side": 200},
    "enlarge has no size to enlarge to": {"short_side": None, "enlarge": True},
    "quality is 80, which png does not have; leave it out, or use jpeg or webp": {"format": "png", "quality": 80},
    "subsampling is 4:4:4, which webp does not have; leave it out, or use jpeg": {
        "format": "webp",
        "subsampling": "4:4:4",
    },
}


@pytest.mark.parametrize("said", WRONG)
def test_settings_are_checked(said: str) -> None:
    """A setting out of its range, or one that contradicts another, is refused with the remedy."""
    with pytest.raises(ConfigError, match=said):
        Recipe(**WRONG[said])  # type: ignore[arg-type]


def test_the_size_of_other_tools() -> None:
    """`pack` explains `size`, as other tools name it."""
    with pytest.raises(ConfigError, match="no argument 'size'; short_side is"):
        sf.pack("src", "dst", size=224)  # type: ignore[call-arg]


def test_digest() -> None:
    """Two recipes have the same digest exactly when all their settings are the same."""
    others: list[dict[str, Any]] = []
    for name, (each, setting) in settings().items():
        is_switch = isinstance(each.default, bool)
        values = [value for value in setting.choices if value != each.default]
        others += [{name: value} for value in values or [not each.default if is_switch else (each.default or 299) + 1]]
    assert len({Recipe(**other).digest for other in [{}, *others]}) == len(others) + 1
    assert Recipe().digest == Recipe(short_side=256).digest


def test_presets_are_settings() -> None:
    """A preset is a recipe of its own with a purpose and some settings, which can be changed; the first has none."""
    assert make_recipe() == make_recipe("imagenet") == Recipe()
    fine = Recipe(short_side=512, quality=95, subsampling="4:4:4")
    assert make_recipe("fine") == fine
    assert make_recipe("fine", quality=80, square=True) == replace(fine, quality=80, square=True)
    assert make_recipe("original", short_side=512) == Recipe(short_side=512, format="keep")
    assert len({make_recipe(name).digest for name in PRESETS}) == len(PRESETS)
    assert all(preset.purpose for preset in PRESETS.values())


def test_unknown_presets() -> None:
    """An unknown preset is refused with the known ones, and so is a setting that contradicts one."""
    with pytest.raises(ConfigError, match=r"'cifar';.*imagenet"):
        make_recipe("cifar")
    with pytest.raises(ConfigError, match=r"quality.*80"):
        make_recipe("lossless", quality=80)


def test_sixteen_bits_of_which_zero_is_white() -> None:
    """A TIFF of which 0 is white looks the same with 8 and with 16 bits."""
    shades = np.tile(np.arange(256, dtype=np.uint8), (8, 1))
    shown = []
    for pixels in (shades, shades.astype(np.uint16) * 257):
        file = io.BytesIO()
        tifffile.imwrite(file, pixels, photometric="miniswhite")
        shown.append(np.asarray(Image.open(io.BytesIO(pack_image(file.getvalue(), FINE).image))))
    np.testing.assert_array_equal(*shown)
    assert shown[0][0, 0, 0] == 255
