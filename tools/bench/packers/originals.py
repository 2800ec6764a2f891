"""The originals that every packer reads: JPEG files as they are in ImageNet, and as they come from a camera.

    small   500 pixels the long side, some 0.19 megapixels
    large   4000 x 3000 pixels, 12 megapixels: photographs side by side, enlarged, with the grain of a sensor over them

One in four stands upright. They lie in `landscape/` and `portrait/`, which are the classes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

QUALITY = 93
SMALL_SIDE = 500
LARGE = 4000, 3000
TILE = 1000
GRAIN = 3.0
"""Standard deviation, of 255."""


def make(folder: Path, kind: str, count: int, images: Path | None) -> None:
    """Write `folder/WAY/NUMBER.jpg`."""
    photographs = [] if images is None else sorted(path for path in images.rglob("*") if path.is_file())
    for number in range(count):
        rng = np.random.default_rng((kind == "large", number))
        picture = (_small if kind == "small" else _large)(photographs, rng)
        if number % 4 == 0:
            picture = picture.transpose(Image.Transpose.ROTATE_90)
        path = folder / ("landscape" if picture.width >= picture.height else "portrait") / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path, "JPEG", quality=QUALITY)


def _small(photographs: list[Path], rng: np.random.Generator) -> Image.Image:
    """Return a cut of half or more of a photograph."""
    whole = _photograph(photographs, rng)
    width, height = (int(side * rng.uniform(0.7, 1)) for side in whole.size)
    x, y = (int(rng.integers(0, side - part + 1)) for side, part in zip(whole.size, (width, height), strict=True))
    factor = SMALL_SIDE / max(width, height)
    size = round(width * factor), round(height * factor)
    cut = whole.crop((x, y, x + width, y + height)).resize(size, Image.Resampling.BICUBIC)
    return cut if min(size) > 256 else ImageOps.fit(cut, (SMALL_SIDE, 375))  # every packer has something to reduce


def _large(photographs: list[Path], rng: np.random.Generator) -> Image.Image:
    canvas = Image.new("RGB", LARGE)
    for x in range(0, LARGE[0], TILE):
        for y in range(0, LARGE[1], TILE):
            canvas.paste(ImageOps.fit(_photograph(photographs, rng), (TILE, TILE), Image.Resampling.BICUBIC), (x, y))
    grain = rng.standard_normal((LARGE[1], LARGE[0], 1), dtype=np.float32) * GRAIN
    return Image.fromarray((np.asarray(canvas, np.float32) + grain).clip(0, 255).astype(np.uint8))


def _photograph(photographs: list[Path], rng: np.random.Generator) -> Image.Image:
    number = int(rng.integers(1 << 30))
    if photographs:
        with Image.open(photographs[number % len(photographs)]) as image:
            return image.convert("RGB")
    from shardflow.demo.pictures import draw
    from shardflow.demo.scenes import SCENES

    return draw(list(SCENES)[number % len(SCENES)], number)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("kind", choices=("small", "large"))
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--images", type=Path)
    given = parser.parse_args()
    make(given.folder, given.kind, given.count, given.images)
