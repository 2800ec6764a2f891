"""The augmentation of one sample: the pixels and annotations that a loader returns for it in its first epochs."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Collection, Mapping, Sequence

import torch
from PIL import Image

from shardflow.dataset.open_dataset import Dataset, open_dataset
from shardflow.dataset.sample import Sample
from shardflow.errors import ConfigError, DecodeError, ShardflowError
from shardflow.formats.coordinates import Coordinates
from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.geometry.objects import BOXES, KEYPOINTS
from shardflow.loading.annotation_fields import field_parts
from shardflow.loading.decoders.decoder import as_views
from shardflow.loading.decoders.standard_crops import RandomResizedCrop
from shardflow.loading.loader import Loader
from shardflow.loading.source import IMAGES

from .annotation_overlay import draw_arrays
from .contact_sheet import ContactSheet, Tile, sample_tiles
from .sample_reader import SampleReader, raw_sample

_CROWDS = "box_iscrowd"


def training_loader(url: str | os.PathLike[str], split: str, seed: int = 0) -> Loader:
    """Return a loader of a dataset's images and annotations, with the default crop for training."""
    dataset = open_dataset(url)
    declared, rows = dataset.manifest.annotations, dataset[split].reader.rows(0)
    fields = [IMAGES] * bool(declared.images)
    if rows is None or not fields or rows.parts() & IMAGE_PARTS:  # documents have no first image
        fields = ["image", *(field for field in field_parts(declared) if field != _CROWDS), *fields]
    return Loader(url, split=split, batch_size=1, decoder=RandomResizedCrop(), fields=fields, seed=seed, num_workers=0)


def augment_sample(loader: Loader, number: int, *, epochs: int) -> ContactSheet:
    """Return a sample as packed, and as the loader's workers make it in each epoch, with its annotations.

    The loader is not iterated. Steps on whole batches are not shown: padding, `batch_transform`, and transforms on a
    device. If the loader has `samples_per_epoch`, an epoch here is a pass over the split.

    Raises:
        ConfigError: `loader` is not a `Loader`, the sample does not exist, or the loader does not return pictures.
        DecodeError: The sample has no image.
    """
    if not isinstance(loader, Loader):
        raise ConfigError(f"the preview needs a Loader, found {loader!r:.80}; for a Mix, give one of its loaders")
    source, dataset, split = loader.source, loader.dataset.dataset, loader.split.name
    sample = _read_sample(dataset, split, number, len(loader.dataset))
    found = [loader.explain(number, epoch=epoch, sample=sample) for epoch in range(epochs)]
    subtitle = "as packed, and as returned by the loader in each epoch"
    if source.epochs.samples_per_epoch is not None:
        subtitle = "as packed, and as returned by the loader in each pass over the split (here called epoch)"
    if source.batch_transform is not None:
        subtitle += ", before batch_transform"
    pictures = [[] if each is None else [view for image in each.images for view in _pictures(image)] for each in found]
    further = [[] if each is None else [*itertools.chain(*as_views(each.returned.get(IMAGES, ())))] for each in found]
    low, high, scale = _scale([image for views in (*pictures, *further) for image in views])
    tiles = list(sample_tiles([raw_sample(number, sample)], dataset.classes, dataset.manifest.annotations))
    for epoch, (augmented, views) in enumerate(zip(found, pictures, strict=True)):
        if augmented is None:
            tiles.append(Tile(f"epoch {epoch}", "without this sample", None))
        for view, image in enumerate(views):
            title = f"epoch {epoch}" if len(views) == 1 else f"epoch {epoch}, view {view}"
            height, width = image.shape[1:]
            detail = f"{width} x {height}, {_dtype(image)}" + ("" if image.isfinite().all() else ", not all finite")
            picture = _picture(image, low, high)
            if augmented is not None and len(augmented.annotations) == len(views):
                picture, drawn = _with_annotations(picture, augmented.annotations[view], loader.annotations.masks)
                detail += f", {drawn}" * bool(drawn)
            tiles.append(Tile(title, detail, picture))
        for place, image in enumerate(further[epoch]):
            detail = f"{image.shape[2]} x {image.shape[1]}, {_dtype(image)}"
            tiles.append(Tile(f"epoch {epoch}, {IMAGES}[{place}]", detail, _picture(image, low, high)))
    title = f"Sample {number} of {split}"
    with contextlib.suppress(ShardflowError):  # tars of other tools have no receipts
        title += f", from {dataset[split].source(number)}"
    return ContactSheet(title, subtitle + scale, tiles)


def _read_sample(dataset: Dataset, split: str, number: int, total: int) -> Sample:
    if not 0 <= number < total:
        raise ConfigError(f"split {split!r} has no sample {number}; its samples are 0 to {total - 1}")
    sample = SampleReader(dataset, split).read(number)
    if not IMAGE_PARTS.intersection(sample.parts) and not dataset.manifest.annotations.images:
        raise DecodeError(f"sample {sample.key} has no image, only {', '.join(sample.parts)}")
    return sample


def _pictures(image: object) -> list[torch.Tensor]:
    if isinstance(image, torch.Tensor) and image.ndim in (3, 4) and image.shape[-3] in (1, 3):
        return list(image if image.ndim == 4 else image[None])
    found = f"{_dtype(image)} {list(image.shape)}" if isinstance(image, torch.Tensor) else type(image).__name__
    raise ConfigError(
        f"the loader turns a sample into {found}, not a picture; expected a tensor [3, H, W], [1, H, W] or "
        "[views, 3, H, W]; for images that are decoded on a device, use decoders.RandomResizedCrop in the preview"
    )


def _scale(images: Sequence[torch.Tensor]) -> tuple[float, float, str]:
    """Return the values shown as black and white in all images, and a note if they are not 0 and 255."""
    if all(image.dtype == torch.uint8 for image in images):
        return 0.0, 255.0, ""
    values = torch.cat([image.flatten().double() for image in images])
    values = values[values.isfinite()]
    low, high = (values.min().item(), values.max().item()) if len(values) else (0.0, 255.0)
    low, high = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
    return low, high, f"; black is {low:.3g}, white {high:.3g}"


def _with_annotations(
    picture: Image.Image, annotations: Mapping[str, torch.Tensor], masked: Collection[str]
) -> tuple[Image.Image, str]:
    """Return a picture with the annotations over it, and their names."""
    arrays = {field: values.numpy() for field, values in annotations.items()}
    masks = [arrays.pop(field) for field in masked]
    if not masks and not arrays.keys() & {BOXES, KEYPOINTS}:
        return picture, ""
    fields = {field.removeprefix("box_"): values for field, values in arrays.items() if field.startswith("box_")}
    return draw_arrays(picture, masks, Coordinates(arrays.get(BOXES), fields, arrays.get(KEYPOINTS)))


def _picture(image: torch.Tensor, low: float, high: float) -> Image.Image:
    if image.dtype != torch.uint8:
        image = ((image.double() - low) / max(high - low, 1e-12)).nan_to_num(0, 1, 0).clamp(0, 1)
        image = (image * 255).round().to(torch.uint8)
    return Image.fromarray(image.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())


def _dtype(image: torch.Tensor) -> str:
    return str(image.dtype).removeprefix("torch.")
