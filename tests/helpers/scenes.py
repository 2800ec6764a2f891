"""A small set of pictures with annotations as COCO has them: coloured shapes, their boxes and classes, and masks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

CATEGORIES = {3: "square", 7: "disc", 90: "wedge"}
"""Number → name of the categories; as in COCO, the numbers have gaps."""

_COLOURS = ("crimson", "gold", "navy")


def write_scenes(folder: Path, train: int, val: int) -> None:
    """Write `train/NUMBER.jpg` with its mask and its boxes beside it, `val/` likewise, and COCO's JSON of both.

    In the masks 0 is the background, and the n-th category is n. In `NUMBER.json` stand boxes as corners and labels,
    from 0 on; in `annotations/instances_{train,val}.json` boxes as COCO has them. One picture in four has no object.
    """
    first = 0
    (folder / "annotations").mkdir(parents=True)
    for split, count in (("train", train), ("val", val)):
        (folder / split).mkdir()
        instances: dict[str, Any] = {
            "images": [],
            "annotations": [],
            "categories": [{"id": number, "name": name} for number, name in CATEGORIES.items()],
        }
        for number in range(first, first + count):
            _write_scene(folder / split, number, instances)
        (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(instances))
        first += count


def _write_scene(folder: Path, number: int, instances: dict[str, Any]) -> None:
    rng = np.random.default_rng(number)
    width, height = int(rng.integers(90, 130)), int(rng.integers(80, 100))
    image, mask = Image.new("RGB", (width, height), "ivory"), Image.new("L", (width, height))
    boxes, labels = [], []
    instances["images"].append({"id": number, "file_name": f"{number:06}.jpg", "width": width, "height": height})
    for _ in range(number % 4):
        label, side = int(rng.integers(3)), int(rng.integers(20, 45))
        left, top = int(rng.integers(0, width - side)), int(rng.integers(0, height - side))
        for canvas, fill in ((image, _COLOURS[label]), (mask, label + 1)):
            _draw(ImageDraw.Draw(canvas), label, (left, top, left + side, top + side), fill)
        boxes.append([left, top, left + side + 1, top + side + 1])
        labels.append(label)
        annotation = {"bbox": [left, top, side + 1, side + 1], "area": side * side, "iscrowd": 0}
        annotation |= {"id": len(instances["annotations"]), "image_id": number, "category_id": [*CATEGORIES][label]}
        instances["annotations"].append(annotation)
    image.save(folder / f"{number:06}.jpg", quality=92)
    mask.save(folder / f"{number:06}.mask.png")
    (folder / f"{number:06}.json").write_text(json.dumps({"boxes": boxes, "labels": labels}))


def _draw(draw: ImageDraw.ImageDraw, label: int, box: tuple[int, int, int, int], fill: Any) -> None:
    left, _, right, bottom = box
    if label == 0:
        draw.rectangle(box, fill=fill)
    elif label == 1:
        draw.ellipse(box, fill=fill)
    else:
        draw.polygon([(left, bottom), (right, bottom), ((left + right) // 2, box[1])], fill=fill)
