"""Quality and size of packed images.

Each is compared with its original, decoded in full and resized to the same size in floating point, once with a bicubic
and once with a Lanczos filter, both antialiased; the nearer of the two counts, so that no packer is judged by another's
choice. The measure is PSNR over RGB, its mean over the pictures.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

FILTERS = Image.Resampling.BICUBIC, Image.Resampling.LANCZOS
SHORT_SIDE = 256

Pixels = npt.NDArray[np.float64]


def judge(originals: str, packed: str, compared: int) -> dict[str, float]:
    """Return the number of pictures, their mean size in bytes, and the PSNR in dB of the first `compared`."""
    paths = sorted(Path(packed).glob("*.jpg"))
    wanted = {path.stem: path for path in Path(originals).rglob("*.jpg")}
    if {path.stem for path in paths} != wanted.keys():
        raise ValueError(f"expected {len(wanted)} images, found {len(paths)}, or others")
    ratios = []
    for path in paths[:compared]:
        with Image.open(path) as picture, Image.open(wanted[path.stem]) as original:
            if min(picture.size) != SHORT_SIDE:
                raise ValueError(f"{path.name}: expected a short side of {SHORT_SIDE}, found {picture.size}")
            pixels = np.asarray(picture.convert("RGB"), np.float64)
            ratios.append(max(psnr_db(pixels, reference(original, picture.size, by)) for by in FILTERS))
    return {
        "pictures": len(paths),
        "bytes": sum(path.stat().st_size for path in paths) / len(paths),
        "psnr_db": float(np.mean(ratios)),
    }


def reference(image: Image.Image, size: tuple[int, int], by: Image.Resampling) -> Pixels:
    """Return an image resized in floating point, its values within 0 … 255."""
    planes = (Image.fromarray(np.asarray(plane, np.float32)) for plane in image.convert("RGB").split())
    return np.stack([np.asarray(plane.resize(size, by), np.float64) for plane in planes], -1).clip(0, 255)


def psnr_db(pixels: Pixels, expected: Pixels) -> float:
    """Return the peak signal-to-noise ratio."""
    return float(10 * np.log10(255**2 / np.mean((pixels - expected) ** 2)))
