"""The augmentation of one sample: the pixels that a loader returns for it in its first epochs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

from shardflow.dataset.dataset import Dataset
from shardflow.errors import ConfigError, DecodeError
from shardflow.loading.decoders import Decoder, RandomResizedCropDecoder, new
from shardflow.loading.loader import Loader
from shardflow.loading.sampler import Batch, augmentation_keys
from shardflow.loading.stages import Augment

from .contact_sheet import SIDE, ContactSheet, Tile, sample_tiles
from .sample_reader import RawSample, SampleReader


def augment_sample(dataset: Dataset, split: str, number: int, *, epochs: int, seed: int = 0) -> ContactSheet:
    """Return a sample as it was packed, and as the default decoder of the loader augments it in its first epochs."""
    sample = _read_sample(dataset, split, number, len(dataset[split]))
    images = _augment(sample, RandomResizedCropDecoder(SIDE), None, seed, epochs)
    subtitle = f"as packed, and cropped and flipped by a loader with seed {seed} in each epoch"
    return _with_tiles(dataset, split, sample, images, subtitle)


def augment_with_loader(loader: Loader, number: int, *, epochs: int) -> ContactSheet:
    """Return a sample as packed, and as this loader's decoder and transform augment it, pixel by pixel.

    The loader is not iterated. Steps that work on whole batches are not shown: `batch_transform`, and transforms on a
    device. If the loader has `samples_per_epoch`, the epochs are passes over the split.
    """
    described = loader.describe()
    sample = _read_sample(loader.dataset.dataset, loader.split.name, number, described["samples"])
    stages = loader.data_loader.dataset.pipeline  # type: ignore[attr-defined] # a wds.DataPipeline
    transform = next((stage for stage in stages if isinstance(stage, Augment)), None)
    images = _augment(sample, loader.decoder, transform, described["seed"], epochs)
    subtitle = "as packed, and as returned by the loader in each epoch"
    if described["samples_per_epoch"] is not None:
        subtitle = "as packed, and as returned by the loader in each pass over the split (here called epoch)"
    if described["batch_transform"] is not None:
        subtitle += ", before batch_transform"
    return _with_tiles(loader.dataset.dataset, loader.split.name, sample, images, subtitle)


def _read_sample(dataset: Dataset, split: str, number: int, total: int) -> RawSample:
    if not 0 <= number < total:
        raise ConfigError(f"there is no sample {number}: split {split!r} has the samples 0 to {total - 1}")
    (sample,) = SampleReader(dataset, split).samples([number])
    return sample


def _augment(
    sample: RawSample, decoder: Decoder, transform: Augment | None, seed: int, epochs: int
) -> list[list[torch.Tensor]]:
    """Return the views of a sample in each epoch, each [1 or 3, H, W]."""
    if sample.image is None:
        raise DecodeError(sample.problem or f"sample {sample.key} has no image, only {', '.join(sample.parts)}")
    augmented = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker: sums over pixels may depend on it in the last bit
    try:
        for epoch in range(epochs):
            keys = augmentation_keys(seed, epoch, np.array([sample.number]))
            unknown = np.zeros((1, 2), dtype=np.int64)
            images, _, failures = decoder([memoryview(bytearray(sample.image))], unknown, keys, new)
            if failures:
                raise failures[0]
            if transform is not None:
                zeros = np.zeros(1, dtype=np.int64)
                batch = Batch(
                    epoch=0, bucket=0, key=0, keys=keys, shards=zeros, records=zeros, valid=zeros == 0, empty=False
                )
                batch.images = images
                (batch,) = transform(iter([batch]))
                images = batch.images
            views = images if isinstance(images, tuple) else (images,)
            augmented.append([picture for view in views for picture in _pictures(view[0])])
    finally:
        torch.set_num_threads(threads)
    return augmented


def _pictures(image: object) -> list[torch.Tensor]:
    if isinstance(image, torch.Tensor) and image.ndim in (3, 4) and image.shape[-3] in (1, 3):
        return list(image if image.ndim == 4 else image[None])
    found = f"{_dtype(image)} {list(image.shape)}" if isinstance(image, torch.Tensor) else type(image).__name__
    raise ConfigError(
        f"the loader turns a sample into {found}, which is not a picture: expected a tensor [3, H, W], [1, H, W] or "
        "[views, 3, H, W]; for images that are decoded on a device, use RandomResizedCropDecoder in the preview"
    )


def _with_tiles(
    dataset: Dataset, split: str, sample: RawSample, epochs: Sequence[Sequence[torch.Tensor]], subtitle: str
) -> ContactSheet:
    """Return the sheet. Images that are not uint8 are drawn on one scale for all epochs, which the subtitle states."""
    low, high, images = 0.0, 255.0, [image for views in epochs for image in views]
    if any(image.dtype != torch.uint8 for image in images):
        values = torch.cat([image.flatten().double() for image in images])
        values = values[values.isfinite()]
        if len(values):
            low, high = values.min().item(), values.max().item()
        low, high = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
        subtitle += f"; black is {low:.3g}, white {high:.3g}"
    tiles = list(sample_tiles([sample], dataset.classes, dataset.manifest.annotations))
    for epoch, views in enumerate(epochs):
        for view, image in enumerate(views):
            title = f"epoch {epoch}" if len(views) == 1 else f"epoch {epoch}, view {view}"
            height, width = image.shape[1:]
            detail = f"{width} x {height}, {_dtype(image)}" + ("" if image.isfinite().all() else ", not all finite")
            tiles.append(Tile(title, detail, _picture(image, low, high)))
    return ContactSheet(f"Sample {sample.number} of {split}", subtitle, tiles)


def _picture(image: torch.Tensor, low: float, high: float) -> Image.Image:
    if image.dtype != torch.uint8:
        image = ((image.double() - low) / max(high - low, 1e-12)).nan_to_num(0, 1, 0).clamp(0, 1)
        image = (image * 255).round().to(torch.uint8)
    return Image.fromarray(image.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())


def _dtype(image: torch.Tensor) -> str:
    return str(image.dtype).removeprefix("torch.")
