"""What is tested on every device: stages of each kind, and pictures for them."""

from __future__ import annotations

import io
from typing import Any

import torch
from PIL import Image

import shardflow
from shardflow.device.transforms.transform import BlendStage
from tests.helpers.making import jpeg

FIELDS = ("image", "label", "random_key")
KEYED: dict[str, Any] = {
    "flip": shardflow.RandomHorizontalFlip(),
    "crop": shardflow.RandomResizedCrop(12, hflip=0.5),
    "jitter": shardflow.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "jitter without hue": shardflow.ColorJitter(0.4, 0.0, 0.4),
    "erasing": shardflow.RandomErasing(0.7),
    "normalize": shardflow.Normalize(),
}
BLENDS: dict[str, BlendStage] = {
    "mixup": shardflow.MixUp(num_classes=9),
    "cutmix": shardflow.CutMix(num_classes=9),
    "cutmix pairs": shardflow.CutMix(alpha=0.3, per_pair=True),
    "one of": shardflow.OneOf([shardflow.MixUp(alpha=0.2, num_classes=9), shardflow.CutMix(num_classes=9)]),
}


def pictures(count: int, height: int = 18, width: int = 23) -> torch.Tensor:
    """Images of noise, uint8."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(256, (count, 3, height, width), dtype=torch.uint8, generator=generator)


def png(number: int) -> bytes:
    """A photo-like PNG."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(jpeg(number, 30 + number))).save(buffer, "PNG")
    return buffer.getvalue()
