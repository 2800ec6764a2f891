"""The augmentation of the loaders that run the user's own.

There are two, both taken from torchvision's documentation. "pil" decodes with Pillow and normalises in the worker: the
classic ImageNet example. "tensors" decodes with torchvision and stays uint8 until the batch is in the main process,
which is a third cheaper than handing over floats.
"""

from __future__ import annotations

import io

import torch
from PIL import Image
from torchvision import transforms
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2

from .recipe import MEAN, SIZE, STD

_of_pil = transforms.Compose(
    [
        transforms.RandomResizedCrop(SIZE),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ]
)
_of_tensor = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()])
_to_float = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])


def pil(payload: bytes) -> torch.Tensor:
    """Return float32 [3, 224, 224], normalised."""
    return _of_pil(Image.open(io.BytesIO(payload)).convert("RGB"))


def tensors(payload: bytes) -> torch.Tensor:
    """Return uint8 [3, 224, 224]."""
    data = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    return _of_tensor(decode_jpeg(data, mode=ImageReadMode.RGB))


def tensors_float(payload: bytes) -> torch.Tensor:
    """Return float32 [3, 224, 224], normalised."""
    return _to_float(tensors(payload))


AUGMENTATIONS = {"pil": pil, "tensors": tensors, "tensors-float": tensors_float}
