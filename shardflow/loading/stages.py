"""The stages between the sampler and `collate`: read, decode, annotate, augment.

Each is a WebDataset pipeline stage: called with the iterator of the stage before it, it returns an iterator.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from shardflow.dataset.sample import Sample
from shardflow.errors import ConfigError, DecodeError, IntegrityError, SampleError, ShardflowError
from shardflow.formats.image_types import IMAGE_PARTS

from .batch import Batch
from .batch_fields import batch_field, crops_of, unparsable
from .damaged_samples import DAMAGED, replace_damaged
from .decoders.decoder import Allocator, Decoded, allocate, as_views
from .decoders.multi_view import view_keys
from .decoders.pixels import Pixels
from .fork_rng import fork_rng, reseed
from .further_images import FurtherImages
from .padding import PADDING_FIELDS, PATCH_FIELDS
from .source import IMAGES, Source
from .tv_sample import transform_sample, transform_whole
from .whole_sample import WholeSample, join_values, row_of
from .worker_errors import add_context

Batches = Iterator[Batch]
Stage = Callable[[Batches], Batches]


class Read:
    """Fills in `samples`, each part checked by its CRC-32, and `pixels`.

    Images for the kernel are left for it to read, check and decode, with the other parts of their samples, while they
    are in the CPU's cache. With the field "key", a sample whose key cannot be read is damaged. Encoded files of images
    in the pixel cache are checked only if they are among the fields.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources

    def __call__(self, batches: Batches) -> Batches:
        """Return the batches, read."""
        in_files = [
            "image" in source.fields
            and IMAGE_PARTS.isdisjoint(source.fields)
            and source.pixel_cache is None
            and source.decoder.takes_pixels_of == "kernel"
            for source in self._sources
        ]
        unused_parts = [IMAGE_PARTS.difference(source.fields) for source in self._sources]
        for batch in batches:
            failures: dict[int, ShardflowError] = {}
            places = zip(batch.sources, batch.shards.tolist(), batch.records.tolist(), strict=True)
            for index, (number, shard, record) in enumerate(places):
                sample, source = DAMAGED, self._sources[number]
                pixels = None if source.pixel_cache is None else source.pixel_cache.read(shard, record, index)
                unused = () if pixels is None else unused_parts[number]  # cached pixels come from checked bytes
                try:
                    sample = source.split.reader.read(
                        shard, record, unused=unused, sequential=True, in_file=in_files[number]
                    )
                    if "key" in source.fields:
                        sample.key  # noqa: B018 - reads the key, or raises
                except IntegrityError as error:
                    if sample is DAMAGED and error.key is None:
                        raise  # the whole shard is damaged
                    failures[index] = error
                batch.samples.append(sample)
                batch.pixels.append(pixels)
                in_file = sample.in_file
                batch.read_bytes += sum(map(len, sample.parts.values())) if in_file is None else in_file.part_bytes
            batch.network_bytes = sum(source.split.reader.take_downloaded_bytes() for source in self._sources)
            if failures:
                failures |= read_files(batch)
            replace_damaged(batch, failures, self._sources)
            yield batch


def read_files(batch: Batch) -> dict[int, ShardflowError]:
    """Read the samples that were left for the kernel; return the error of each damaged one."""
    failures: dict[int, ShardflowError] = {}
    for index, sample in enumerate(batch.samples):
        if sample.in_file is not None:
            try:
                sample.in_file.read()
            except IntegrityError as error:
                if error.key is None:
                    raise  # the whole shard is damaged
                failures[index] = error
                batch.read_bytes -= sample.in_file.part_bytes
            sample.in_file = None
    return failures


