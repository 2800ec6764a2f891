"""Verifying: a dataset's stored bytes, and some of its images against the inputs that they were packed from.

A dataset without damage can still be the wrong one: checksums say that nothing has changed since it was packed, not
that pictures and labels are those that were meant. Only a comparison with the sources can.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardflow._cores import allowed_cores
from shardflow._masks import mask_values
from shardflow._pillow import map_codec_errors, open_image
from shardflow._rgb import rgb_pixels
from shardflow._validation import check_integer
from shardflow.dataset.open_dataset import Dataset, open_dataset
from shardflow.dataset.receipts import read_receipt
from shardflow.dataset.shard_rows import ShardRows, read_index
from shardflow.dataset.verifying import Finding, verify_dataset
from shardflow.errors import (
    DecodeError,
    FormatError,
    IntegrityError,
    NotFoundError,
    SampleError,
    ShardflowError,
    StoreError,
)
from shardflow.formats import image_array
from shardflow.formats.image_limits import check_image
from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.formats.labels import LABEL_PARTS, Label, sample_labels
from shardflow.formats.receipt import Receipt
from shardflow.formats.shard import OnShard, Shard
from shardflow.formats.shard_layout import sample_key
from shardflow.order import keyed_rng

from .image.pipeline import pack_image
from .jobs import Job, Piece
from .origin import FoundInputs, find_inputs, job_again, open_sources
from .sample_recipe import PackedSample, SampleRecipe
from .sources.source import Source

_Pixels = npt.NDArray[np.float32]

IMAGES = 300
"""How many images are compared with their sources by default."""

_BLOCK = 16
_LOSSES, _LEVELS = 2.0, 2.0
"""How far an image that other codecs have packed may be from the pixels before encoding, in each block of 16 x 16:
twice as far as one that is packed now, and two levels of 255 (root mean square).

With the native kernel and without it, photographs, scans and noise exceed the former by a quarter of a level at most,
at qualities from 30 up. Other pictures exceed it by 20 levels in some block.
"""

_CONTRAST, _ROUNDING = 0.25, 0.05
"""How much two packed images may differ, about their means: a share of the variance of both, and of roundings.

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
    progress: OnShard = None,
) -> list[Finding]:
    """Read a whole dataset and return all findings.

    Without sources, it finds only damage: a dataset cannot show whether its images and labels are the ones you meant.
    With sources, random images are packed again from their inputs. Image, label and other parts must be equal, or
    nearly equal if the codecs have other versions.

    >>> shardflow.verify("photos256", sources=["photos/"])
    []

    Args:
        url: A directory or a URL. A remote dataset is read at its URL, not in the cache.
        sources: The sources of the pack and of its extensions, as for `pack`.
        images: Number of images to compare; all, if the dataset has fewer.
        seed: Seed of their choice.
        storage_options, source_options: Options of fsspec's file systems, where `url` and sources are URLs.
        progress: Called after each shard.

    Returns:
        The findings, by split and shard; an empty list if there are none.

    Raises:
        NotFoundError: The dataset or a source does not exist.
        ManifestError: The manifest itself is damaged, so that nothing can be compared with it.
        StoreError: The dataset is out of reach. A single file that cannot be read is a finding.
        ConfigError: A source cannot be packed or has other labels; or the dataset is virtual, or was not packed.
    """
    images = check_integer("images", images, 1)
    dataset = open_dataset(url, storage_options=storage_options)
    with open_sources(dataset, sources, source_options) as opened:
        findings = verify_dataset(dataset, progress=progress)
        damaged = {finding.file for finding in findings}
        return findings + compare_with_sources(dataset, opened, images=images, seed=seed, damaged=damaged).findings


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
    """Compare some images with their inputs, but none of shards with `damaged` files; see `verify`."""
    if not sources:
        return Comparison([], 0)
    shards = [shard for shard in dataset.shards if not {shard.name, shard.index_name} & set(damaged)]
    chosen = _choose(np.array([shard.samples for shard in shards], dtype=np.int64), images, seed)
    findings: list[Finding] = []
    samples: list[_Sample] = []
    for number, records in chosen.items():
        shard = shards[number]
        try:
            receipt = read_receipt(dataset.storage, shard.receipt_name, shard)
            rows = ShardRows.from_index(read_index(dataset.storage, shard), shard.samples)
        except (StoreError, FormatError, IntegrityError) as error:
            findings.append(Finding(shard.receipt_name, f"its images cannot be compared with their inputs: {error}"))
            continue
        slots = receipt.packed_slots()
        samples += [_Sample(shard, receipt, slots[record], rows.of_record(record)) for record in records]
    found = find_inputs(sources, [(sample.shard, sample.receipt, [sample.slot]) for sample in samples])
    check = _Check(dataset, SampleRecipe.of(dataset.manifest), found)
    with ThreadPoolExecutor(2 * allowed_cores()) as threads:
        for sample, problem in zip(samples, threads.map(check.problem, samples), strict=True):
            if problem:
                findings.append(Finding(sample.shard.name, problem, key=sample.key))
    return Comparison(findings, len(samples))


