"""The pictures that every loader reads: JPEG files, short side 256, quality 90, 4:2:0, some 30 KB each.

No two are the same, so that neither the processor's caches nor a loader can profit from repetition: from fewer
photographs than pictures, several different cuts are taken of each.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 10
SHORT_SIDE = 256
QUALITY = 90


def make(folder: Path, count: int, images: Path | None) -> None:
    """Write `folder/CLASS/NUMBER.jpg`; an ImageFolder whose files say by name which sample they are."""
    photographs = [] if images is None else sorted(path for path in images.rglob("*") if path.is_file())
    for number in range(count):
        rng = np.random.default_rng(number)
        picture = _cut(photographs[number % len(photographs)], rng) if photographs else _drawn(number, rng)
        path = folder / f"class{number % CLASSES}" / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_encoded(picture))


def paths(folder: Path) -> list[Path]:
    """Return the pictures by number."""
    return sorted(folder.rglob("*.jpg"), key=lambda path: path.stem)


def _cut(path: Path, rng: np.random.Generator) -> Image.Image:
    """Return a random cut of half or more of a photograph, at least the short side each way where it has that much."""
    with Image.open(path) as image:
        image = image.convert("RGB")
    width, height = (max(min(side, SHORT_SIDE), int(side * rng.uniform(0.7, 1))) for side in image.size)
    x, y = (int(rng.integers(0, whole - part + 1)) for whole, part in zip(image.size, (width, height), strict=True))
    return image.crop((x, y, x + width, y + height))


def _drawn(number: int, rng: np.random.Generator) -> Image.Image:
    """Return a picture of the demo's, with the grain that brings its file to the size of a photograph's."""
    from shardflow.demo.pictures import draw
    from shardflow.demo.scenes import SCENES

    scenes = list(SCENES)
    pixels = np.asarray(_resized(draw(scenes[number % len(scenes)], number)), dtype=np.float32)
    grain = rng.standard_normal(pixels.shape[:2], dtype=np.float32)[..., None] * 6
    return Image.fromarray((pixels + grain).clip(0, 255).astype(np.uint8))


def _resized(image: Image.Image) -> Image.Image:
    factor = SHORT_SIDE / min(image.size)
    width, height = (round(side * factor) for side in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)


def _encoded(image: Image.Image) -> bytes:
    file = io.BytesIO()
    _resized(image).save(file, "JPEG", quality=QUALITY, subsampling="4:2:0")
    return file.getvalue()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--images", type=Path)
    given = parser.parse_args()
    make(given.folder, given.samples, given.images)
