from __future__ import annotations

import hashlib
import io

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageCms

from shardflow import _colour
from shardflow._colour import ProfileConversion, profile_conversion
from shardflow.packing.image.encoded_image import EncodedImage
from shardflow.packing.image.pipeline import pack_image
from shardflow.packing.recipe import Recipe
from tests.helpers import profiles
from tests.helpers.folders import encoded
from tests.helpers.jpegs import pixels

SHADES = (pixels(3, 96, 64) // 4 * 3 + 20).astype(np.uint8)  # nothing that sRGB would have to clip
GAMMA = 563 / 256  # Adobe's, as 8.8 bits hold it
ADOBE = profiles.rgb(profiles.ADOBE, GAMMA)
SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
LOSSLESS = Recipe(short_side=64, format="png")

pytestmark = pytest.mark.usefixtures("either_decoder")


def _shown(packed: EncodedImage) -> npt.NDArray[np.float64]:
    return np.asarray(Image.open(io.BytesIO(packed.image))).astype(float)


def _file(image: Image.Image, format_name: str, profile: bytes | None) -> bytes:
    options = {"JPEG": {"quality": 100, "subsampling": 0}, "WEBP": {"lossless": True}}.get(format_name, {})
    return encoded(image, format_name, **({} if profile is None else {"icc_profile": profile}), **options)


@pytest.mark.parametrize("format_name", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_converted_to_srgb(format_name: str) -> None:
    """Pixels with a profile become the sRGB of the same colours, and it is said that they were converted."""
    packed = pack_image(_file(Image.fromarray(SHADES), format_name, ADOBE), LOSSLESS)
    difference = np.abs(_shown(packed) - profiles.shown(SHADES, profiles.ADOBE, GAMMA))
    assert difference.mean() < 1
    assert np.quantile(difference, 0.99) < 4
    assert np.abs(_shown(packed) - SHADES).mean() > 5
    assert packed.done == ("converted",)


def test_converted_while_resizing() -> None:
    """A large photograph is converted like a small one: the colours of the resized picture are those of its profile."""
    large = Image.fromarray(SHADES).resize((960, 640), Image.Resampling.BICUBIC)
    with_profile = _shown(pack_image(_file(large, "JPEG", ADOBE), LOSSLESS))
    without = _shown(pack_image(_file(large, "JPEG", None), LOSSLESS)).astype(np.uint8)
    assert np.abs(with_profile - profiles.shown(without, profiles.ADOBE, GAMMA)).max() <= 2


@pytest.mark.parametrize("profile", [SRGB, profiles.rgb(profiles.SRGB, 2.2)], ids=["sRGB", "nearly sRGB"])
def test_srgb_is_recognised(profile: bytes) -> None:
    """A profile that says sRGB changes no byte; one that is merely like it is converted."""
    image = Image.fromarray(SHADES)
    packed = pack_image(_file(image, "JPEG", profile), LOSSLESS)
    plain = pack_image(_file(image, "JPEG", None), LOSSLESS)
    assert (packed.done == ()) is (profile is SRGB)
    assert (packed.image == plain.image) is (profile is SRGB)


@pytest.mark.parametrize("format_name", ["JPEG", "PNG"])
def test_grey(format_name: str) -> None:
    """Grey pixels have grey profiles."""
    image = Image.fromarray(SHADES[..., 1])
    packed = pack_image(_file(image, format_name, profiles.grey(1.0)), LOSSLESS)
    wanted = profiles.shown(SHADES[..., [1, 1, 1]], profiles.SRGB, 1.0)
    assert np.abs(_shown(packed) - wanted).mean() < 1
    assert packed.done == ("converted",)


@pytest.mark.parametrize("format_name", ["JPEG", "TIFF"])
def test_cmyk(format_name: str) -> None:
    """Inks are what their profile says, however Pillow would guess them, and before and after a resize alike."""
    ramp = np.zeros((64, 256, 4), np.uint8)
    ramp[..., 0] = np.arange(256)  # cyan, which this profile shows as grey
    image = Image.merge("CMYK", [Image.fromarray(ramp[..., ink]) for ink in range(4)])
    for short_side in (64, 16):
        packed = pack_image(
            _file(image, format_name, profiles.grey_inks()), Recipe(short_side=short_side, format="png")
        )
        shown = _shown(packed)
        assert np.ptp(shown, axis=2).max() <= 3
        assert shown[0, 0, 0] > shown[0, -1, 0] + 40
        assert packed.done == ("converted",)


BAD = {
    "not a profile": b"profile" * 40,
    "cut short": ADOBE[:200],
    "grey for colour": profiles.grey(1.8),
    "inks for colour": profiles.grey_inks(),
}


@pytest.mark.parametrize("case", BAD)
def test_unusable_profiles(case: str) -> None:
    """A profile that is broken, or for other pixels, is as none, and that is said."""
    image = Image.fromarray(SHADES)
    packed = pack_image(_file(image, "JPEG", BAD[case]), LOSSLESS)
    assert packed.image == pack_image(_file(image, "JPEG", None), LOSSLESS).image
    assert packed.done == ("profile_unusable",)


@pytest.mark.parametrize("format_name", ["jpeg", "webp", "png"])
def test_no_profile_is_packed(format_name: str) -> None:
    """What is packed is sRGB and need not say so."""
    packed = pack_image(_file(Image.fromarray(SHADES), "JPEG", ADOBE), Recipe(short_side=32, format=format_name))
    assert "icc_profile" not in Image.open(io.BytesIO(packed.image)).info


@pytest.mark.parametrize(
    ("mode", "opacity", "done"),
    [("RGBA", 254, ("on_white",)), ("RGBA", 255, ()), ("LA", 0, ("on_white",)), ("L", 9, ())],
)
def test_what_shows_through_is_counted(mode: str, opacity: int, done: tuple[str, ...]) -> None:
    """An image with a pixel that is not opaque counts as composited on white; one with an unused channel does not."""
    image = Image.new(mode, (8, 8), (9,) * (len(mode) - 1) + (opacity,) if mode != "L" else opacity)
    assert pack_image(encoded(image, "PNG"), LOSSLESS).done == done


CURVES = {
    "straight": (profiles.table(), "71cdc3e8"),
    "gamma": (profiles.table(563), "d61d55a1"),
    "two points": (profiles.table(0, 65535), "71cdc3e8"),
    "table": (profiles.table(*(round(65535 * (n / 1023) ** 1.8) for n in range(1024))), "ef637254"),
    "power": (profiles.parametric(0, 2.4), "a0177f06"),
    "power, cut off": (profiles.parametric(1, 2.2, 1.1, -0.1), "ad511232"),
    "power, cut off, with an offset": (profiles.parametric(2, 2.2, 1.1, -0.1, 0.0), "ad511232"),
    "power and line": (profiles.parametric(3, 2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045), "a63cf518"),
    "all parameters": (profiles.parametric(4, 2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045, 0.0, 0.0), "a63cf518"),
}


@pytest.mark.parametrize("curve", CURVES)
def test_curves_and_a_matrix(curve: str) -> None:
    """Profiles of curves and a matrix are converted by tables, with the kernel and without it to the same levels, at
    most one from Little CMS."""
    tag, digest = CURVES[curve]
    profile = profiles.rgb(profiles.ADOBE, tag)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (128, 256, 3), np.uint8))
    conversion = profile_conversion(profile, "RGB")
    assert _is_by_tables(conversion)
    found = np.asarray(conversion.apply(image), np.int16)
    assert np.abs(found - _by_little_cms(profile, image)).max() == 1
    assert hashlib.sha256(found.tobytes()).hexdigest()[:8] == digest


