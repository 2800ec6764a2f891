"""Colour: pixels of any kind as 8-bit grey or RGB, as they show.

16 bits are scaled, alpha is composited on white, palettes and CMYK are converted. Numbers that could mean anything are
refused rather than guessed at.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from shardflow.errors import DecodeError

BITS_TAG = 258
"""Of TIFF: bits per sample."""


def plain(image: Image.Image) -> Image.Image:
    """Return an image as 8-bit grey ("L") or RGB, without alpha.

    Raises:
        DecodeError: Its pixels have no defined range.
    """
    if image.mode == "F":
        raise DecodeError("floating-point pixels have no defined range")
    if image.mode == "I" or image.mode.startswith("I;16"):
        return _scaled(image)
    if image.has_transparency_data:
        canvas = Image.new("RGB", image.size, "white")
        image = image.convert("RGBA")
        canvas.paste(image, mask=image.getchannel("A"))
        return canvas
    return image if image.mode in ("L", "RGB") else image.convert("RGB")


def _scaled(image: Image.Image) -> Image.Image:
    bits = getattr(image, "tag_v2", {}).get(BITS_TAG, (16,))[0]
    values = np.asarray(image).astype(np.int64)
    most = (1 << min(bits, 16)) - 1
    if values.min() < 0 or values.max() > most:
        raise DecodeError(f"integer pixels from {values.min()} to {values.max()} have no defined range")
    return Image.fromarray(((values * 255 + most // 2) // most).astype(np.uint8))
