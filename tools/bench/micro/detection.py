"""The mean average precision of a small detector that torchvision's reference recipe feeds, and of one on shardflow.

Both train on the same drawn scenes of three kinds of objects, with the same model, its first weights, SGD, epochs and
transforms: `RandomIoUCrop`, a flip and `SanitizeBoundingBoxes`. One reads them by torchvision's `CocoDetection`,
wrapped for tv_tensors, the other from shards by a `Loader`; each evaluates on its own feed. A round is another seed,
and takes 90 CPU-s a feed. Needs `pip install pycocotools`.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import ImageDraw
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import CocoDetection, wrap_dataset_for_transforms_v2
from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
from torchvision.models.detection.ssd import SSD
from torchvision.transforms import v2

import shardflow
from bench.report import markdown

SIDE, SCENES, BATCH, EPOCHS, RATE = 96, {"train": 256, "val": 96}, 16, 12, 0.04
CLASSES = ("disc", "square", "triangle")

Batches = Iterable[tuple[Any, list[dict[str, torch.Tensor]]]]


def measure(folder: str, rounds: int) -> str:
    """Return the table."""
    torch.set_num_threads(1)
    scenes, packed = Path(folder) / "scenes", Path(folder) / "scenes-packed"
    if not packed.exists():
        for number, (split, count) in enumerate(SCENES.items()):
            _draw(scenes, split, count, np.random.default_rng(number))
        shardflow.pack(scenes / "train.json", packed, preset="original")
        shardflow.extend(scenes / "val.json", packed)
    feeds = {
        "`CocoDetection`, v2 transforms, `DataLoader`": lambda seed: [_coco(scenes, split, seed) for split in SCENES],
        "`shardflow.Loader`, the same transforms": lambda seed: [_shards(packed, split, seed) for split in SCENES],
    }
    rows = []
    for name, feed in feeds.items():
        begun = time.process_time()
        found = [_precision(feed, seed) for seed in range(rounds)]
        cells = [f"{statistics.mean(each):.3f} ± {statistics.pstdev(each):.3f}" for each in zip(*found, strict=True)]
        rows.append([name, *cells, f"{(time.process_time() - begun) / rounds:.0f}"])
    return markdown(("feed", "mAP", "mAP at IoU 0.5", "CPU-s"), rows)


def _draw(folder: Path, split: str, count: int, rng: np.random.Generator) -> None:
    """Write scenes, and their COCO file."""
    from shardflow.demo.pictures import draw
    from shardflow.demo.scenes import SCENES as KINDS

    (folder / split).mkdir(parents=True)
    grounds = [draw(kind, int(rng.integers(1000))) for kind in KINDS]
    images, objects = [], []
    for number in range(count):
        ground = grounds[number % len(grounds)]
        left, top = (int(rng.integers(0, side - SIDE)) for side in ground.size)
        image = ground.crop((left, top, left + SIDE, top + SIDE)).convert("RGB")
        pen = ImageDraw.Draw(image)
        for _ in range(rng.integers(1, 4)):
            kind, side = int(rng.integers(3)), int(rng.integers(20, 48))
            x, y = (int(rng.integers(0, SIDE - side)) for _ in range(2))
            shape = [(x, y), (x + side - 1, y + side - 1)]
            colour = tuple(rng.integers(0, 256, 3).tolist())
            if kind == 2:
                pen.polygon([(x, y + side - 1), (x + side - 1, y + side - 1), (x + side // 2, y)], colour, "black")
            else:
                (pen.ellipse, pen.rectangle)[kind](shape, colour, "black")
            box = {"bbox": [x, y, side, side], "area": side * side, "category_id": kind + 1}
            objects.append({"id": len(objects) + 1, "image_id": number, "iscrowd": 0, **box})
        name = f"{split}/{number:04}.jpg"
        image.save(folder / name, quality=95)
        images.append({"id": number, "file_name": name, "width": SIDE, "height": SIDE})
    categories = [{"id": number + 1, "name": name} for number, name in enumerate(CLASSES)]
    found = {"images": images, "annotations": objects, "categories": categories}
    (folder / f"{split}.json").write_text(json.dumps(found))


def _transforms(split: str, labels: str) -> v2.Compose:
    """Return the preset "ssdlite" of torchvision's references, of which "val" has the last step."""
    sanitize = v2.SanitizeBoundingBoxes(labels_getter=lambda sample: sample[labels])
    steps = [v2.RandomIoUCrop(), v2.RandomHorizontalFlip(), sanitize] if split == "train" else []
    return v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True)])


def _coco(scenes: Path, split: str, seed: int) -> Callable[[], Batches]:
    chain = _transforms(split, "labels")

    def transform(image: Any, target: dict[str, Any]) -> Any:
        done = chain({"image": v2.functional.to_image(image), **target})
        return done.pop("image"), done

    files = CocoDetection(scenes, scenes / f"{split}.json", transforms=transform)
    files = wrap_dataset_for_transforms_v2(files, target_keys=("boxes", "labels"))
    generator = torch.Generator().manual_seed(seed)
    is_train = split == "train"
    return lambda: DataLoader(
        files, BATCH, shuffle=is_train, drop_last=is_train, generator=generator, collate_fn=_columns
    )


def _columns(rows: list[Any]) -> Any:
    return zip(*rows, strict=True)


def _shards(packed: Path, split: str, seed: int) -> Callable[[], Batches]:
    loader = shardflow.Loader(
        packed,
        split=split,
        batch_size=BATCH,
        decoder=shardflow.decoders.Image(stack=False),
        transform=_transforms(split, "box_labels"),
        fields=("image", "boxes", "box_labels"),
        shuffle=split == "train",
        tail="drop" if split == "train" else "short",
        seed=seed,
        num_workers=0,
    )

    def batches() -> Batches:
        for images, boxes, labels in loader:
            yield images, [{"boxes": own, "labels": each + 1} for own, each in zip(boxes, labels, strict=True)]

    return batches


def _precision(feed: Callable[[int], list[Callable[[], Batches]]], seed: int) -> tuple[float, float]:
    """Return the mAP of a run, as COCO defines it, and that of boxes that overlap by half."""
    from torchmetrics.detection import MeanAveragePrecision

    torch.manual_seed(seed)
    anchors = DefaultBoxGenerator([[2]] * 3, 0.2, 0.6)
    model = SSD(_Backbone(), anchors, (SIDE, SIDE), len(CLASSES) + 1, topk_candidates=50)
    train, val = feed(seed)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9, weight_decay=5e-4)
    steps = EPOCHS * (SCENES["train"] // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps, pct_start=0.1)
    model.train()
    for _ in range(EPOCHS):
        for images, targets in train():
            loss = sum(model(list(images), list(targets)).values())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10)
            optimizer.step()
            schedule.step()
    model.eval()
    metric = MeanAveragePrecision()
    with torch.no_grad():
        for images, targets in val():
            metric.update(model(list(images)), list(targets))
    found = metric.compute()
    return float(found["map"]), float(found["map_50"])


class _Backbone(nn.Module):
    """Three maps of features, at an eighth, a sixteenth and a thirty-second of the sides."""

    out_channels = (64, 96, 96)

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_block(3, 16), _block(16, 32), _block(32, 64), _block(64, 64, 1))
        self.middle, self.last = _block(64, 96), _block(96, 96)

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the maps."""
        fine = self.stem(images)
        middle = self.middle(fine)
        return OrderedDict([("fine", fine), ("middle", middle), ("coarse", self.last(middle))])


def _block(channels: int, out: int, stride: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())
