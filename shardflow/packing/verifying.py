"""Verifying: a dataset's stored bytes, and some of its images against their inputs.

Checksums show only that nothing has changed since packing. A comparison with the sources also shows that the images and
labels are the intended ones.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from shardflow._cores import allowed_cores
from shardflow._masks import mask_values
from shardflow._pillow import map_codec_errors, open_image
from shardflow._rgb import rgb_pixels
from shardflow._validation import check_integer
from shardflow._wording import plural
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
from shardflow.formats.labels import LABEL_PARTS, Label, format_label, sample_labels
from shardflow.formats.receipt import Receipt
from shardflow.formats.shard import OnShard, Shard
from shardflow.formats.shard_layout import sample_key
from shardflow.order import keyed_rng

from .image.pipeline import pack_image
from .jobs import Job, Piece
from .origin import FoundInputs, find_inputs, job_again, not_in_sources, open_sources
from .sample_recipe import PackedSample, SampleRecipe
from .sources.items import Item
from .sources.source import Source

_Pixels = npt.NDArray[np.float32]
_Checksums: TypeAlias = tuple[tuple[str, int, int], ...]

IMAGES = 300
"""Number of images that are compared with their sources by default."""

OTHER_LABEL = "has the label"
"""The beginning of findings about a sample whose input has another label."""

_NAMED = 20
"""Number of differing texts that are read, so that the finding says which fields differ."""

_BLOCK = 16
_LOSSES, _LEVELS = 2.0, 2.0
"""Tolerance for an image packed by other codecs: in each block of 16 x 16, its distance (root mean square) from the
pixels before encoding may be twice that of an image packed now, plus two levels of 255.

With and without the native kernel, photographs, scans and noise exceed twice the distance by a quarter of a level at
most, at qualities from 30 up. Different pictures exceed it by 20 levels in some block.
"""

_CONTRAST, _ROUNDING = 0.25, 0.05
"""Tolerance for the variance of the difference of two packed images: a share of both variances, plus rounding.

Pictures of one file differ by a share of 0.07 at most, others by 1. This rule distinguishes pictures with too little
contrast for the other rule, such as dark frames.
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

    Without sources, only damage is found: checksums cannot show whether images and labels are the intended ones. With
    sources, each sample must have an input with its label and texts, and random images are packed again from them;
    image and other parts must be equal, or nearly equal if the codecs have other versions.

    >>> shardflow.verify("photos256", sources=["photos/"])
    []

    Args:
        url: A directory or a URL. A remote dataset is read at its URL, not in the cache.
        sources: The sources of the pack and of its extensions, as for `pack`.
        images: Number of images to compare, 1 or more; all if the dataset has fewer.
        seed: Seed of their choice.
        storage_options, source_options: Options of fsspec's file systems for `url` and `sources`, if these are URLs.
        progress: Called with each shard after it was read.

    Returns:
        The findings, by split and shard; an empty list if there are none.

    Raises:
        NotFoundError: The dataset or a source does not exist.
        ManifestError: The manifest is damaged.
        StoreError: The dataset cannot be reached. A single unreadable file is a finding.
        ConfigError: An argument is wrong. With sources: one cannot be packed or has other labels, or the dataset is
            virtual or was not packed.
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
    images: int  # number of images that were compared
    labels: int  # number of samples whose labels were compared
    inputs_without_sample: list[str]  # paths; the quarantine does not count. Not searched in a damaged dataset
    left_out: int = 0  # number of damaged shards


