"""Colour: pixels of any kind as 8-bit grey or RGB, in sRGB.

16 bits are scaled, alpha is composited on white, palettes and CMYK are converted. Pixel values without a defined range
are refused. Packing and loading share these functions, so a tar read in place gives the pixels that packing would.

Colours with an embedded ICC profile are converted to sRGB, which models expect; packing does so after the resize, where
there are fewer pixels. Little CMS converts with relative colorimetric intent and black point compensation; colours
outside sRGB are clipped. Most profiles are three curves and a matrix: the native kernel applies these ten times as
fast, within one level of Little CMS, in integers, so that numpy computes the same values without the kernel. A profile
that changes no colour, such as most cameras' sRGB profile, is skipped under any name. A broken profile, or one for
another kind of pixels, is ignored, as viewers do.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageCms

from shardflow import native
from shardflow._pillow import BITS_TAG, PHOTOMETRIC_TAG, WHITE_IS_ZERO, bands
from shardflow.errors import DecodeError
from shardflow.formats.icc_profile import matrix_profile

CONVERSION = "tables 1"
"""Version of the conversion by curves and a matrix; raise it with every change that alters pixels."""

_SPACES = {"L": "GRAY", "RGB": "RGB", "CMYK": "CMYK"}
_MODES = {"1": "L", "L": "L", "LA": "L", "I": "L", "I;16": "L", "CMYK": "CMYK"}
_SAME = 2
"""Levels of 255: sRGB profiles of different vendors differ by this much, those of other spaces by far more."""

_SRGB = np.array(
    [[0.4360747, 0.3850649, 0.1430804], [0.2225045, 0.7168786, 0.0606169], [0.0139322, 0.0971045, 0.7141733]]
)
"""From linear sRGB to XYZ for D50, adapted by Bradford's method (IEC 61966-2-1; ICC.1:2022, annex E)."""


def to_8_bits(image: Image.Image) -> Image.Image:
    """Return an image as 8-bit grey ("L") or RGB, without alpha."""
    mode, convert = conversion_to_8_bits(image)
    if convert is unchanged:
        return image
    converted = Image.new(mode, image.size)
    for top, band in bands(image):  # the whole image at once would take several times the memory
        converted.paste(convert(band), (0, top))
    return converted


def unchanged(band: Image.Image) -> Image.Image:
    """Return the band itself: the conversion of an image that needs none."""
    return band


def conversion_to_8_bits(image: Image.Image) -> tuple[str, Callable[[Image.Image], Image.Image]]:
    """Return the mode that `to_8_bits` gives an image, "L" or "RGB", and the function that converts a band of it.

    Raises:
        DecodeError: The pixel values have no defined range.
    """
    if image.mode == "F":
        raise DecodeError("floating-point pixels have no defined range")
    if image.mode == "I" or image.mode.startswith("I;16"):
        return "L", _scale(image)
    if image.has_transparency_data:
        return "RGB", _on_white
    if image.mode in ("L", "RGB"):
        return image.mode, unchanged
    return "RGB", lambda band: band.convert("RGB")


def _on_white(band: Image.Image) -> Image.Image:
    canvas = Image.new("RGB", band.size, "white")
    band = band.convert("RGBA")
    canvas.paste(band, mask=band.getchannel("A"))
    return canvas


