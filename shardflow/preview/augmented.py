"""What the augmentation does to one image: the pixels that a loader hands out of it in its first epochs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from shardflow.dataset.dataset import Dataset
from shardflow.errors import ConfigError, DecodeError
from shardflow.loading.batch import Batch
from shardflow.loading.decoders import Decoder, RandomResizedCropDecoder, new
from shardflow.loading.loader import Loader
from shardflow.loading.sampler import augmentation_keys
from shardflow.loading.stages import Augment

from .sample_reader import Peeked, SampleReader
from .tile import SIDE, Tile, tiles_of


class Augmented(NamedTuple):
    """A sample as it was packed, and as it comes in each of the first epochs, with a heading and a line about it."""

    title: str
    subtitle: str
    tiles: list[Tile]


def augmented(dataset: Dataset, split: str, number: int, *, versions: int, seed: int = 0) -> Augmented:
    """Return a sample as the loader's default decoder makes it in its first epochs.

    Args:
        dataset: Where it lies.
        split: The name of its split.
        number: Its number there.
        versions: How many epochs.
        seed: The loader's.

    Raises:
        ConfigError: There is no such split or sample.
        DecodeError: It has no image, or one that does not decode.
    """
    sample = _peeked(dataset, split, number, len(dataset[split]))
    images = _made(sample, RandomResizedCropDecoder(SIDE), None, seed, versions)
    subtitle = f"as packed, and as a loader with seed {seed} crops and mirrors it in each epoch"
    return _laid_out(dataset, split, sample, images, subtitle)


def augmented_by(loader: Loader, number: int, *, versions: int) -> Augmented:
    """Return a sample as this loader's decoder and transform make it in its first epochs, pixel by pixel.

    What comes after them takes a whole batch and is not shown: `batch_transform`, and stages on a device.

    Args:
        loader: It is not iterated.
        number: The sample's number in the loader's split.
        versions: How many epochs; where the loader has `samples_per_epoch`, how many passes over the split.

    Raises:
        ConfigError: The loader has no such sample, or what it makes of it is no picture.
        DecodeError: The sample has no image, or one that does not decode.
    """
    described = loader.describe()
    sample = _peeked(loader.dataset, loader.split.name, number, described["samples"])
    stages = loader.data_loader.dataset.pipeline  # type: ignore[attr-defined] # a wds.DataPipeline
    transform = next((stage for stage in stages if isinstance(stage, Augment)), None)
    images = _made(sample, loader.decoder, transform, described["seed"], versions)
    subtitle = "as packed, and as the loader hands it out in each epoch"
    if described["samples_per_epoch"] is not None:
        subtitle = "as packed, and as the loader hands it out in each pass over the split (here called epoch)"
    if described["batch_transform"] is not None:
        subtitle += ", before batch_transform"
    return _laid_out(loader.dataset, loader.split.name, sample, images, subtitle)


def _peeked(dataset: Dataset, split: str, number: int, total: int) -> Peeked:
    if not 0 <= number < total:
        raise ConfigError(f"there is no sample {number}: split {split!r} has the samples 0 to {total - 1}")
    (sample,) = SampleReader(dataset, split).samples([number])
    return sample


def _made(sample: Peeked, decoder: Decoder, transform: Augment | None, seed: int, versions: int) -> list[torch.Tensor]:
    """Return what is made of a sample in each epoch: [views, 1 or 3, H, W]."""
    if sample.image is None:
        raise DecodeError(sample.problem or f"sample {sample.key} has no image, only {', '.join(sample.parts)}")
    made = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker: sums over pixels may differ by a last bit
    try:
        for epoch in range(versions):
            keys = augmentation_keys(seed, epoch, np.array([sample.number]))
            unknown = np.zeros((1, 2), dtype=np.int64)
            images, _, failures = decoder([memoryview(bytearray(sample.image))], unknown, keys, new)
            if failures:
                raise failures[0]
            if transform is not None:
                nowhere = np.zeros(1, dtype=np.int64)
                one = Batch(key=0, keys=keys, shards=nowhere, records=nowhere, valid=nowhere == 0, empty=False)
                one.images = images
                (one,) = transform(iter([one]))
                images = one.images
            made.append(_views(images[0]))
    finally:
        torch.set_num_threads(threads)
    return made


def _views(image: object) -> torch.Tensor:
    """Return what the loader made of one sample as pictures: one, or several of one size."""
    if isinstance(image, torch.Tensor) and image.ndim in (3, 4) and image.shape[-3] in (1, 3):
        return image if image.ndim == 4 else image[None]
    found = f"{_kind(image)} {list(image.shape)}" if isinstance(image, torch.Tensor) else type(image).__name__
    raise ConfigError(
        f"the loader makes {found} of a sample, which is no picture: expected a tensor [3, H, W], [1, H, W], or "
        "[views, 3, H, W]; what is decoded on a device can be shown with RandomResizedCropDecoder in its place"
    )


def _laid_out(dataset: Dataset, split: str, sample: Peeked, images: Sequence[torch.Tensor], subtitle: str) -> Augmented:
    """Return the tiles; other numbers than bytes are drawn on one scale for all of them, which the subtitle names."""
    low, high = 0.0, 255.0
    if any(image.dtype != torch.uint8 for image in images):
        values = torch.cat([image.flatten().double() for image in images])
        values = values[values.isfinite()]
        if len(values):
            low, high = values.min().item(), values.max().item()
        low, high = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
        subtitle += f"; black is {low:.3g}, white {high:.3g}"
    tiles = list(tiles_of([sample], dataset.classes))
    for epoch, views in enumerate(images):
        for view, image in enumerate(views):
            title = f"epoch {epoch}" if len(views) == 1 else f"epoch {epoch}, view {view}"
            height, width = image.shape[1:]
            detail = f"{width} x {height}, {_kind(image)}" + ("" if image.isfinite().all() else ", not all finite")
            tiles.append(Tile(title=title, detail=detail, picture=_picture(image, low, high)))
    return Augmented(f"Sample {sample.number} of {split}", subtitle, tiles)


def _picture(image: torch.Tensor, low: float, high: float) -> Image.Image:
    """Return a picture of [1 or 3, H, W], the numbers low … high from black to white."""
    if image.dtype != torch.uint8:
        image = ((image.double() - low) / max(high - low, 1e-12)).nan_to_num(0, 1, 0).clamp(0, 1)
        image = (image * 255).round().to(torch.uint8)
    pixels = image.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()
    return Image.fromarray(pixels)


def _kind(image: torch.Tensor) -> str:
    return str(image.dtype).removeprefix("torch.")