def compare_with_sources(
    dataset: Dataset,
    sources: Sequence[Source],
    *,
    images: int = IMAGES,
    seed: int = 0,
    damaged: Collection[str] = (),
) -> Comparison:
    """Compare labels and some images with their inputs, except in shards with `damaged` files; see `verify`."""
    if not sources:
        return Comparison([], 0, 0, [])
    shards = [shard for shard in dataset.shards if not {shard.name, shard.index_name} & set(damaged)]
    chosen = _choose(np.array([shard.samples for shard in shards], dtype=np.int64), images, seed)
    findings: list[Finding] = []
    samples: list[_Sample] = []
    inputs, compared, is_complete = _Inputs(dataset, sources), 0, not damaged

    def read(shard: Shard) -> tuple[Receipt, ShardRows] | Finding:
        try:
            receipt = read_receipt(dataset.storage, shard.receipt_name, shard)
            return receipt, ShardRows.from_index(read_index(dataset.storage, shard), shard.samples)
        except (StoreError, FormatError, IntegrityError) as error:
            return Finding(shard.receipt_name, f"its images cannot be compared with their inputs: {error}")

    with ThreadPoolExecutor(2 * allowed_cores()) as threads:
        for number, (shard, made) in enumerate(zip(shards, threads.map(read, shards), strict=True)):
            if isinstance(made, Finding):
                findings.append(made)
                is_complete = False
                continue
            (receipt, rows), records = made, {*chosen.get(number, ())}
            slots, compared = receipt.packed_slots(), compared + len(records)
            for record, problem in inputs.differing(shard, receipt, rows):
                (records.discard if problem else records.add)(record)
                if problem:
                    findings.append(Finding(shard.name, problem, key=sample_key(receipt.first + slots[record])))
            samples += [_Sample(shard, receipt, slots[record], rows.of_record(record)) for record in sorted(records)]
        found = find_inputs(sources, [(sample.shard, sample.receipt, [sample.slot]) for sample in samples])
        check = _Check(dataset, SampleRecipe.of(dataset.manifest), found)
        for sample, problem in zip(samples, threads.map(check.problem, samples), strict=True):
            if problem:
                findings.append(Finding(sample.shard.name, problem, key=sample.key))
    unused = inputs.unused(bad.path for bad in dataset.quarantine()) if is_complete else []
    return Comparison(findings, compared, inputs.labels, unused, len(dataset.shards) - len(shards))


class _Sample(NamedTuple):
    """A sample to compare: its shard, receipt, slot in the receipt, and rows of the index."""

    shard: Shard
    receipt: Receipt
    slot: int
    rows: Sequence[tuple[Any, ...]]  # of the index

    @property
    def key(self) -> str:
        return sample_key(self.receipt.first + self.slot)


class _Expected(NamedTuple):
    """What a sample must have: the label of its input, and the checksums of those other parts that are texts."""

    label: Label
    source: Source
    texts: _Checksums = ()


class _Inputs:
    """Finds the inputs of all samples, and compares their labels and texts by the checksums in the indexes.

    Attributes:
        labels: Number of samples whose labels were compared; 0 if neither dataset nor sources have labels.
    """

    def __init__(self, dataset: Dataset, sources: Sequence[Source]) -> None:
        self.labels, self._differing = 0, 0
        self._inputs: dict[str, dict[str, tuple[_Expected, ...]]] = {}  # split → path → what its inputs have
        self._stored: dict[Label, _Checksums] = {}
        annotations = dataset.manifest.annotations.parts
        for source in sources:
            for split, items in source.splits.items():
                self._stored |= {label: _checksums(label) for label in items.labels}
                of_split = self._inputs.setdefault(split, {})
                own = {label: (_Expected(label, source),) for label in items.labels}
                for item in items:
                    texts = _texts(item, annotations)
                    expected = (_Expected(item.label, source, texts),) if texts else own[item.label]
                    of_split[item.path] = of_split.get(item.path, ()) + expected
        self._stored |= {label: _checksums(label) for label in (None, *range(len(dataset.classes or ())))}
        self._named = {checksums: label for label, checksums in self._stored.items()}
        self._unused = {(split, path) for split, paths in self._inputs.items() for path in paths}

    def unused(self, others: Iterable[str]) -> list[str]:
        """Return the paths of inputs that no sample of the shards read so far has, without `others`; sorted."""
        return sorted({path for _, path in self._unused}.difference(others))

    def differing(self, shard: Shard, receipt: Receipt, rows: ShardRows) -> Iterator[tuple[int, str]]:
        """Yield the records without inputs, or with other labels, and the problem, "" if the sample must be read."""
        split = shard.name.partition("/")[0]
        inputs = self._inputs.get(split, {})
        self._unused.difference_update((split, path) for path in receipt.sources)
        for record, path in enumerate(receipt.sources):
            if not (found := inputs.get(path, ())):
                yield record, not_in_sources(path, shard)
                continue
            self.labels += len(self._named) > 1
            members = rows.of_record(record)
            parts = [(row[1].decode(), row[3], row[4]) for row in members]
            stored = tuple(part for part in parts if part[0] in LABEL_PARTS)
            if any(self._stored[each.label] == stored and {*parts}.issuperset(each.texts) for each in found):
                continue
            if len(found) > 1 or stored not in self._named:
                yield record, ""
            elif problem := _other_label(self._named[stored], path, found[0].label, found[0].source):
                yield record, problem
            elif lacking := [name for name, *_ in {*found[0].texts} - {*parts}]:
                problem = f"its part {min(lacking)!r} differs from that of its input {path!r}"
                self._differing += 1
                yield record, problem if self._differing > _NAMED else ""


