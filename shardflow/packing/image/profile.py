"""Colour profiles: pixels as an embedded ICC profile means them become sRGB, which is what everybody takes them for.

Colours are converted after the resize, where there are fewer of them. A profile that leaves colours as they are, as
the sRGB profile that most cameras write, is recognised by that, whatever its name, and costs nothing further. A profile
that is broken, or meant for pixels of another kind, is treated as if there were none, as viewers do.

Conversion is relative colorimetric with black point compensation, by Little CMS. Colours outside of sRGB are clipped.
"""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageCms

_SPACES = {"L": "GRAY", "RGB": "RGB", "CMYK": "CMYK"}
_MODES = {"1": "L", "L": "L", "LA": "L", "I": "L", "I;16": "L", "CMYK": "CMYK"}
_SAME = 2
"""Levels of 255: profiles of sRGB by different makers differ by that much, those of other spaces by far more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """What a profile asks for.

    Attributes:
        usable: False when there is a profile that cannot be applied.
        mode: Pillow's mode of the pixels that are converted: "L", "RGB" or "CMYK".
        transform: None when nothing is to be done.
    """

    usable: bool = True
    mode: str = "RGB"
    transform: ImageCms.ImageCmsTransform | None = None

    def apply(self, pixels: Image.Image) -> Image.Image:
        """Return pixels as RGB in sRGB."""
        if self.transform is None:
            return pixels if pixels.mode == "RGB" else pixels.convert("RGB")  # which would copy
        converted = ImageCms.applyTransform(pixels.convert(self.mode), self.transform)
        assert converted is not None  # a new image, unless `inPlace`
        return converted


def conversion(image: Image.Image) -> Conversion:
    """Return what the profile in an opened image asks for."""
    profile = image.info.get("icc_profile")
    return _conversion(bytes(profile), _MODES.get(image.mode, "RGB")) if profile else Conversion()


@functools.lru_cache(maxsize=32)  # the images of one camera or program share a profile
def _conversion(profile: bytes, mode: str) -> Conversion:
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if source.profile.xcolor_space.strip() != _SPACES[mode]:
            return Conversion(usable=False)
        transform = ImageCms.buildTransform(
            source,
            ImageCms.createProfile("sRGB"),
            mode,
            "RGB",
            ImageCms.Intent.RELATIVE_COLORIMETRIC,
            ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )
        asked = Conversion(mode=mode, transform=transform)
        return Conversion() if mode != "CMYK" and _changes_nothing(asked) else asked
    except Exception:  # Pillow and Little CMS raise whatever the profile's bytes make them
        return Conversion(usable=False)


def _changes_nothing(asked: Conversion) -> bool:
    levels = np.arange(0, 256, 15, dtype=np.uint8)
    colours = np.stack(np.meshgrid(levels, levels, levels), -1).reshape(1, -1, 3)
    before = Image.fromarray(colours if asked.mode == "RGB" else colours[..., 0]).convert("RGB")
    return int(np.abs(np.asarray(before, np.int16) - np.asarray(asked.apply(before), np.int16)).max()) <= _SAME
