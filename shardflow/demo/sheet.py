"""The contact sheet: samples as they were packed, and below each what several epochs make of it."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

import shardflow
from shardflow.dataset.dataset import Split
from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.preview.drawing import FAINT, FRAME, INK, PAPER, fitted, font, put_tile

from .training import CROP, augmentation

COLUMNS = 8
EPOCHS = 5

_SEARCHED = 512
_NAMED = "short_side", "quality", "subsampling"
_TILE, _GAP, _MARGIN = 176, 10, 36
_CAPTION, _HEADER = 132, 108


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    title: str
    subtitle: str
    packed: Image.Image
    augmented: list[Image.Image]


def draw_sheet(
    url: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    split: str = "train",
    workers: int | None = None,
    seed: int = 0,
) -> None:
    """Write a PNG of some samples of a split, one of each class as far as there is room.

    The augmented versions are those that a `Loader` with this seed hands out in the first epochs.

    Args:
        url: The dataset.
        path: The file to write.
        split: The split to show.
        workers: Of the loader.
        seed: Of the augmentation.
    """
    dataset = shardflow.open(url)
    samples = dataset[split]
    chosen = _choose(samples)
    loader = shardflow.Loader(
        url,
        split=split,
        batch_size=32,
        decoder=shardflow.RandomResizedCropDecoder(_TILE, scale=CROP),
        transform=augmentation(),
        fields=("image",),
        shuffle=False,
        tail="short",
        limit=max(chosen) + 1,
        num_workers=workers,
        seed=seed,
    )
    versions = [np.concatenate([images.numpy() for (images,) in loader])[chosen] for _ in range(EPOCHS)]
    columns = []
    for place, number in enumerate(chosen):
        sample = samples[number]
        payload = next(value for part, value in sample.items() if part in IMAGE_PARTS)
        with Image.open(io.BytesIO(payload)) as image:
            packed = image.convert("RGB")
        title = dataset.classes[_label(sample)] if dataset.classes is not None else f"sample {number}"
        columns.append(
            _Column(
                title=title,
                subtitle=f"{packed.width} x {packed.height}, {len(payload) / 1000:.0f} kB",
                packed=packed,
                augmented=[_image(epoch[place]) for epoch in versions],
            )
        )
    heading = f"{len(chosen)} of the {len(samples):,} samples in {split!r}"
    recipe = [f"{name.replace('_', ' ')} {dataset.recipe[name]}" for name in _NAMED if name in dataset.recipe]
    _lay_out(columns, heading, recipe).save(path, "PNG")


def _choose(split: Split) -> list[int]:
    """Return the numbers of samples to show, by label: the first of each class, then whichever come first."""
    first: dict[int, int] = {}
    for number, sample in enumerate(islice(split, _SEARCHED)):
        first.setdefault(_label(sample), number)
        if len(first) == COLUMNS:
            break
    others = (number for number in range(len(split)) if number not in first.values())
    chosen = [*first.values(), *islice(others, COLUMNS - len(first))]
    return sorted(chosen, key=lambda number: (_label(split[number]), number))


def _label(sample: Mapping[str, Any]) -> int:
    return int(sample.get("cls", 0))


def _lay_out(columns: list[_Column], heading: str, recipe: list[str]) -> Image.Image:
    width = 2 * _MARGIN + _CAPTION + len(columns) * (_TILE + _GAP) - _GAP
    first_row = _HEADER + 48
    augmented_row = first_row + _TILE + 46
    height = augmented_row + EPOCHS * (_TILE + _GAP) - _GAP + _MARGIN
    sheet = Image.new("RGB", (max(width, 640), height), PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((_MARGIN, 30), "From shards to batches", INK, font(30))
    pen.text((_MARGIN, 70), heading, FAINT, font(17))
    _caption(pen, first_row, "as packed", *recipe)
    for epoch in range(EPOCHS):
        lines = ("random crop, flip,", "colour jitter;", "the next epoch", "draws anew") if epoch == 0 else ()
        _caption(pen, augmented_row + epoch * (_TILE + _GAP), f"epoch {epoch}", *lines)
    for place, column in enumerate(columns):
        left = _MARGIN + _CAPTION + place * (_TILE + _GAP)
        pen.text((left, first_row - 46), fitted(column.title, font(20), _TILE), INK, font(20))
        pen.text((left, first_row - 21), column.subtitle, FAINT, font(13))
        put_tile(sheet, column.packed, left, first_row, _TILE)
        for epoch, image in enumerate(column.augmented):
            sheet.paste(image, (left, augmented_row + epoch * (_TILE + _GAP)))
    middle = first_row + _TILE + 23
    pen.line((_MARGIN, middle, width - _MARGIN, middle), FRAME, 2)
    return sheet


def _caption(pen: ImageDraw.ImageDraw, top: int, title: str, *lines: str) -> None:
    pen.text((_MARGIN, top - 2), title, INK, font(20))
    for number, line in enumerate(lines):
        pen.text((_MARGIN, top + 28 + 17 * number), line, FAINT, font(13))


def _image(pixels_CHW: npt.NDArray[np.uint8]) -> Image.Image:  # noqa: N803 - the suffix is the shape
    return Image.fromarray(np.ascontiguousarray(pixels_CHW.transpose(1, 2, 0)))