def _checksums(label: Label) -> _Checksums:
    """Return name, size and CRC-32 of the part that holds a label."""
    return tuple((part, len(data), zlib.crc32(data)) for part, data in format_label(label).items())


def _texts(item: Item, annotations: Collection[str]) -> _Checksums:
    """Return name, size and CRC-32 of the parts that are packed as the listing has them; images change annotations."""
    places = json.loads(item.more).get("parts", {}) if item.more else {}
    texts = {part: text.encode(errors="replace") for part, text in places.items() if isinstance(text, str)}
    return tuple((part, len(data), zlib.crc32(data)) for part, data in texts.items() if part not in annotations)


def _differing_fields(packed: bytes | None, again: bytes | None) -> str:
    """Return the end of a message: a field in which two JSON objects differ, and the number of others."""
    try:
        one, other = dict(json.loads(packed or b"{}")), dict(json.loads(again or b"{}"))
    except (ValueError, TypeError, RecursionError):  # not JSON, or no object
        return ""
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    more = f" and {plural(len(names) - 1, 'further field')}" if len(names) > 1 else ""
    return f": {names[0]!r} is {one.get(names[0])!r}, not {other.get(names[0])!r}{more}" if names else ""


def _other_label(packed: Label, path: str, label: Label, source: Source) -> str:
    """Return the problem of a sample with another label than its input; "" if both are the same classes."""
    one, other = _named(packed, source), _named(label, source)
    return "" if one == other else f"{OTHER_LABEL} {one}, its input {path!r} has {other}"


def _choose(sizes: npt.NDArray[np.int64], images: int, seed: int) -> dict[int, list[int]]:
    """Return number of a shard → records to compare."""
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
        if problem := _other_label(sample_labels(packed.get), item.path, item.label, source):
            return problem
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
                fields = _differing_fields(one, other) if part == "json" else ""
                return f"its part {part!r} differs from the part that is packed from {item.path!r}{why}{fields}"
        return ""

    def _is_alike(self, part: str, packed: bytes, again: bytes, sample: PackedSample, job: Job) -> bool:
        """Return whether a part that other codecs packed shows the same as the part packed here."""
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
    """Return a label as the names of its classes."""
    numbers = () if label is None else (label,) if isinstance(label, int) else label
    names = source.classes or ()
    return ", ".join(repr(names[one]) if one < len(names) else str(one) for one in numbers) or "no class"


def _are_same_arrays(packed: bytes, expected: bytes, max_pixels: int) -> bool:
    """Return whether two image arrays are equal, except for the rounding of a resize."""
    for data in (packed, expected):
        check_image(data, max_pixels)
    one, other = image_array.pixels(packed), image_array.pixels(expected)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return int(np.abs(one.astype(np.int32) - other).max()) <= 1


def _are_same_pictures(packed: _Pixels, expected: _Pixels, exact: _Pixels) -> bool:
    """Return whether two encodings are as close to the exact picture and to each other as those of two codecs."""
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