@pytest.mark.parametrize(
    "profile",
    [
        profiles.rgb(profiles.ADOBE, profiles.table(6000, 65535)),  # black is lifted, and Little CMS compensates for it
        profiles.rgb(profiles.ADOBE, GAMMA, {b"A2B0": b"mft2"}),
        profiles.rgb(3 * profiles.ADOBE, GAMMA),
    ],
    ids=["black", "tables", "bright"],
)
def test_other_profiles_are_left_to_little_cms(profile: bytes) -> None:
    """What Little CMS does with more than curves and a matrix, or what would not fit into integers, is left to it."""
    assert not _is_by_tables(profile_conversion(profile, "RGB"))


def _is_by_tables(conversion: ProfileConversion) -> bool:
    return getattr(conversion.transform, "func", None) is _colour._by_tables


def _by_little_cms(profile: bytes, image: Image.Image) -> npt.NDArray[np.int16]:
    source, srgb = ImageCms.ImageCmsProfile(io.BytesIO(profile)), ImageCms.createProfile("sRGB")
    flags = ImageCms.Flags.BLACKPOINTCOMPENSATION
    transform = ImageCms.buildTransform(source, srgb, "RGB", "RGB", ImageCms.Intent.RELATIVE_COLORIMETRIC, flags)
    return np.asarray(ImageCms.applyTransform(image, transform), np.int16)
