"""FFCV: its own file format, decoding and augmenting in compiled threads.

FFCV decodes the whole image for a random crop, and it encodes the pictures anew when it writes them (same quality). The
cap on the long side that its ImageNet recipe uses is left out, so that its pictures have as many pixels as the others'.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.basics import IntDecoder
from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from PIL import Image

from . import Start
from .recipe import BATCH, MEAN, SIZE, STD, WORKERS


class _Pictures:
    def __init__(self, pictures: Path) -> None:
        self._paths = sorted(pictures.rglob("*.jpg"), key=lambda path: path.stem)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> tuple[Image.Image, int]:
        path = self._paths[number]
        return Image.open(path).convert("RGB"), int(path.stem)


def prepare(pictures: Path, data: Path) -> None:
    """Write the file."""
    fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=90), "label": IntField()}
    DatasetWriter(str(data / "pictures.beton"), fields, num_workers=WORKERS).from_indexed_dataset(_Pictures(pictures))


def open_loader(data: Path, variant: str) -> Start:
    """`variant` is "float", normalised in FFCV's threads by its own table, or "uint8"."""
    mean, std = (255 * np.array(values) for values in (MEAN, STD))
    normalise = [NormalizeImage(mean, std, np.float32)] if variant == "float" else []
    decoder = RandomResizedCropRGBImageDecoder((SIZE, SIZE))
    loader = Loader(
        str(data / "pictures.beton"),
        batch_size=BATCH,
        num_workers=WORKERS,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines={
            "image": [decoder, RandomHorizontalFlip(), *normalise, ToTensor(), ToTorchImage()],
            "label": [IntDecoder(), ToTensor()],
        },
    )

    def epoch() -> Iterator[tuple[torch.Tensor, np.ndarray]]:
        for images, labels in loader:
            yield images, labels[:, 0]

    return epoch
