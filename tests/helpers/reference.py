"""A resize to compare with: antialiased bicubic in floating point, in the open, one axis after the other.

Source: Keys, "Cubic convolution interpolation for digital image processing", 1981, with a = -0.5; for a reduction the
kernel is stretched by the ratio of the sizes, so that it covers as many source pixels as go into one.
"""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.float64]


def resized(pixels: npt.NDArray[np.uint8], width: int, height: int) -> Pixels:
    """Return [H, W, 3] of any size as [height, width, 3], values within 0 … 255, not rounded."""
    rows = np.tensordot(_weights(pixels.shape[0], height), pixels.astype(np.float64), 1)
    columns = np.tensordot(_weights(pixels.shape[1], width), rows.transpose(1, 0, 2), 1)
    return columns.transpose(1, 0, 2).clip(0, 255)


def decoded(data: bytes) -> npt.NDArray[np.uint8]:
    """Return an image file as [H, W, 3], decoded in full."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def psnr_db(pixels: npt.NDArray[np.uint8], wanted: Pixels) -> float:
    """Return the peak signal-to-noise ratio over all values; infinite where they are equal."""
    error = np.mean((pixels - wanted) ** 2)
    return float(10 * np.log10(255**2 / error)) if error else float("inf")


def _weights(before: int, after: int) -> Pixels:
    """Return [after, before]: what each source pixel contributes."""
    scale = before / after
    centres = (np.arange(after) + 0.5) * scale
    distance = np.abs(centres[:, None] - (np.arange(before) + 0.5)) / max(scale, 1.0)
    near, far = 1.5 * distance**3 - 2.5 * distance**2 + 1, -0.5 * distance**3 + 2.5 * distance**2 - 4 * distance + 2
    weights = np.where(distance < 1, near, np.where(distance < 2, far, 0.0))
    normalised: Pixels = weights / weights.sum(axis=1, keepdims=True)
    return normalised
