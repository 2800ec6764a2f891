"""The stages between the plan and the DataLoader's queue: read, decode, augment, collate.

Each is a WebDataset pipeline stage: called with the iterator of batches before it, it returns the iterator after it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from shardflow.dataset.dataset import Split
from shardflow.dataset.mapped_shard import MappedShard
from shardflow.errors import ConfigError, DecodeError, IntegrityError, ShardflowError
from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.formats.labels import LABEL_PARTS, parse_labels

from .batch import Batch, Sample
from .decoders import Decoder, Empty
from .fork_rng import fork_rng, reseed
from .pixel_cache import PixelCache

Batches = Iterator[Batch]


class Read:
    """Fills in `samples` from memory-mapped shards.

    Args:
        split: What is read.
        verify: Check each part's CRC-32.
        keys: The batches' keys are asked for, so a sample without a readable one is damaged.
        substitute: Let other samples stand in for damaged ones.
        decoded: Where images may lie as pixels; those that do need not be read as files.
        fields: What the batches consist of: a part that is handed out is read in any case.
    """

    def __init__(
        self,
        split: Split,
        *,
        verify: bool,
        keys: bool,
        substitute: bool,
        decoded: PixelCache | None = None,
        fields: Sequence[str] = (),
    ) -> None:
        self._split, self._verify, self._keys, self._substitute = split, verify, keys, substitute
        self._decoded, self._needless = decoded, IMAGE_PARTS.difference(fields)

    def __call__(self, batches: Batches) -> Batches:
        """Return the batches, read."""
        for batch in batches:
            failures: dict[int, ShardflowError] = {}
            places = zip(batch.shards.tolist(), batch.records.tolist(), strict=True)
            for index, (number, record) in enumerate(places):
                shard = self._split.soonest(number, record)
                parts: Mapping[str, memoryview] = {}
                pixels = None
                try:
                    if self._decoded is None or not isinstance(shard, MappedShard):
                        parts = shard.sample(record, check=self._verify)
                    elif (pixels := self._decoded.read(shard, record, index)) is None:
                        parts = shard.sample(record, check=True)  # what is kept as pixels was right once for all
                    else:
                        parts = shard.sample(record, check=self._verify, unchecked=self._needless)
                    if self._keys:
                        shard.key(record)
                except IntegrityError as error:
                    failures[index] = error
                batch.samples.append(Sample(parts, shard, record, pixels))
            substitute(batch, failures, self._substitute)
            yield batch


class Decode:
    """Fills in `images`.

    Args:
        decoder: What decodes.
        empty: Makes the memory for the images.
        substitute: Let other samples stand in for those that do not decode.
        decoded: Where images are kept as pixels; those that it lacks are decoded whole for it.
    """

    def __init__(self, decoder: Decoder, empty: Empty, *, substitute: bool, decoded: PixelCache | None = None) -> None:
        self._decoder, self._empty, self._substitute, self._decoded = decoder, empty, substitute, decoded

    def __call__(self, batches: Batches) -> Batches:
        """Return the batches, decoded."""
        for batch in batches:
            payloads = [self._payload(sample) for sample in batch.samples]
            batch.images, errors = self._decoder(payloads, batch.keys, self._empty)
            failures = {index: batch.samples[index].blame(error) for index, error in errors.items()}
            substitute(batch, failures, self._substitute)
            yield batch

    def _payload(self, sample: Sample) -> Any:
        """Return a sample's image as the decoder gets it: the file, or its pixels where these are kept."""
        if sample.pixels is not None:
            return sample.pixels
        payload = sample.parts[image_part(sample)]
        if self._decoded is None or not isinstance(sample.shard, MappedShard):
            return payload
        pixels = self._decoded.add(sample.shard, sample.record, payload)
        return payload if pixels is None else pixels


def substitute(batch: Batch, failures: Mapping[int, ShardflowError], allowed: bool) -> None:
    """Put good samples of the batch in the place of failed ones, and note which; or raise the first failure.

    The next good sample of the batch is taken, so that the result does not depend on who does it.
    """
    if not failures:
        return
    size = len(batch.samples)
    if not allowed or len(failures) == size:
        raise failures[min(failures)]
    for index in failures:
        good = next(other % size for other in range(index + 1, index + size) if other % size not in failures)
        batch.samples[index] = batch.samples[good]
        if batch.images is not None:
            batch.images[index] = batch.images[good]
    batch.substituted += [str(failures[index]) for index in sorted(failures)]