class _Sample(NamedTuple):
    """A sample that is compared: its shard with the receipt, the number of its input there, and its members."""

    shard: Shard
    receipt: Receipt
    slot: int
    rows: Sequence[tuple[Any, ...]]  # of the index

    @property
    def key(self) -> str:
        return sample_key(self.receipt.first + self.slot)


def _choose(sizes: npt.NDArray[np.int64], images: int, seed: int) -> dict[int, list[int]]:
    """Return the records that are compared, by the number of their shard."""
    ends = np.cumsum(sizes)
    count = int(sizes.sum())
    chosen: dict[int, list[int]] = {}
    for number in np.sort(keyed_rng.permutation(keyed_rng.key(seed, "verify"), count)[:images]).tolist():
        shard = int(np.searchsorted(ends, number, side="right"))
        chosen.setdefault(shard, []).append(number - int(ends[shard] - sizes[shard]))
    return chosen


@dataclass(frozen=True, slots=True)
class _Check:
    """Compares samples with their inputs."""

    dataset: Dataset
    recipe: SampleRecipe
    inputs: FoundInputs

    def problem(self, sample: _Sample) -> str:
        """Return the fault of a sample; "" if there is none."""
        try:
            source, job = job_again(sample.shard, sample.receipt, [sample.slot], self.inputs, self.recipe)
        except (NotFoundError, IntegrityError) as error:
            return str(error)
        try:
            return self._compare(self._read(sample), sample, source, job)
        except ShardflowError as error:
            return f"cannot be compared with its input: {error}"

    def _read(self, sample: _Sample) -> dict[str, bytes]:
        parts = {}
        for _, name, offset, size, crc32, *_ in sample.rows:
            payload = self.dataset.storage.read_range(sample.shard.name, offset, offset + size)
            if zlib.crc32(payload) != crc32:
                raise DecodeError(f"part {name.decode()!r}: its CRC-32 differs")
            parts[name.decode()] = payload
        return parts

    def _compare(self, packed: Mapping[str, bytes], sample: _Sample, source: Source, job: Job) -> str:
        (item,) = job.items
        labels = _named(sample_labels(packed.get), source), _named(item.label, source)
        if labels[0] != labels[1]:
            return f"has the label {labels[0]}, its input {item.path!r} has {labels[1]}"
        ((result, again),) = Piece(job=job).outcomes()
        if again is None:
            reason = "" if result.quarantined is None else result.quarantined.reason
            return f"its input {item.path!r} cannot be packed again: {reason}"
        has_same_codecs = sample.receipt.recipe_sha256 == self.recipe.digest
        for part in sorted({*packed, *again.parts} - {*LABEL_PARTS}):
            one, other = packed.get(part), again.parts.get(part)
            is_same = one == other
            if not (is_same or has_same_codecs or one is None or other is None):
                is_same = self._is_alike(part, one, other, again, job)
            if not is_same:
                is_input = sample.receipt.record(sample.slot).content == result.content
                why = "" if is_input else ", which has changed since it was packed"
                return f"its part {part!r} differs from the part that is packed from {item.path!r}{why}"
        return ""

    def _is_alike(self, part: str, packed: bytes, again: bytes, sample: PackedSample, job: Job) -> bool:
        """Whether a part, which other codecs have made, shows the same as the part packed here."""
        recipe = self.recipe.image
        most = recipe.max_pixels
        try:
            if part in self.recipe.annotations.masks:  # encoded without loss, whatever the codec
                with map_codec_errors(DecodeError):
                    size = next(iter(sample.images.values())).geometry.size
                    one, other = (mask_values(data, size, max_pixels=most) for data in (packed, again))
                    return np.array_equal(one, other)
            if part not in sample.images:
                return False
            if image_array.is_array(packed) or image_array.is_array(again):
                return _are_same_arrays(packed, again, most)
            exact = again
            if recipe.format != "png":
                found = job.reader.read(job.items[0])
                own = None if part in IMAGE_PARTS else self.recipe.further_images(found.parts)[part.rpartition(".")[0]]
                exact = pack_image(found.image if own is None else found.parts[own], recipe.lossless()).image
            return _are_same_pictures(*(_pixels(data, most) for data in (packed, again, exact)))
        except SampleError:
            return False


def _named(label: Label, source: Source) -> str:
    """Return a label, or several, by the names of the classes."""
    numbers = () if label is None else (label,) if isinstance(label, int) else label
    names = source.classes or ()
    return ", ".join(repr(names[one]) if one < len(names) else str(one) for one in numbers) or "no class"


def _are_same_arrays(packed: bytes, expected: bytes, max_pixels: int) -> bool:
    """Whether two arrays of images are the same, but for roundings of a resize."""
    for data in (packed, expected):
        check_image(data, max_pixels)
    one, other = image_array.pixels(packed), image_array.pixels(expected)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return int(np.abs(one.astype(np.int32) - other).max()) <= 1


def _are_same_pictures(packed: _Pixels, expected: _Pixels, exact: _Pixels) -> bool:
    """Whether two encodings of a picture are as near to it, and to each other, as two codecs' encodings are."""
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
