"""The stages between the sampler and the DataLoader's queue: read, decode, augment, collate.

Each is a WebDataset pipeline stage: called with the iterator of the stage before it, it returns an iterator.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from shardflow.dataset.dataset import Split
from shardflow.dataset.sample import Sample
from shardflow.errors import ConfigError, DecodeError, IntegrityError, ShardflowError
from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.formats.labels import LABEL_PARTS, parse_labels

from .decoders import Decoder, Empty, Pixels
from .fork_rng import fork_rng, reseed
from .pixel_cache import PixelCache
from .sampler import Batch

Batches = Iterator[Batch]

_DAMAGED = Sample({}, (0, 0), 0, 0, "", "")  # in the place of a sample that could not be read, until `substitute`


class Read:
    """Fills in `samples`, each part checked by its CRC-32, and `pixels`.

    With the field "key", a sample whose key cannot be read is damaged. The encoded files of images in the pixel cache
    are not checked, unless they are among the fields.
    """

    def __init__(
        self, split: Split, *, fields: Sequence[str] = (), substitute: bool, pixel_cache: PixelCache | None = None
    ) -> None:
        self._reader, self._keys, self._substitute = split.reader, "key" in fields, substitute
        self._pixel_cache, self._unused_parts = pixel_cache, IMAGE_PARTS.difference(fields)

    def __call__(self, batches: Batches) -> Batches:
        """Return the batches, read."""
        for batch in batches:
            failures: dict[int, ShardflowError] = {}
            places = zip(batch.shards.tolist(), batch.records.tolist(), strict=True)
            for index, (shard, record) in enumerate(places):
                sample = _DAMAGED
                pixels = None if self._pixel_cache is None else self._pixel_cache.read(shard, record, index)
                unchecked = () if pixels is None else self._unused_parts  # cached pixels come from checked bytes
                try:
                    sample = self._reader.read(shard, record, unchecked=unchecked, sequential=True)
                    if self._keys:
                        sample.key  # noqa: B018 - reads the key, or raises
                except IntegrityError as error:
                    if sample is _DAMAGED and error.key is None:
                        raise  # the whole shard is damaged
                    failures[index] = error
                batch.samples.append(sample)
                batch.pixels.append(pixels)
            substitute(batch, failures, self._substitute)
            yield batch


class Decode:
    """Fills in `images` and `geometry`. Images that the pixel cache lacks are decoded whole and added to it."""

    def __init__(
        self, decoder: Decoder, empty: Empty, *, substitute: bool, pixel_cache: PixelCache | None = None
    ) -> None:
        self._decoder, self._empty, self._substitute, self._pixel_cache = decoder, empty, substitute, pixel_cache

    def __call__(self, batches: Batches) -> Batches:
        """Return the batches, decoded."""
        for batch in batches:
            payloads = [self._payload(*read) for read in zip(batch.samples, batch.pixels, strict=True)]
            sizes = np.array([sample.image_size for sample in batch.samples], dtype=np.int64)
            decoder = self._decoder
            if at_epoch := getattr(decoder, "at_epoch", None):
                decoder = at_epoch(batch.epoch)
            if in_bucket := getattr(decoder, "in_bucket", None):
                decoder = in_bucket(batch.bucket)
            batch.images, batch.geometry, errors = decoder(payloads, sizes, batch.keys, self._empty)
            failures = {index: batch.samples[index].located(error) for index, error in errors.items()}
            substitute(batch, failures, self._substitute, getattr(self._decoder, "copy_image", copy_row))
            yield batch

    def _payload(self, sample: Sample, pixels: Pixels | None) -> Any:
        if pixels is not None:
            return pixels
        payload = sample.parts[image_part(sample)]
        if self._pixel_cache is not None:
            pixels = self._pixel_cache.add(sample.shard, sample.record, payload)
        return payload if pixels is None else pixels


def copy_row(images: Any, index: int, source: int) -> None:
    """Replace an image by another one of the batch."""
    images[index] = images[source]


def substitute(
    batch: Batch,
    failures: Mapping[int, ShardflowError],
    allowed: bool,
    copy_image: Callable[[Any, int, int], None] = copy_row,
) -> None:
    """Replace failed samples of the batch by good ones, and record the failures; or raise the first failure.

    A failed sample is replaced by the next good one of the batch, so the result is the same in every process.
    `copy_image` is for images that are not a row each.
    """
    if not failures:
        return
    size = len(batch.samples)
    if not allowed or len(failures) == size:
        raise failures[min(failures)]
    for index in failures:
        good = next(other % size for other in range(index + 1, index + size) if other % size not in failures)
        batch.samples[index], batch.pixels[index] = batch.samples[good], batch.pixels[good]
        if batch.images is not None:
            copy_image(batch.images, index, good)
        if batch.geometry is not None:
            batch.geometry.copy_row(index, batch.geometry, good)
    batch.substituted += [str(failures[index]) for index in sorted(failures)]


class Augment:
    """Applies the transform to each image, with the random generators seeded by the sample's key."""

    def __init__(self, transform: Callable[[torch.Tensor], Any]) -> None:
        self._transform = transform

    def __call__(self, batches: Batches) -> Batches:
        """Return the batches, transformed."""
        for batch in batches:
            with fork_rng():
                images = []
                for image, key in zip(batch.images, batch.keys.tolist(), strict=True):
                    reseed(key)
                    images.append(self._transform(image))
            batch.images = images
            yield batch


