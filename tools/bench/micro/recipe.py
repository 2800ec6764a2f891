"""Packs photographs at many qualities, and measures bytes, decoding, and distance from the reference.

The reference is the photograph, decoded in full and resized in floating point by the same filter (antialiased bicubic).
PSNR is taken over RGB, SSIM over luma (Wang et al., "Image quality assessment: from error visibility to structural
similarity", 2004: a Gaussian window of 11 pixels and deviation 1.5); both are means over the photographs.

Decoding is what training does: a random resized crop to 224 pixels, batch by batch, on one thread. It is measured in
CPU time, the settings in turn, in many rounds of which the median counts.
"""

from __future__ import annotations

import io
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from PIL import Image

import shardflow
from bench.packers.quality import Pixels, psnr_db, reference
from bench.report import markdown
from shardflow.errors import SampleError
from shardflow.order import keyed_rng
from shardflow.packing.image.pipeline import pack_image
from shardflow.packing.recipe import Recipe

SHORT_SIDE = 256
QUALITIES = (60, 75, 85, 90, 95, 98)
SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    *((way, {"subsampling": way, "quality": quality}) for way in ("4:2:0", "4:2:2", "4:4:4") for quality in QUALITIES),
    *(("webp", {"format": "webp", "quality": quality}) for quality in QUALITIES),
    ("png", {"format": "png"}),
)
"""What a row is called, and its settings."""

_TAPS = np.exp(-0.5 * (np.arange(-5, 6) / 1.5) ** 2)
_TAPS /= _TAPS.sum()
_C1, _C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2


class Judge:
    """The reference of one photograph, and the fidelity of images to it."""

    def __init__(self, photograph: Image.Image, size: tuple[int, int]) -> None:
        self.expected = reference(photograph, size, Image.Resampling.BICUBIC)
        self._luma = _luma(self.expected)
        self._mean, self._square = _blurred(self._luma), _blurred(self._luma**2)

    def ssim(self, pixels: Pixels) -> float:
        """Return the structural similarity, at most 1."""
        luma = _luma(pixels)
        mean = _blurred(luma)
        product = mean * self._mean
        spread = _blurred(luma**2) - mean**2 + self._square - self._mean**2
        common = (2 * product + _C1) * (2 * (_blurred(luma * self._luma) - product) + _C2)
        return float(np.mean(common / ((mean**2 + self._mean**2 + _C1) * (spread + _C2))))


def measure(images: str, rounds: int) -> str:
    """Return the table."""
    photographs, rows, files = packed_and_judged(Path(images))
    if not photographs:
        raise ValueError(f"no JPEG below {images} has a short side of {SHORT_SIDE} pixels or more")
    for row, time_us in zip(rows, decode_us(files, rounds), strict=True):
        row["decode_us"] = time_us
    lines = [
        (
            {"webp": "WebP", "png": "PNG"}.get(row["name"], f"JPEG {row['name']}"),
            str(row["quality"] or "lossless"),
            f"{row['bytes'] / 1000:.1f}",
            f"{row['decode_us']:,.0f}",
            f"{row['psnr_db']:.1f}",
            f"{row['worst_psnr_db']:.1f}",
            f"{row['ssim']:.4f}",
        )
        for row in rows
    ]
    columns = (
        f"format, {photographs} photographs",
        "quality",
        "kB/image",
        "decoding, CPU-µs",
        "PSNR dB",
        "worst",
        "SSIM",
    )
    return markdown(columns, lines)


def packed_and_judged(images: Path) -> tuple[int, list[dict[str, Any]], list[list[bytes]]]:
    """Pack every photograph at every setting; return their number, and by setting a row and the packed files."""
    recipes = [Recipe(**{"short_side": SHORT_SIDE, **settings}) for _, settings in SETTINGS]
    files: list[list[bytes]] = [[] for _ in recipes]
    judged: list[list[tuple[float, float]]] = [[] for _ in recipes]
    for path in sorted(path for path in images.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg")):
        data = path.read_bytes()
        try:
            first = pack_image(data, recipes[0])
        except SampleError:
            continue
        # Those that are too small are not resized; turned or converted, they would need a reference of their own.
        if min(first.geometry.stored) < SHORT_SIDE or first.done:
            continue
        judge = Judge(Image.open(io.BytesIO(data)), first.geometry.size)
        for recipe, into, found in zip(recipes, files, judged, strict=True):
            into.append(pack_image(data, recipe).image)
            pixels = np.asarray(Image.open(io.BytesIO(into[-1])).convert("RGB"), np.float64)
            found.append((psnr_db(pixels, judge.expected), judge.ssim(pixels)))
    rows = [
        {
            "name": name,
            "quality": settings.get("quality"),
            "bytes": fmean(map(len, into)),
            "psnr_db": fmean(psnr for psnr, _ in found),
            "worst_psnr_db": min(psnr for psnr, _ in found),
            "ssim": fmean(ssim for _, ssim in found),
        }
        for (name, settings), into, found in zip(SETTINGS, files, judged, strict=True)
    ]
    return len(files[0]), rows, files


def decode_us(files: list[list[bytes]], rounds: int) -> list[float]:
    """Return the CPU time per image of each set of files, in µs."""
    torch.set_num_threads(1)
    decoder = shardflow.decoders.RandomResizedCrop(224)
    sizes = np.array([Image.open(io.BytesIO(data)).size for data in files[0]], np.int64)  # the same at every setting
    batches = [[memoryview(bytearray(data)) for data in each] for each in files]
    spent: list[list[float]] = [[] for _ in files]
    for number in range(rounds + 1):
        keys = keyed_rng.fold_array(keyed_rng.key("quality", number), np.arange(len(files[0])))
        for batch, into in zip(batches, spent, strict=True):
            began = time.process_time()
            decoder(batch, sizes, keys)
            into.append(1e6 * (time.process_time() - began) / len(batch))
    return [median(times[1:]) for times in spent]  # the first round warms up


def _luma(pixels: Pixels) -> Pixels:
    return pixels @ np.array([0.299, 0.587, 0.114])


def _blurred(plane: Pixels) -> Pixels:
    for axis in (0, 1):
        plane = np.lib.stride_tricks.sliding_window_view(plane, len(_TAPS), axis) @ _TAPS
    return plane