def _scale(image: Image.Image) -> Callable[[Image.Image], Image.Image]:
    bits = getattr(image, "tag_v2", {}).get(BITS_TAG, (16,))[0]
    if bits > 16:
        raise DecodeError(f"integer pixels of {bits} bits have no defined range")
    most = (1 << bits) - 1
    extremes = [(values.min(), values.max()) for values in (np.asarray(band) for _, band in bands(image))]
    low, high = min(each[0] for each in extremes), max(each[1] for each in extremes)
    if low < 0 or high > most:
        raise DecodeError(f"integer pixels from {low} to {high} have no defined range")

    is_inverted = getattr(image, "tag_v2", {}).get(PHOTOMETRIC_TAG) == WHITE_IS_ZERO  # as Pillow does with 8 bits

    def scale(band: Image.Image) -> Image.Image:
        values = np.asarray(band).astype(np.int64)
        values = most - values if is_inverted else values
        return Image.fromarray(((values * 255 + most // 2) // most).astype(np.uint8))

    return scale


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileConversion:
    """The conversion from an embedded colour profile to sRGB."""

    usable: bool = True  # False for a profile that cannot be applied
    mode: str = "RGB"  # Pillow's mode of the input: "L", "RGB" or "CMYK"
    transform: Callable[[Image.Image], Image.Image] | None = None  # None if no colour changes

    def apply(self, pixels: Image.Image) -> Image.Image:
        """Return pixels as RGB in sRGB."""
        if self.transform is None:
            return pixels if pixels.mode == "RGB" else pixels.convert("RGB")  # `convert` always copies
        return self.transform(pixels.convert(self.mode))


def profile_conversion(profile: bytes | None, mode: str) -> ProfileConversion:
    """Return the conversion of an image with an embedded profile, or none; `mode` is Pillow's mode of its pixels."""
    return _conversion(bytes(profile), _MODES.get(mode, "RGB")) if profile else ProfileConversion()


@functools.lru_cache(maxsize=32)  # the images of one camera or program share a profile
def _conversion(profile: bytes, mode: str) -> ProfileConversion:
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if source.profile.xcolor_space.strip() != _SPACES[mode]:
            return ProfileConversion(usable=False)
        transform = ImageCms.buildTransform(
            source,
            ImageCms.createProfile("sRGB"),
            mode,
            "RGB",
            ImageCms.Intent.RELATIVE_COLORIMETRIC,
            ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )
        by_little_cms = functools.partial(_by_little_cms, transform)
        if mode == "CMYK":
            return ProfileConversion(mode=mode, transform=by_little_cms)
        levels = np.arange(0, 256, 15, dtype=np.uint8)
        colours = np.stack(np.meshgrid(levels, levels, levels), -1).reshape(1, -1, 3)
        before = Image.fromarray(colours if mode == "RGB" else colours[..., 0])
        after = by_little_cms(before)
        if _difference(before.convert("RGB"), after) <= _SAME:
            return ProfileConversion()
        by_tables = _tables(profile) if mode == "RGB" else None
        if by_tables is not None and _difference(after, by_tables(before)) <= 1:
            return ProfileConversion(transform=by_tables)
        return ProfileConversion(mode=mode, transform=by_little_cms)
    except Exception:  # Pillow and Little CMS raise anything on a damaged profile
        return ProfileConversion(usable=False)


def _by_little_cms(transform: ImageCms.ImageCmsTransform, pixels: Image.Image) -> Image.Image:
    converted = ImageCms.applyTransform(pixels, transform)
    assert converted is not None  # a new image, unless `inPlace`
    return converted


def _difference(one: Image.Image, other: Image.Image) -> int:
    return int(np.abs(np.asarray(one, np.int16) - np.asarray(other, np.int16)).max())


def _tables(profile: bytes) -> Callable[[Image.Image], Image.Image] | None:
    """Return the conversion of a profile of curves and a matrix; None for any other profile."""
    found = matrix_profile(profile)
    if found is None:
        return None
    matrix = np.linalg.inv(_SRGB) @ found.matrix
    if np.abs(matrix).sum(axis=1).max() >= 4:  # 32 bits would overflow
        return None
    tables = np.zeros((), native.COLOUR_TABLES)
    top = len(tables["encoded"]) - 1
    tables["linear"] = np.rint(found.curves * top)
    tables["matrix"] = np.rint(matrix * (1 << native.MATRIX_BITS))
    light = np.linspace(0, 1, top + 1)
    tables["encoded"] = np.rint(255 * np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055))
    return functools.partial(_by_tables, tables)


def _by_tables(tables: npt.NDArray[np.void], pixels: Image.Image) -> Image.Image:
    converted = np.array(pixels)
    if native.available():
        native.convert_colours(converted, tables)
    else:
        light = [tables["linear"][channel][converted[..., channel]].astype(np.int32) for channel in range(3)]
        for channel, (red, green, blue) in enumerate(tables["matrix"]):
            mixed = red * light[0] + green * light[1] + blue * light[2] + (1 << native.MATRIX_BITS - 1)
            places = (mixed >> native.MATRIX_BITS).clip(0, len(tables["encoded"]) - 1)
            converted[..., channel] = tables["encoded"][places]
    return Image.fromarray(converted)
