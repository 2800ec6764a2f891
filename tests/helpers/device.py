"""For tests of the device: loaders, transforms of each kind, images, keys, and a comparison of distributions."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import shardflow
from shardflow.device.transforms.mixup import MixingTransform
from shardflow.order import keyed_rng
from tests.helpers.making import jpeg

FIELDS = ("image", "label", "random_key")
KEYED: dict[str, Any] = {
    "flip": shardflow.device.RandomHorizontalFlip(),
    "crop": shardflow.device.RandomResizedCrop(12, hflip=0.5),
    "jitter": shardflow.device.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "jitter without hue": shardflow.device.ColorJitter(0.4, 0.0, 0.4),
    "erasing": shardflow.device.RandomErasing(0.7),
    "normalize": shardflow.device.Normalize(),
}
MIXING: dict[str, MixingTransform] = {
    "mixup": shardflow.device.MixUp(num_classes=9),
    "cutmix": shardflow.device.CutMix(num_classes=9),
    "cutmix per pair": shardflow.device.CutMix(alpha=0.3, per_pair=True),
    "one of": shardflow.device.OneOf(
        [shardflow.device.MixUp(alpha=0.2, num_classes=9), shardflow.device.CutMix(num_classes=9)]
    ),
}


def loader(url: Path, **options: Any) -> shardflow.Loader:
    """Return a loader of small crops, whose last batch is short."""
    options = {"batch_size": 7, "num_workers": 0, "tail": "short", "shuffle": shardflow.Shuffle(buffer=16), **options}
    return shardflow.Loader(url, **{"decoder": shardflow.decoders.RandomResizedCrop(12), **options})


def keyed_loader(url: Path, **options: Any) -> shardflow.Loader:
    """Return such a loader with the field `random_key`."""
    return loader(url, **{"fields": FIELDS, **options})


def state_after(batches: Any, count: int) -> dict[str, Any]:
    """Return the state of a prefetcher after so many batches."""
    for _ in itertools.islice(batches, count):
        pass
    state: dict[str, Any] = batches.state_dict()
    return state


def noise(count: int, height: int = 18, width: int = 23) -> torch.Tensor:
    """Return images of noise, uint8 [count, 3, height, width]."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(256, (count, 3, height, width), dtype=torch.uint8, generator=generator)


def png(number: int) -> bytes:
    """Return a photo-like PNG."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(jpeg(number, 30 + number))).save(buffer, "PNG")
    return buffer.getvalue()


def random_keys(count: int, seed: int = 0) -> torch.Tensor:
    """Return keys as a loader's field `random_key` has them: int64 [count]."""
    keys = keyed_rng.fold_array(keyed_rng.key(seed, "augment", 0), np.arange(count))
    return torch.from_numpy(keys.view(np.int64))


def annotated_batch(count: int, height: int, width: int, seed: int = 0) -> dict[str, Any]:
    """Return a batch as a loader makes it, of boxes of all kinds: some of no area, and images with none."""
    generator = torch.Generator().manual_seed(seed)
    corners = [torch.rand(number % 4, 2, 2, generator=generator).sort(dim=1).values for number in range(count)]
    boxes = [each.flatten(1) * torch.tensor([width, height] * 2) for each in corners]
    numbers = torch.arange(sum(map(len, boxes))).split([len(each) for each in boxes])
    return {
        "image": noise(count, height, width),
        "mask": torch.randint(256, (count, 1, height, width), dtype=torch.uint8, generator=generator),
        "boxes": boxes,
        "box_labels": list(numbers),
        "keypoints": [torch.rand(len(each), 3, 3, generator=generator) * 9 for each in boxes],
        "random_key": random_keys(count, seed),
    }


def kolmogorov_smirnov(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the greatest distance of two empirical distributions; for samples of one distribution rarely above 2."""
    values = torch.cat([ours, theirs]).sort().values.unique()
    first, second = (
        torch.searchsorted(x.sort().values, values, right=True) / len(x) for x in (ours.float(), theirs.float())
    )
    return float((first - second).abs().max()) * (len(ours) * len(theirs) / (len(ours) + len(theirs))) ** 0.5
