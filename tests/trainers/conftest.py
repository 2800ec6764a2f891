"""The pictures that the trainers train on."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import shardflow

CLASSES = 3
SPLITS = {"train": 72, "val": 27}


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures in folders by split and class, which a net tells apart by their colour."""
    root, rng = tmp_path_factory.mktemp("trainers") / "photos", np.random.default_rng(0)
    for split, label in itertools.product(SPLITS, range(CLASSES)):
        (root / f"{split}/class{label}").mkdir(parents=True)
        for number in range(SPLITS[split] // CLASSES):
            pixels = rng.integers(0, 120, (40, 40, 3), dtype=np.uint8)
            pixels[..., label] += 100
            Image.fromarray(pixels).save(root / f"{split}/class{label}/{number}.jpg", quality=95)
    return root


@pytest.fixture(scope="session")
def packed(photos: Path) -> Path:
    """The same, packed as they are."""
    root = photos.with_name("packed")
    shardflow.pack(photos, root, preset="original", shard_samples=10, workers=1)
    return root