class Collate:
    """Turns batches into tuples in the order of `fields`, and applies the batch transform to them."""

    def __init__(
        self, split: Split, fields: Sequence[str], batch_transform: Callable[..., Any] | None, classes: int
    ) -> None:
        self._split, self._fields, self._batch_transform, self._classes = split, fields, batch_transform, classes

    def __call__(self, batches: Batches) -> Iterator[WorkerOutput]:
        """Return finished batches."""
        for batch in batches:
            columns = tuple(_column(field, batch, self._split, self._classes) for field in self._fields)
            if batch.empty:
                columns = tuple(column[:0] for column in columns)
            if self._batch_transform is not None:
                with fork_rng():
                    reseed(batch.key)
                    columns = self._batch_transform(*columns)
            yield WorkerOutput(columns, batch.substituted)


class WorkerOutput(NamedTuple):
    """A finished batch, and the problems of samples that were replaced in it."""

    columns: Any
    substituted: list[str]


def image_part(sample: Sample) -> str:
    """Return the name of the part that holds a sample's image; DecodeError if there is none."""
    for part in sample.parts:
        if part in IMAGE_PARTS:
            return part
    found = ", ".join(sample.parts)
    raise sample.located(DecodeError(f"no image among the parts ({found}); leave 'image' out of `fields`"))


def _column(field: str, batch: Batch, split: Split, classes: int) -> Any:
    """Return one field of a batch: a tensor, or a list with one entry per sample."""
    if field == "image":
        return _stack(batch.images)
    if field == "valid":
        return torch.from_numpy(batch.valid)
    if field == "random_key":
        return torch.from_numpy(batch.keys.view(np.int64))  # torch has no arithmetic on unsigned integers
    if field == "index":
        shards, records = np.array([(sample.shard, sample.record) for sample in batch.samples], dtype=np.int64).T
        return torch.from_numpy(split.first_sample(shards) + records)
    if field == "key":
        return [sample.key for sample in batch.samples]
    if field == "label":
        return torch.tensor([_labels(sample, "cls")[0] for sample in batch.samples], dtype=torch.int64)
    if field == "labels":
        encoded = torch.zeros(len(batch.samples), classes)
        for row, sample in zip(encoded, batch.samples, strict=True):
            part = next((part for part in LABEL_PARTS if part in sample.parts), "cls")
            row[list(_labels(sample, part, classes))] = 1
        return encoded
    return [_parsed(sample, field) for sample in batch.samples]


def _labels(sample: Sample, part: str, classes: int | None = None) -> tuple[int, ...]:
    try:
        return parse_labels(part, _payload(sample, part), classes=classes)
    except DecodeError as error:
        raise sample.located(DecodeError(f"{error}; run `shardflow verify`")) from error


_PARSERS: dict[str, Callable[[bytes], Any]] = {"txt": bytes.decode, "json": json.loads, "cls": int}


def _parsed(sample: Sample, part: str) -> Any:
    payload = bytes(_payload(sample, part))
    try:
        return _PARSERS.get(part.rpartition(".")[2], bytes)(payload)
    except ValueError as error:
        raise sample.located(DecodeError(f"part {part!r} cannot be read: {error}")) from error


def _payload(sample: Sample, part: str) -> memoryview:
    if part not in sample.parts:
        found = ", ".join(sample.parts)
        raise sample.located(ConfigError(f"the sample has no part {part!r}, it has {found}; change `fields`"))
    return sample.parts[part]


def _stack(images: Any) -> Any:
    if isinstance(images, torch.Tensor):
        return images
    if len(shapes := {tuple(image.shape) for image in images}) > 1:
        raise ConfigError(
            f"images of sizes {sorted(shapes)[:3]} do not stack; choose "
            "RandomResizedCropDecoder or CenterCropDecoder, or a `transform` that ends in one size"
        )
    return torch.stack(images)
