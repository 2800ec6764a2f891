"""The images that every tool reads, so that no two are the same and neither caches nor tools profit from repetition.

They are cut from photographs, several ways each where there are fewer photographs than images, or drawn.

    pictures    for loaders: short side 256, quality 90, 4:2:0, some 30 kB each
    small       for packers, as in ImageNet: 500 pixels the long side, some 0.19 megapixels
    medium      for packers, as on web pages: 1600 x 1200 pixels, photographs side by side with a sensor's grain
    large       for packers, as from a camera: 4000 x 3000 pixels, made alike
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

CLASSES = 10
SHORT_SIDE, QUALITY = 256, 90
ORIGINAL_QUALITY = 93
SMALL_SIDE = 500
TILED = {"medium": ((1600, 1200), 400), "large": ((4000, 3000), 1000)}
"""Size of an image, and of the photographs in it."""
TILED_GRAIN, DRAWN_GRAIN = 3.0, 6.0
"""Standard deviations, of 255."""


def pictures(folder: str, count: int, images: str | None, first: int = 0, step: int = 1) -> None:
    """Write `folder/CLASS/NUMBER.jpg`: an ImageFolder whose files say by name which sample they are.

    With a step, every so many of them: several processes can make a folder.
    """
    photographs = _files(images)
    for number in range(first, count, step):
        rng = np.random.default_rng(number)
        if photographs:
            picture = _cut(_open(photographs[number % len(photographs)]), rng, least=SHORT_SIDE)
        else:
            picture = _grainy(_resized(_drawn(number, number)), DRAWN_GRAIN, rng)  # to the size of a photograph's file
        path = Path(folder, f"class{number % CLASSES}", f"{number:06}.jpg")
        _save(_resized(picture), path, quality=QUALITY, subsampling="4:2:0")


def originals(folder: str, kind: str, count: int, images: str | None) -> None:
    """Write `folder/CLASS/NUMBER.jpg`; the classes are landscape and portrait, one image in four."""
    photographs = _files(images)
    for number in range(count):
        rng = np.random.default_rng((["small", "large", "medium"].index(kind), number))
        picture = _small(photographs, rng) if kind == "small" else _tiled(photographs, rng, *TILED[kind])
        if number % 4 == 0:
            picture = picture.transpose(Image.Transpose.ROTATE_90)
        name = "landscape" if picture.width >= picture.height else "portrait"
        _save(picture, Path(folder, name, f"{number:06}.jpg"), quality=ORIGINAL_QUALITY)


def _small(photographs: list[Path], rng: np.random.Generator) -> Image.Image:
    cut = _cut(_photograph(photographs, rng), rng)
    cut = _scaled(cut, SMALL_SIDE / max(cut.size))
    return cut if min(cut.size) > SHORT_SIDE else ImageOps.fit(cut, (SMALL_SIDE, 375))  # packers must reduce it


def _tiled(photographs: list[Path], rng: np.random.Generator, size: tuple[int, int], tile: int) -> Image.Image:
    canvas = Image.new("RGB", size)
    for x in range(0, size[0], tile):
        for y in range(0, size[1], tile):
            canvas.paste(ImageOps.fit(_photograph(photographs, rng), (tile, tile), Image.Resampling.BICUBIC), (x, y))
    return _grainy(canvas, TILED_GRAIN, rng)


def _photograph(photographs: list[Path], rng: np.random.Generator) -> Image.Image:
    number = int(rng.integers(1 << 30))
    return _open(photographs[number % len(photographs)]) if photographs else _drawn(number, number)


def _cut(image: Image.Image, rng: np.random.Generator, least: int = 0) -> Image.Image:
    """Return a random cut of half or more of an image, at least `least` pixels each way where it has that much."""
    width, height = (max(min(side, least), int(side * rng.uniform(0.7, 1))) for side in image.size)
    x, y = (int(rng.integers(0, whole - part + 1)) for whole, part in zip(image.size, (width, height), strict=True))
    return image.crop((x, y, x + width, y + height))


def _drawn(scene: int, number: int) -> Image.Image:
    from shardflow.demo.pictures import draw
    from shardflow.demo.scenes import SCENES

    return draw(list(SCENES)[scene % len(SCENES)], number)


def _grainy(image: Image.Image, deviation: float, rng: np.random.Generator) -> Image.Image:
    grain = rng.standard_normal((image.height, image.width, 1), dtype=np.float32) * deviation
    return Image.fromarray((np.asarray(image, np.float32) + grain).clip(0, 255).astype(np.uint8))


def _resized(image: Image.Image) -> Image.Image:
    return _scaled(image, SHORT_SIDE / min(image.size))


def _scaled(image: Image.Image, factor: float) -> Image.Image:
    return image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.BICUBIC)


def _files(images: str | None) -> list[Path]:
    return sorted(path for path in Path(images).rglob("*") if path.is_file()) if images else []


def _open(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image.convert("RGB")


def _save(image: Image.Image, path: Path, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, "JPEG", **options)
