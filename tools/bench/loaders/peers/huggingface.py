"""Hugging Face datasets: an Arrow file mapped into memory, read by number in PyTorch's DataLoader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import torch
from torch.utils.data import DataLoader

from . import Start
from .augmentations import AUGMENTATIONS
from .recipe import BATCH, WORKERS


def prepare(pictures: Path, data: Path) -> None:
    """Write an Arrow file with the JPEG bytes as they are."""
    paths = sorted(pictures.rglob("*.jpg"))
    columns = {"image": [path.read_bytes() for path in paths], "label": [int(path.stem) for path in paths]}
    datasets.Dataset.from_dict(columns).save_to_disk(str(data / "arrow"))


def open_loader(data: Path, variant: str) -> Start:
    """`variant` names the augmentation."""
    augmentation = AUGMENTATIONS[variant]

    def transformed(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {"image": [augmentation(image) for image in columns["image"]], "label": columns["label"]}

    def collated(samples: list[dict[str, Any]]) -> tuple[torch.Tensor, list[int]]:
        return torch.utils.data.default_collate([(sample["image"], sample["label"]) for sample in samples])

    dataset = datasets.load_from_disk(str(data / "arrow")).with_transform(transformed)
    loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True, collate_fn=collated)
    return lambda: iter(loader)
