"""Verifying: a dataset as it lies, and a sample of its images against the inputs that they were packed from.

A dataset without damage can still be the wrong one: checksums say that nothing has changed since it was packed, not
that pictures and labels are those that were meant. Only a comparison with the sources can.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardflow._cores import allowed_cores
from shardflow._pillow import map_codec_errors, mask_values, open_image
from shardflow._rgb import rgb_pixels
from shardflow._validation import check_integer
from shardflow.dataset.open_dataset import Dataset, open_dataset
from shardflow.dataset.shard_rows import ShardRows, read_index
from shardflow.dataset.verifying import Finding, verify_dataset
from shardflow.dataset.virtual_dataset import refuse_virtual
from shardflow.errors import ConfigError, DecodeError, FormatError, SampleError, ShardflowError, StoreError
from shardflow.formats import image_array
from shardflow.formats.image_limits import check_image
from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.formats.labels import LABEL_PARTS, Label, sample_labels
from shardflow.formats.receipt import Receipt, from_bytes
from shardflow.formats.shard import Shard
from shardflow.order import keyed_rng

from .image.geometry import Geometry
from .image.pipeline import pack_image
from .jobs import content_digits
from .known_inputs import find_inputs
from .sample_recipe import SampleRecipe
from .sources.items import Item
from .sources.labelling import append_classes
from .sources.resolve import list_source
from .sources.source import Source

_Pixels = npt.NDArray[np.float32]

IMAGES = 300
"""How many images are compared with their sources by default."""

NOT_IN_SOURCES = "the sources have no input"
"""How the problem of a sample begins whose input is gone."""

_BLOCK = 16
_LOSSES, _LEVELS = 2.0, 2.0
"""How far an image that other codecs have packed may be from the pixels before encoding, in each block of 16 x 16:
twice as far as one that is packed now, and two levels of 255 (root mean square).

With the native kernel and without it, photographs, scans and noise exceed the former by a quarter of a level at most,
at qualities from 30 up. Other pictures exceed it by 20 levels in some block.
"""

_CONTRAST, _ROUNDING = 0.25, 0.05
"""How much two packed images may differ, about their means: a share of the variance of both, and that of roundings.

Pictures of one file differ by 0.07 of it at most, others by 1. So pictures are told apart that have too little contrast
for the former rule, such as dark frames.
"""


def verify(
    url: str | os.PathLike[str],
    *,
    sources: Sequence[Any] = (),
    images: int = IMAGES,
    seed: int = 0,
    storage_options: Mapping[str, Any] | None = None,
    source_options: Mapping[str, Any] | None = None,
    progress: Callable[[Shard], None] | None = None,
) -> list[Finding]:
    """Read a whole dataset and return everything that is wrong with it.

    Without sources that is damage alone: a dataset cannot show whether its pictures and labels are those that were
    meant. With sources, some images, chosen at random, are packed again from their inputs: image, label and other parts
    must be the same, or nearly the same where the codecs have other versions.

    >>> shardflow.verify("photos256", sources=["photos/"])      # doctest: +SKIP
    []

    Args:
        url: A directory or a URL. A remote dataset is read at its URL, not in the cache.
        sources: What it was packed and extended from, each as for `pack`.
        images: Number of images that are compared; all, if the dataset has fewer.
        seed: Seed of their choice.
        storage_options, source_options: Options of fsspec's file systems, where `url` and sources are URLs.
        progress: Called after each shard.

    Returns:
        The findings, by split and shard; an empty list if there are none.

    Raises:
        NotFoundError: There is no dataset, or nothing at a source.
        ManifestError: The manifest itself is damaged, so that nothing can be compared with it.
        StoreError: The dataset is out of reach. A single file that cannot be read is a finding.
        ConfigError: A source is none or has other labels, or the dataset is virtual, or was not made by packing.
    """
    images = check_integer("images", images, 1)
    dataset = open_dataset(url, storage_options=storage_options)
    with open_sources(dataset, sources, source_options) as opened:
        findings = verify_dataset(dataset, progress=progress)
        damaged = {finding.file for finding in findings}
        return findings + compare_with_sources(dataset, opened, images=images, seed=seed, damaged=damaged).findings


@contextlib.contextmanager
def open_sources(
    dataset: Dataset, sources: Sequence[Any], source_options: Mapping[str, Any] | None = None
) -> Iterator[list[Source]]:
    """List the sources of a dataset, with the dataset's numbers of classes; see `verify` for arguments and errors."""
    if sources:
        remedy_of_index = "there is nothing to compare them with; without sources, verify finds damage"
        refuse_virtual(dataset, "receipts", "compare", remedy_of_index)
    if sources and dataset.manifest.sharding is None:
        raise ConfigError(f"{dataset.url} was not made by packing: nothing says which input became which sample")
    parts = dataset.manifest.annotations.parts
    with contextlib.ExitStack() as stack:
        yield [
            append_classes(stack.enter_context(list_source(source, source_options, parts=parts)), dataset.classes)
            for source in ([sources] if isinstance(sources, str | os.PathLike) else sources)
        ]