class Augment:
    """Applies the transform to each image, its generators set from the sample's key."""

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

    def __init__(self, fields: Sequence[str], batch_transform: Callable[..., Any] | None, classes: int) -> None:
        self._fields, self._batch_transform, self._classes = fields, batch_transform, classes

    def __call__(self, batches: Batches) -> Iterator[Any]:
        """Return the batches as the caller gets them."""
        for batch in batches:
            columns = tuple(_column(field, batch, self._classes) for field in self._fields)
            if batch.empty:
                columns = tuple(column[:0] for column in columns)
            if self._batch_transform is not None:
                with fork_rng():
                    reseed(batch.key)
                    columns = self._batch_transform(*columns)
            yield WorkerOutput(columns, batch.substituted)


class WorkerOutput(NamedTuple):
    """A finished batch: what the caller gets, and what went wrong with samples that others stand in for."""

    columns: Any
    substituted: list[str]


def guard(items: Iterator[Any]) -> Iterator[Any]:
    """Send the project's own errors through the queue as values, so that they arrive as they were raised."""
    try:
        yield from items
    except GeneratorExit:  # first: as the interpreter exits, the name that is asked for next is gone
        raise
    except ShardflowError as error:
        yield error


def image_part(sample: Sample) -> str:
    """Return the name of the part that holds a sample's image.

    Raises:
        DecodeError: There is none.
    """
    for part in sample.parts:
        if part in IMAGE_PARTS:
            return part
    found = ", ".join(sample.parts)
    raise sample.blame(DecodeError(f"no image among the parts ({found}); leave 'image' out of `fields`"))


def _column(field: str, batch: Batch, classes: int) -> Any:
    """Return one field of a batch: a tensor, or a list with one entry per sample."""
    if field == "image":
        return _stack(batch.images)
    if field == "valid":
        return torch.from_numpy(batch.valid)
    if field == "random_key":
        return torch.from_numpy(batch.keys.view(np.int64))  # torch has no arithmetic on unsigned numbers
    if field == "key":
        return [sample.key for sample in batch.samples]
    if field == "label":
        return torch.tensor([_labels(sample, "cls")[0] for sample in batch.samples], dtype=torch.int64)
    if field == "labels":
        return torch.stack([_several_hot(sample, classes) for sample in batch.samples])
    return [_parsed(sample, field) for sample in batch.samples]


def _several_hot(sample: Sample, classes: int) -> torch.Tensor:
    """Return the classes of a sample as float32 [classes], 1 for each that it has."""
    part = next((part for part in LABEL_PARTS if part in sample.parts), "cls")
    hot = torch.zeros(classes)
    hot[list(_labels(sample, part, classes))] = 1
    return hot


def _labels(sample: Sample, part: str, classes: int | None = None) -> tuple[int, ...]:
    """Return the numbers of classes in a part."""
    try:
        return parse_labels(part, _payload(sample, part), classes=classes)
    except DecodeError as error:
        raise sample.blame(DecodeError(f"{error}; run `shardflow verify`")) from error


_PARSERS: dict[str, Callable[[bytes], Any]] = {"txt": bytes.decode, "json": json.loads, "cls": int}


def _parsed(sample: Sample, part: str) -> Any:
    """Return a part's value: `.txt` as str, `.json` as what it holds, `.cls` as int, anything else as bytes."""
    payload = bytes(_payload(sample, part))
    try:
        return _PARSERS.get(part.rpartition(".")[2], bytes)(payload)
    except ValueError as error:
        raise sample.blame(DecodeError(f"part {part!r} cannot be read: {error}")) from error


def _payload(sample: Sample, part: str) -> memoryview:
    if part not in sample.parts:
        found = ", ".join(sample.parts)
        raise sample.blame(ConfigError(f"the sample has no part {part!r}, it has {found}; choose other `fields`"))
    return sample.parts[part]


def _stack(images: Any) -> Any:
    if isinstance(images, torch.Tensor):
        return images
    if len({image.shape for image in images}) > 1:
        raise ConfigError(
            f"images of sizes {sorted({tuple(image.shape) for image in images})[:3]} do not stack; choose "
            "RandomResizedCropDecoder or CenterCropDecoder, or end `transform` in one size"
        )
    return torch.stack(images)
