"""torchvision's ImageFolder in PyTorch's DataLoader."""

from __future__ import annotations

import os
from pathlib import Path

from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from . import Start
from .augmentations import AUGMENTATIONS
from .recipe import BATCH, WORKERS


def prepare(pictures: Path, data: Path) -> None:
    """Link the files."""
    for path in pictures.rglob("*.jpg"):
        link = data / path.relative_to(pictures)
        link.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, link)


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


def open_loader(data: Path, variant: str) -> Start:
    """`variant` names the augmentation."""
    dataset = ImageFolder(str(data), transform=AUGMENTATIONS[variant], loader=_read)
    dataset.samples = [(path, int(Path(path).stem)) for path, _ in dataset.samples]
    loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)
    return lambda: iter(loader)