class Comparison(NamedTuple):
    """The result of comparing a dataset with its sources."""

    findings: list[Finding]
    compared: int  # number of images


def compare_with_sources(
    dataset: Dataset,
    sources: Sequence[Source],
    *,
    images: int = IMAGES,
    seed: int = 0,
    damaged: Collection[str] = (),
) -> Comparison:
    """Compare some images with their inputs, but none of the shards of which a file is `damaged`; see `verify`."""
    if not sources:
        return Comparison([], 0)
    shards = [shard for shard in dataset.shards if not {shard.name, shard.index_name} & set(damaged)]
    chosen = _choose(np.array([shard.samples for shard in shards], dtype=np.int64), images, seed)
    findings: list[Finding] = []
    samples: list[_Sample] = []
    for number, records in chosen.items():
        try:
            samples += _open_samples(dataset, shards[number], records)
        except (StoreError, FormatError) as error:
            problem = f"its images cannot be compared with their inputs: {error}; restore it from a copy"
            findings.append(Finding(shards[number].receipt_name, problem))
    found_inputs = find_inputs(sources, {(sample.split, sample.path) for sample in samples})
    check = _Check(dataset, SampleRecipe.of(dataset.manifest), found_inputs)
    with ThreadPoolExecutor(2 * allowed_cores()) as threads:
        for sample, problem in zip(samples, threads.map(check.problem, samples), strict=True):
            if problem:
                findings.append(Finding(sample.shard.name, problem, key=sample.key))
    return Comparison(findings, len(samples))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """A sample that is compared: where it lies, and what its receipt says of its input."""

    shard: Shard
    rows: Sequence[tuple[Any, ...]]  # of the index
    key: str
    path: str
    content: str
    recipe_sha256: str  # with the versions of the codecs

    @property
    def split(self) -> str:
        return self.shard.name.partition("/")[0]


def _choose(sizes: npt.NDArray[np.int64], images: int, seed: int) -> dict[int, list[int]]:
    """Return the records that are compared, by the number of their shard."""
    ends = np.cumsum(sizes)
    count = int(sizes.sum())
    chosen: dict[int, list[int]] = {}
    for number in np.sort(keyed_rng.permutation(keyed_rng.key(seed, "verify"), count)[:images]).tolist():
        shard = int(np.searchsorted(ends, number, side="right"))
        chosen.setdefault(shard, []).append(number - int(ends[shard] - sizes[shard]))
    return chosen


def _open_samples(dataset: Dataset, shard: Shard, records: Sequence[int]) -> list[_Sample]:
    receipt = from_bytes(dataset.storage.read(shard.receipt_name))
    if receipt.shard != shard:
        raise FormatError("the receipt is that of another shard")
    slots = _slots(receipt)
    rows = ShardRows.from_index(read_index(dataset.storage, shard), shard.samples)
    return [
        _Sample(
            shard=shard,
            rows=rows.of_record(record),
            key=f"{receipt.first + slots[record]:09d}",
            path=receipt.sources[record],
            content=receipt.record(slots[record]).content,
            recipe_sha256=receipt.recipe_sha256,
        )
        for record in records
    ]


def _slots(receipt: Receipt) -> list[int]:
    """Return the number of the input of each record among the inputs of the job."""
    skipped = set(receipt.skipped)
    slots = [slot for slot in range(len(receipt.inputs())) if slot not in skipped]
    if receipt.shard is None or len(slots) != receipt.shard.samples:
        raise FormatError("not a receipt: its inputs do not add up")
    return slots


