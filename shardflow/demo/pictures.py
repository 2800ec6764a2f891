"""Pictures for the demo: scenes in varied light, with lens flaws, as JPEG files.

A picture is a pure function of its class and number, so every run of the demo draws the same pictures.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from .scenes import SCENES, Pixels

_SHORT_SIDE = 272, 352  # range in pixels: above 256, so that packing has something to resize


def make_pictures(folder: Path, *, train: int, val: int, workers: int) -> int:
    """Write `train` and `val` pictures per class to `folder/{train,val}/CLASS/NNNN.jpg`; return their total number."""
    jobs = []
    for split, numbers in (("train", range(train)), ("val", range(train, train + val))):
        for name in SCENES:
            (folder / split / name).mkdir(parents=True, exist_ok=True)
            jobs += [(folder / split / name / f"{number:04}.jpg", name, number) for number in numbers]

    def write(job: tuple[Path, str, int]) -> None:
        path, name, number = job
        draw(name, number).save(path, "JPEG", quality=92)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(write, jobs))  # raises the exception of a thread
    return len(jobs)


def draw(name: str, number: int) -> Image.Image:
    """Return picture `number` of a class, in RGB."""
    rng = np.random.default_rng((0, list(SCENES).index(name), number))
    short = int(rng.integers(*_SHORT_SIDE))
    width, height = short, int(short * rng.uniform(1.0, 1.5))
    if rng.random() < 0.75:
        width, height = height, width
    pixels = SCENES[name](rng, width, height)
    if rng.random() < 0.3:
        pixels = _add_foreground(rng, pixels)
    pixels = _relight(rng, pixels)
    image = Image.fromarray((pixels.clip(0, 1) * 255).astype(np.uint8))
    if rng.random() < 0.5:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 1.2)))
    return image


def _add_foreground(rng: np.random.Generator, pixels: Pixels) -> Pixels:
    """Return the scene partly hidden by an unfocused object near the lens."""
    height, width = pixels.shape[:2]
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    side = rng.uniform(0, 2 * np.pi)
    cx, cy = width * (0.5 + 0.6 * np.cos(side)), height * (0.5 + 0.6 * np.sin(side))
    distance = np.hypot((x - cx) / rng.uniform(0.7, 1.6), y - cy) / (0.35 * min(width, height))
    share = 1 / (1 + np.exp(rng.uniform(6, 14) * (distance - 1)))
    tone = (rng.uniform(0.05, 0.6) * rng.uniform(0.7, 1.3, 3)).astype(np.float32)
    return np.asarray(pixels + share[..., None] * (tone - pixels), dtype=np.float32)


def _relight(rng: np.random.Generator, pixels: Pixels) -> Pixels:
    """Return the scene in random light: white balance, exposure, contrast, a shadow, vignette and noise."""
    height, width = pixels.shape[:2]
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j].astype(np.float32)
    angle = rng.uniform(0, 2 * np.pi)
    shadow = np.tanh(4 * (np.cos(angle) * x + np.sin(angle) * y - rng.uniform(-1.5, 1.5)))
    light = (1 - rng.uniform(0, 0.25) * (x * x + y * y)) * (1 + rng.uniform(0, 0.3) * shadow)
    warmth = rng.uniform(-0.16, 0.16)
    gains = np.array((1 + warmth, 1 + rng.uniform(-0.05, 0.05), 1 - warmth)) * rng.uniform(0.75, 1.2)
    balanced = pixels.clip(0, None) ** np.float32(rng.uniform(0.8, 1.25)) * gains.astype(np.float32) * light[..., None]
    noise = rng.standard_normal((height, width, 1), dtype=np.float32) * np.float32(rng.uniform(0.005, 0.04))
    return np.asarray(balanced + noise, dtype=np.float32)