class Decode:
    """Fills in `crops` and `images`. Images that a pixel cache lacks are decoded whole and added to it.

    Sources with equal decoders are decoded together. Where damaged samples may be replaced, those are damaged too whose
    label, JSON or text cannot be parsed.
    """

    def __init__(self, sources: Sequence[Source], allocator: Allocator) -> None:
        self._sources, self._allocator = sources, allocator
        self._decoders = decoders = [source.decoder for source in sources]
        self._groups = [decoders.index(decoder) for decoder in decoders]  # the first equal decoder of each

    def __call__(self, batches: Batches) -> Batches:
        """Return the batches, decoded."""
        for batch in batches:
            if "image" not in self._sources[batch.sources[0]].fields:
                replace_damaged(batch, unparsable(batch, self._sources), self._sources)
                yield batch
                continue
            try:
                decoded = self._decode(batch)
            except IntegrityError:  # of a sample in a file: replaced before the batch is decoded again
                replace_damaged(batch, read_files(batch), self._sources)
                decoded = self._decode(batch)
            batch.images, batch.crops, errors = decoded
            failures = {index: batch.samples[index].with_sample(error) for index, error in errors.items()}
            replace_damaged(batch, unparsable(batch, self._sources) | failures, self._sources)
            yield batch

    def _decode(self, batch: Batch) -> Decoded:
        reads = zip(batch.sources, batch.samples, batch.pixels, strict=True)
        files = [self._payload(*read) for read in reads]
        with add_context(partial(batch_place, "the decoder", batch)):
            return self._decode_groups(batch, files)

    def _decode_groups(self, batch: Batch, files: list[Any]) -> Decoded:
        groups = [self._groups[source] for source in batch.sources]
        if len(kinds := set(groups)) == 1:
            return self._decode_some(batch, files, [*range(len(files))], groups[0], self._allocator)
        own_views = self._decoders[batch.sources[0]].views
        views: list[list[Any]] = [[None] * len(files) for _ in own_views or (None,)]
        failures: dict[int, SampleError] = {}
        for kind in sorted(kinds):
            places = [place for place, group in enumerate(groups) if group == kind]
            decoded = self._decode_some(batch, files, places, kind, allocate)
            for images, own in zip(views, as_views(decoded.images), strict=True):
                for place, image in zip(places, own, strict=True):
                    images[place] = image
            failures |= {places[index]: error for index, error in decoded.failures.items()}
        return Decoded(tuple(views) if own_views else views[0], None, failures)

    def _decode_some(
        self, batch: Batch, files: list[Any], places: list[int], number: int, allocator: Allocator
    ) -> Decoded:
        """Return the images at some places of a batch, decoded by one decoder."""
        samples = [batch.samples[place] for place in places]
        return self._decoders[number](
            [files[place] for place in places],
            np.array([sample.image_size for sample in samples], dtype=np.int64),
            batch.keys[places],
            epoch=batch.epoch,
            shape=batch.shape[places] if isinstance(batch.shape, np.ndarray) else batch.shape,
            have_tables=[sample.has_table for sample in samples],
            in_files=[sample.in_file for sample in samples],
            allocate=allocator,
        )

    def _payload(self, source: int, sample: Sample, pixels: Pixels | None) -> Any:
        if sample.in_file is not None:
            return _IN_FILE
        if pixels is not None:
            return pixels
        payload = sample.parts[image_part(sample)]
        if (pixel_cache := self._sources[source].pixel_cache) is not None:
            pixels = pixel_cache.add(sample.shard, sample.record, payload)
        return payload if pixels is None else pixels


def sample_stages(sources: Sequence[Source], allocator: Allocator) -> list[Stage]:
    """Return the stages that decode or parse, annotate and transform samples."""
    stages: list[Stage] = []
    transforms = [source.transform for source in sources]
    fields = {name for source in sources for name in source.fields}
    has_images = "image" in fields
    if has_images or any(source.max_errors for source in sources):
        stages.append(Decode(sources, allocator))
    if IMAGES in fields:
        stages.append(FurtherImages(list(sources)))
    if any(source.annotations.names for source in sources):
        stages.append(Annotate(sources))
    if any(isinstance(each, WholeSample) or (has_images and each is not None) for each in transforms):
        stages.append(Augment(sources))
    return stages