@dataclass(frozen=True, slots=True)
class _Check:
    """Compares samples with their inputs."""

    dataset: Dataset
    recipe: SampleRecipe
    inputs: Mapping[tuple[str, str], Sequence[tuple[Source, Item]]]  # by split and path

    def problem(self, sample: _Sample) -> str:
        """Return what is wrong with a sample; "" if there is nothing."""
        candidates = self.inputs.get((sample.split, sample.path), ())
        if not candidates:
            return f"{NOT_IN_SOURCES} {sample.path!r}"
        try:
            packed = self._read(sample)
        except ShardflowError as error:
            return f"cannot be compared with its input: {error}"
        problems = [self._compare(packed, sample, source, item) for source, item in candidates]
        return "" if "" in problems else problems[0]

    def _read(self, sample: _Sample) -> dict[str, bytes]:
        parts = {}
        for _, name, offset, size, crc32, *_ in sample.rows:
            payload = self.dataset.storage.read_range(sample.shard.name, offset, offset + size)
            if zlib.crc32(payload) != crc32:
                raise DecodeError(f"part {name.decode()!r}: its CRC-32 differs")
            parts[name.decode()] = payload
        return parts

    def _compare(self, packed: Mapping[str, bytes], sample: _Sample, source: Source, item: Item) -> str:
        try:
            labels = _named(sample_labels(packed.get), source), _named(item.label, source)
            if labels[0] != labels[1]:
                return f"has the label {labels[0]}, its input {item.path!r} has {labels[1]}"
            read = source.reader.read(item)
            image, expected, _ = self.recipe.pack(read, item.label)
        except SampleError as error:
            return f"its input {item.path!r} cannot be packed again: {error}"
        same_codecs = sample.recipe_sha256 == self.recipe.digest
        most, masks = self.recipe.image.max_pixels, self.recipe.annotations.masks
        for part in sorted({*packed, *expected} - {*LABEL_PARTS}):
            if same_codecs or part not in packed or part not in expected:
                is_same = packed.get(part) == expected.get(part)
            elif part in IMAGE_PARTS:
                is_same = packed[part] == expected[part] or self._shows_same(packed[part], expected[part], read.image)
            else:
                is_same = packed[part] == expected[part] or (
                    part in masks and _has_same_values(packed[part], expected[part], image.geometry, most)
                )
            if not is_same:
                is_input = sample.content == content_digits(read, item.label)
                why = "" if is_input else ", which has changed since it was packed"
                return f"its part {part!r} is not what is packed from {item.path!r}{why}"
        return ""

    def _shows_same(self, packed: bytes, expected: bytes, source: bytes) -> bool:
        """Whether two packed images, of which other codecs have made one, show the same image file."""
        recipe = self.recipe.image
        most = recipe.max_pixels
        try:
            if image_array.is_array(packed) or image_array.is_array(expected):
                return _are_same_arrays(packed, expected, most)
            exact = expected if recipe.format == "png" else pack_image(source, recipe.lossless()).image
            return _are_same_pictures(*(_pixels(data, most) for data in (packed, expected, exact)))
        except SampleError:
            return False


def _named(label: Label, source: Source) -> str:
    """Return a label, or several, by the names of the classes."""
    numbers = () if label is None else (label,) if isinstance(label, int) else label
    names = source.classes or ()
    return ", ".join(repr(names[one]) if one < len(names) else str(one) for one in numbers) or "no class"


def _has_same_values(packed: bytes, expected: bytes, geometry: Geometry, max_pixels: int) -> bool:
    """Whether two masks have the same values: they are encoded without loss, whatever the codec."""
    try:
        with map_codec_errors(DecodeError):
            one, other = (mask_values(data, geometry.size, max_pixels=max_pixels) for data in (packed, expected))
            return np.array_equal(one, other)
    except SampleError:
        return False


def _are_same_arrays(packed: bytes, expected: bytes, max_pixels: int) -> bool:
    """Whether two arrays of images are the same, but for roundings of a resize."""
    for data in (packed, expected):
        check_image(data, max_pixels)
    one, other = image_array.pixels(packed), image_array.pixels(expected)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return int(np.abs(one.astype(np.int32) - other).max()) <= 1


def _are_same_pictures(packed: _Pixels, expected: _Pixels, exact: _Pixels) -> bool:
    """Whether two encodings of a picture are as near to it, and to each other, as those of two codecs are."""
    if not packed.shape == expected.shape == exact.shape:
        return False
    if (_distances(packed, exact) > _LOSSES * _distances(expected, exact) + _LEVELS).any():
        return False
    difference = (packed - expected).var((0, 1)).mean()
    contrast = (packed.var((0, 1)) + expected.var((0, 1))).mean()
    return bool(difference <= _CONTRAST * contrast + _ROUNDING)


def _distances(one: _Pixels, other: _Pixels) -> _Pixels:
    """Return the root mean square of the differences of two pictures, block by block."""
    squares = ((one - other) ** 2).mean(2)
    sums, counts = squares, np.ones_like(squares)
    for axis in (0, 1):
        starts = np.arange(0, squares.shape[axis], _BLOCK)
        sums, counts = (np.add.reduceat(each, starts, axis) for each in (sums, counts))
    distances: _Pixels = np.sqrt(sums / counts)
    return distances


def _pixels(data: bytes, max_pixels: int) -> _Pixels:
    with map_codec_errors(DecodeError), open_image(data, max_pixels=max_pixels) as image:
        return rgb_pixels(image).astype(np.float32)
