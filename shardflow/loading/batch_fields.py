"""The fields of a batch, made from the parts that the stages read, decoded and annotated."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from shardflow.dataset.sample import Sample
from shardflow.errors import ConfigError, DecodeError, ShardflowError
from shardflow.formats.labels import CLASS_PART, LABEL_PARTS, parse_labels
from shardflow.geometry.crops import Crops

from .batch import Batch
from .column_fields import collate_column
from .decoders.decoder import Allocator, allocate, as_views
from .fields import CROP_FIELDS
from .padding import PADDING_FIELDS, PATCH_FIELDS, Padding, cumulative_patches, image_sizes, patch_positions, pixel_mask
from .ragged_images import RaggedImages, cut_patches
from .source import Source


def batch_field(field: str, batch: Batch, sources: Sequence[Source], allocator: Allocator = allocate) -> Any:
    """Return one field of a batch: a tensor or a list with one entry per sample; for views, a tuple of these."""
    if field in batch.returned:
        return batch.returned[field]
    padding = sources[batch.sources[0]].decoder.padding
    if field == "image":
        views = tuple(_join(images, batch.samples, padding, allocator) for images in as_views(batch.images))
        return views if isinstance(batch.images, tuple) else views[0]
    if field in sources[batch.sources[0]].columns:
        return collate_column(field, batch, [source.columns for source in sources])
    if batch.annotations and field in batch.annotations[0]:
        views = tuple(view[field] for view in batch.annotations)
        kind = sources[batch.sources[0]].annotations.kinds.get(field)
        if kind in ("mask", "masks"):
            join: Any = padding.join_masks if kind == "mask" else padding.pad_box_masks
            views = tuple(map(join, views))
        return views if isinstance(batch.images, tuple) else views[0]
    if field in CROP_FIELDS:
        columns = (each.flip.copy() if field == "flipped" else each.shown for each in crops_of(batch, sources, [field]))
        views = tuple(map(torch.from_numpy, columns))
        return views if isinstance(batch.crops, tuple) else views[0]
    if field in PADDING_FIELDS:
        sizes = _image_sizes(batch)
        return sizes if field == "image_size" else pixel_mask(sizes, *padding.size(batch.images))
    if field in PATCH_FIELDS:
        sizes = _image_sizes(batch)
        return (cumulative_patches if field == "cu_seqlens" else patch_positions)(sizes, padding.patch or 1)
    if field == "bin":
        return torch.from_numpy(batch.bins)
    if field == "valid":
        return torch.from_numpy(batch.valid)
    if field == "random_key":
        return torch.from_numpy(batch.keys.view(np.int64))  # torch lacks arithmetic on uint64
    if field == "source":
        return torch.tensor(batch.sources, dtype=torch.int64, device="cpu")
    if field == "index":
        shards, records = np.array([(sample.shard, sample.record) for sample in batch.samples], dtype=np.int64).T
        numbers = np.empty_like(shards)
        for number in set(batch.sources):
            here = np.array(batch.sources) == number
            numbers[here] = sources[number].split.first_sample(shards[here]) + records[here]
        return torch.from_numpy(numbers)
    if field == "key":
        return [sample.key for sample in batch.samples]
    if field == "label":
        labels = [_labels(sample, field)[0] for sample in batch.samples]
        return torch.tensor(labels, dtype=torch.int64, device="cpu")
    if field == "labels":
        encoded = torch.zeros(len(batch.samples), sources[batch.sources[0]].classes, dtype=torch.float32, device="cpu")
        for row, sample in zip(encoded, batch.samples, strict=True):
            row[list(_labels(sample, field, encoded.shape[1]))] = 1
        return encoded
    pairs = zip(batch.sources, batch.samples, strict=True)
    return [part_value(sample, field, sources[number].columns.of_parts) for number, sample in pairs]


def crops_of(batch: Batch, sources: Sequence[Source], fields: Sequence[str]) -> tuple[Crops, ...]:
    """Return the crops of each view of a batch; ConfigError if its decoder does not return them."""
    if batch.crops is not None:
        return as_views(batch.crops)
    decoders = [source.decoder for source in sources]
    names, found = ", ".join(fields), ", ".join(dict.fromkeys(type(decoder).__name__ for decoder in decoders))
    if any(decoder != decoders[0] for decoder in decoders):
        raise ConfigError(f"fields {names} need equal decoders in a mix by sample, found {found}")
    raise ConfigError(
        f"fields {names} follow the crops of the images, but {found} does not return them; use RandomResizedCrop, "
        "CenterCrop or Image of shardflow.decoders, or return Crops from its `plan`"
    )


def parsed_labels(sample: Sample, part: str, classes: int | None = None) -> tuple[int, ...]:
    """Return the labels in a part of a sample."""
    try:
        return parse_labels(part, _payload(sample, part), classes=classes)
    except DecodeError as error:
        raise sample.with_sample(DecodeError(f"{error}; run `shardflow verify`")) from error


def _labels(sample: Sample, field: str, classes: int = 0) -> tuple[int, ...]:
    """Return the labels of a sample for the field "label", or for "labels", which has a place for each class."""
    if field == "label":
        return parsed_labels(sample, "cls")
    return parsed_labels(sample, next((part for part in LABEL_PARTS if part in sample.parts), CLASS_PART), classes)


def unparsable(batch: Batch, sources: Sequence[Source]) -> dict[int, ShardflowError]:
    """Return the errors of the samples with a field that cannot be parsed and whose sources have `max_errors`."""
    failures: dict[int, ShardflowError] = {}
    for index, (number, sample) in enumerate(zip(batch.sources, batch.samples, strict=True)):
        for field in sources[number].fields if sources[number].max_errors else ():
            try:
                if field in ("label", "labels"):
                    _labels(sample, field, sources[number].classes)
                elif field in sample.parts:
                    sample.value(field)
            except DecodeError as error:
                failures[index] = error
    return failures


def part_value(sample: Sample, part: str, defaults: Mapping[str, Any]) -> Any:
    """Return the value of a part of a sample, or its default; ConfigError if it has neither."""
    if part not in sample.parts and part in defaults:
        return copy.deepcopy(defaults[part])  # a transform may write into it
    _payload(sample, part, f", or fill it in by columns.Filled({part!r}, default)")
    try:
        return sample.value(part)
    except DecodeError as error:
        error.args = (f"{error}; leave the sample out by samplers.Subset(condition), or let max_errors= replace it",)
        raise


def _payload(sample: Sample, part: str, remedy: str = "") -> memoryview:
    if part not in sample.parts:
        found = f", only {', '.join(sample.parts)}" if sample.parts else ""  # of the parts that the fields need
        several = ' to "labels"' * (part == CLASS_PART and not {*LABEL_PARTS}.isdisjoint(sample.parts))
        message = f"the sample has no part {part!r}{found}; change `fields`{several}{remedy}"
        raise sample.with_sample(ConfigError(message))
    return sample.parts[part]


def _join(images: Any, samples: Sequence[Sample], padding: Padding, allocator: Allocator) -> Any:
    if isinstance(images, torch.Tensor):
        return images
    if isinstance(images, RaggedImages):
        return images.patches if padding.patch else list(images)
    tensors = _tensors(images, samples)
    return cut_patches(tensors, padding.patch, allocator).patches if padding.patch else padding.join(tensors)


def _image_sizes(batch: Batch) -> torch.Tensor:
    """Return height and width of each image: int64 [B, 2]."""
    if isinstance(batch.images, RaggedImages):
        return torch.from_numpy(batch.images.sizes)
    return image_sizes(_tensors(batch.images, batch.samples))


def _tensors(images: Sequence[Any], samples: Sequence[Sample]) -> Sequence[torch.Tensor]:
    for sample, image in zip(samples, images, strict=True):
        if not isinstance(image, torch.Tensor):
            raise sample.with_sample(ConfigError(_not_a_tensor(image)))
    return images


def _not_a_tensor(image: Any) -> str:
    kind = type(image)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    remedy = ""
    if image is None:
        remedy = " (does it lack a `return`?)"
    elif not isinstance(image, (int, float, str, tuple, list, dict)):
        remedy = " (end it with v2.ToImage() or torch.from_numpy)"
    return f"transform must return a tensor; got {'None' if image is None else name}{remedy}"