class Annotate:
    """Fills in `annotations`: masks, boxes and keypoints in the crops of each view."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources

    def __call__(self, batches: Batches) -> Batches:
        """Return the batches, annotated."""
        for batch in batches:
            if not (names := self._sources[batch.sources[0]].annotations.names):
                yield batch
                continue
            annotations: list[Any] = []
            failures: dict[int, ShardflowError] = {}
            views = crops_of(batch, self._sources, names)
            for index, (number, sample) in enumerate(zip(batch.sources, batch.samples, strict=True)):
                source = self._sources[number]
                try:
                    annotations.append(source.annotations.read(sample, views, index, source.decoder.max_pixels))
                except SampleError as error:
                    annotations.append(None)
                    failures[index] = sample.with_sample(error)
            for index, good in replace_damaged(batch, failures, self._sources).items():
                annotations[index] = copy.deepcopy(annotations[good])  # a transform may write into either
            batch.annotations = self._sources[batch.sources[0]].annotations.of_views(annotations, views)
            yield batch


class Augment:
    """Applies the transform to each image, with the random generators seeded by the key of the sample or view.

    A source with views may have a list with a transform per view. A `WholeSample` also gets the other fields, and fills
    in `returned`.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources

    def __call__(self, batches: Batches) -> Batches:
        """Return the batches, transformed."""
        for batch in batches:
            if batch.images is not None:
                views = tuple(self._view(batch, number, view) for number, view in enumerate(as_views(batch.images)))
                batch.images = views if isinstance(batch.images, tuple) else views[0]
            if any(isinstance(self._sources[source].transform, WholeSample) for source in batch.sources):
                self._whole_samples(batch)
            yield batch

    def _view(self, batch: Batch, number: int, view: Any) -> list[Any]:
        images: list[Any] = []
        keys = view_keys(batch.keys, number).tolist()
        with fork_rng(), add_context(partial(_next_place, batch, images), _TYPES):
            for source, image, key in zip(batch.sources, view, keys, strict=True):
                transforms = self._sources[source].transform
                transform = transforms[number] if isinstance(transforms, Sequence) else transforms
                if transform is not None and not isinstance(transform, WholeSample):
                    reseed(key)
                    if batch.annotations:
                        image = self._annotated(transform, image, batch, len(images), number)
                    else:
                        image = transform(image)
                images.append(image)
        return images

    def _whole_samples(self, batch: Batch) -> None:
        """Apply `WholeSample` transforms: replace images and annotations, and fill in the other returned fields."""
        source = self._sources[batch.sources[0]]
        of_images = () if batch.images is None else ("image", *PADDING_FIELDS, *PATCH_FIELDS)
        later = {*source.annotations.names, *of_images}
        read = dict.fromkeys(field for number in {*batch.sources} for field in self._sources[number].fields)
        columns = {field: self._column(field, batch) for field in read if field not in later}
        names = source.returns
        returned: dict[str, list[Any]] = {name: [] for name in names if name not in later}
        done: list[Any] = []
        with fork_rng(), add_context(partial(_next_place, batch, done)):
            for row, (number, key) in enumerate(zip(batch.sources, batch.keys.tolist(), strict=True)):
                own: Any = {
                    field: row_of(column, rows[row] if rows else row)
                    for field, (column, rows) in columns.items()
                    if field in self._sources[number].fields
                }
                transform = self._sources[number].transform
                if isinstance(transform, WholeSample):
                    reseed(key)
                    try:
                        own = transform_whole(transform, batch, row, own, names, source.annotations.masks)
                    except ConfigError as error:
                        raise batch.samples[row].with_sample(error) from None
                for name, values in returned.items():
                    values.append(own[name])
                done.append(None)
        batch.annotations = tuple({name: view[name] for name in view if name in names} for view in batch.annotations)
        likes = {field: column for field, (column, rows) in columns.items() if not rows}
        batch.returned = {name: join_values(name, values, likes.get(name)) for name, values in returned.items()}

    def _column(self, field: str, batch: Batch) -> tuple[Any, dict[int, int]]:
        """Return a field of the samples whose sources read it, and the place in it of each, empty if all do."""
        lacking = {number for number in {*batch.sources} if field not in self._sources[number].fields}
        if not lacking:
            return batch_field(field, batch, self._sources), {}
        rows = [row for row, number in enumerate(batch.sources) if number not in lacking]
        some = replace(
            batch, sources=[batch.sources[row] for row in rows], samples=[batch.samples[row] for row in rows]
        )
        return batch_field(field, some, self._sources), {row: place for place, row in enumerate(rows)}

    def _annotated(self, transform: Any, image: torch.Tensor, batch: Batch, index: int, view: int) -> Any:
        masks = self._sources[batch.sources[index]].annotations.masks
        try:
            return transform_sample(transform, image, batch.annotations[view], index, masks)
        except ConfigError as error:
            raise batch.samples[index].with_sample(error) from None


def _place(sample: Sample) -> str:
    """Return the name of a sample for a note."""
    with contextlib.suppress(IntegrityError):
        return f"sample {sample.key} of {sample.url}"
    return f"record {sample.record} of {sample.url}"


_IN_FILE = memoryview(b"")  # in place of an image that the kernel reads
_TYPES = "images are uint8 tensors; v2.ToDtype(torch.float32, scale=True) makes floats, v2.ToPILImage() PIL images"


def _next_place(batch: Batch, done: Sequence[Any]) -> str:
    return f"the transform, for {_place(batch.samples[len(done)])}" if batch.samples else "the transform"


def batch_place(what: str, batch: Batch) -> str:
    """Return the name of a batch for a note."""
    others = f" and {len(batch.samples) - 1} more" if len(batch.samples) > 1 else ""
    return f"{what}, for the batch of {_place(batch.samples[0])}{others}"


def image_part(sample: Sample) -> str:
    """Return the name of a sample's image part; DecodeError if there is none."""
    for part in sample.parts:
        if part in IMAGE_PARTS:
            return part
    found = ", ".join(sample.parts)
    raise sample.with_sample(DecodeError(f"no image among the parts ({found}); leave 'image' out of `fields`"))
