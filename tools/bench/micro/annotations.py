"""The CPU time of an image that is cropped and flipped with its boxes, or with its mask, beside torchvision's recipes.

These are a map-style dataset as `CocoDetection` is one, `v2.RandomResizedCrop` and `v2.RandomHorizontalFlip` on
tv_tensors, and the DataLoader with a collate function; for boxes `v2.SanitizeBoundingBoxes` as well. Images are decoded
with Pillow, as in torchvision's references, or with torchvision's own decoder. All read the same JPEG and PNG files,
from disk or from shards. CPU time of the training process and its workers together.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2

import shardflow
from bench.loaders.peers.recipe import BATCH, SIZE, WORKERS
from bench.report import markdown
from bench.usage import epoch_us, medians

BOXES, CLASSES = 7, 80
"""Of COCO: boxes per image on average, and classes."""

FIELDS = {"boxes": ("image", "boxes", "box_labels"), "mask": ("image", "mask")}
WAYS = {"Pillow": False, "torchvision's decoder": True}


def measure(url: str, rounds: int) -> str:
    """Return the table."""
    torch.set_num_threads(1)
    pictures = Path(url).parents[1] / "pictures"
    annotated = _annotated(pictures)
    runs = {}
    for what, fields in FIELDS.items():
        ours = shardflow.Loader(annotated, batch_size=BATCH, fields=fields, num_workers=WORKERS)
        runs[what, "shardflow"] = partial(epoch_us, ours)
        for way, is_fast in WAYS.items():
            runs[what, way] = partial(epoch_us, _torchvision(pictures, what, is_fast=is_fast))
    spent = medians(runs, rounds)
    rows = []
    for what in FIELDS:
        ours = spent[what, "shardflow"]
        peers = [f"{spent[what, way] / 1000:.3f} ({spent[what, way] / ours:.1f} x)" for way in WAYS]
        rows.append([f"image and {what}", f"{ours / 1000:.3f}", *peers])
    return markdown(("CPU-ms/image", "shardflow", *(f"torchvision, {way}" for way in WAYS)), rows)


def _annotated(pictures: Path) -> Path:
    """Write a mask and boxes beside each picture, pack all of it as it is, and return the dataset."""
    packed = pictures.parent / "annotated"
    if (packed / "shardflow.json").exists():
        return packed
    for number, path in enumerate(sorted(pictures.rglob("*.jpg"))):
        rng = np.random.default_rng(number)
        with Image.open(path) as image:
            width, height = image.size
        corners = np.sort(rng.uniform(0, (width, height), (rng.poisson(BOXES), 2, 2)), axis=1)
        boxes = corners.reshape(-1, 4).round(2)
        labels = rng.integers(CLASSES, size=len(boxes)).tolist()
        path.with_suffix(".json").write_text(json.dumps({"boxes": boxes.tolist(), "labels": labels}))
        mask = np.zeros((height, width), dtype=np.uint8)
        for (left, top, right, bottom), label in zip(boxes.astype(int).tolist(), labels, strict=True):
            y, x = np.ogrid[top:bottom, left:right]
            inside = ((2 * x - left - right) / (right - left + 1)) ** 2 + (
                (2 * y - top - bottom) / (bottom - top + 1)
            ) ** 2
            mask[top:bottom, left:right][inside < 1] = label + 1
        Image.fromarray(mask).save(path.with_suffix(".mask.png"))
    declared = shardflow.annotations.Boxes("json", "boxes", "xyxy", fields={"labels": "labels"})
    annotations = shardflow.annotations.Annotations(masks=("mask.png",), boxes=declared)
    shardflow.pack(pictures, packed, preset="original", annotations=annotations)
    return packed


class Files(Dataset[Any]):
    """Images with their boxes, or with their masks, as tv_tensors, transformed."""

    def __init__(self, pictures: Path, what: str, *, is_fast: bool) -> None:
        self._paths = sorted(pictures.rglob("*.jpg"))
        self._what, self._is_fast = what, is_fast
        # Parsed once, as COCO's annotations are.
        self._boxes = [json.loads(path.with_suffix(".json").read_text()) for path in self._paths]
        crop = [v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()]
        self._transform = v2.Compose([*crop, v2.SanitizeBoundingBoxes()] if what == "boxes" else crop)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> Any:
        path = self._paths[number]
        if self._is_fast:
            data = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
            image = tv_tensors.Image(decode_jpeg(data, mode=ImageReadMode.RGB))
        else:
            image = tv_tensors.Image(Image.open(path).convert("RGB"))
        if self._what == "mask":
            return self._transform(image, tv_tensors.Mask(Image.open(path.with_suffix(".mask.png"))))
        found = self._boxes[number]
        boxes = torch.tensor(found["boxes"]).reshape(-1, 4)
        target = {
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=image.shape[-2:]),
            "labels": torch.tensor(found["labels"], dtype=torch.int64),
        }
        return self._transform(image, target)


def _collated(samples: list[Any]) -> Any:
    images, targets = zip(*samples, strict=True)
    return torch.stack(images), torch.stack(targets) if isinstance(targets[0], torch.Tensor) else targets


def _torchvision(pictures: Path, what: str, *, is_fast: bool) -> Any:
    return DataLoader(
        Files(pictures, what, is_fast=is_fast),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        collate_fn=_collated,
        prefetch_factor=4,
        persistent_workers=True,
    )
