"""Diff: compares two datasets by their manifests, indexes and receipts, without reading tars."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.formats.shard import OnShard
from shardflow.formats.shard_index import KEY_PART, Index

from .open_dataset import Dataset, open_dataset
from .selection import image_checksums

_EXAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitDiff:
    """The differences of a split; pairs are (first dataset, second dataset).

    Attributes:
        samples, shards: Number of samples and of shards.
        same_shards: Number of shards whose tars are equal, byte for byte.
        by: How samples were compared: "source", by the path of the input, if both datasets have receipts; else
            "content", by size and CRC-32 of the image.
        both: Number of samples in both datasets.
        changed_images: Number of these with different images; 0 if compared by content.
        changed_parts: Number of these with equal images but different labels, captions or other parts.
        only: Number of samples in one dataset only.
        examples: Sources of some of these; empty if compared by content.
    """

    samples: tuple[int, int]
    shards: tuple[int, int]
    same_shards: int
    by: str
    both: int
    changed_images: int
    changed_parts: int
    only: tuple[int, int]
    examples: tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """The differences of two datasets; pairs are (first dataset, second dataset).

    Attributes:
        fingerprints: The fingerprints, equal for equal datasets.
        recipe: Setting → pair of different values; None if a recipe lacks it.
        annotations: Declaration, such as "boxes" → pair of different texts; None if a dataset lacks it.
        columns: Column → pair of different types and digests of values; None if a dataset lacks it.
        classes_only: Names of the classes in one dataset only.
        renumbered: Names of the classes with different numbers.
        splits: Split → its differences, also for a split in one dataset only.
    """

    fingerprints: tuple[str, str]
    recipe: Mapping[str, tuple[Any, Any]]
    annotations: Mapping[str, tuple[str | None, str | None]]
    columns: Mapping[str, tuple[str | None, str | None]]
    classes_only: tuple[tuple[str, ...], tuple[str, ...]]
    renumbered: tuple[str, ...]
    splits: Mapping[str, SplitDiff]

    @property
    def same(self) -> bool:
        """Whether the datasets are equal."""
        return self.fingerprints[0] == self.fingerprints[1]


def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    a_options: Mapping[str, Any] | None = None,
    b_options: Mapping[str, Any] | None = None,
    progress: OnShard = None,
) -> Diff:
    """Compare two datasets.

    >>> shardflow.diff("photos256", "s3://bucket/photos256").same
    True

    Args:
        a, b: The datasets.
        a_options, b_options: Options of fsspec's file systems for `a` and `b`, if these are URLs.
        progress: Called with each shard after its index was read.

    Raises:
        NotFoundError: A dataset or an index does not exist.
        IntegrityError: An index differs from the packed one.
        StoreError: A dataset cannot be reached.
    """
    first, second = open_dataset(a, storage_options=a_options), open_dataset(b, storage_options=b_options)
    declared = [each.manifest.annotations.describe() for each in (first, second)]
    columns = [{name: each.describe() for name, each in one.manifest.columns.items()} for one in (first, second)]
    ours, theirs = ({name: number for number, name in enumerate(one.classes or ())} for one in (first, second))
    splits = dict.fromkeys((*first.splits, *second.splits))
    return Diff(
        fingerprints=(first.fingerprint, second.fingerprint),
        recipe=_differing(first.recipe, second.recipe),
        annotations=_differing(*declared),
        columns=_differing(*columns),
        classes_only=(tuple(n for n in ours if n not in theirs), tuple(n for n in theirs if n not in ours)),
        renumbered=tuple(name for name in ours if ours[name] != theirs.get(name, ours[name])),
        splits={split: _split_diff(first, second, split, progress) for split in splits},
    )


def _differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    pairs = {name: (ours.get(name), theirs.get(name)) for name in {**ours, **theirs}}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _split_diff(a: Dataset, b: Dataset, split: str, progress: OnShard) -> SplitDiff:
    has_receipts = not (a.manifest.roots or b.manifest.roots)
    sides = tuple(_Side(dataset, split, has_receipts, progress) for dataset in (a, b))
    tars = [Counter(shard.sha256 for shard in side.shards) for side in sides]
    by_source = all(side.sources is not None for side in sides)
    names: list[Any] = [side.sources if by_source else side.images for side in sides]
    first, second = (Counter[Any](each) for each in names)
    only, both = (first - second, second - first), (first & second).total()
    named = [*zip(names, sides, strict=True)]
    same_images = _shared(*(zip(each, side.images, strict=True) for each, side in named))
    same = _shared(*(zip(each, side.images, side.others, strict=True) for each, side in named))
    return SplitDiff(
        samples=(len(sides[0].images), len(sides[1].images)),
        shards=(len(sides[0].shards), len(sides[1].shards)),
        same_shards=(tars[0] & tars[1]).total(),
        by="source" if by_source else "content",
        both=both,
        changed_images=both - same_images,
        changed_parts=same_images - same,
        only=(only[0].total(), only[1].total()),
        examples=tuple(tuple(sorted(map(str, one))[:_EXAMPLES]) if by_source else () for one in only),  # type: ignore[arg-type]
    )


def _shared(ours: Iterable[Any], theirs: Iterable[Any]) -> int:
    """Return the number of elements that both have, each as often as it is in both."""
    return (Counter(ours) & Counter(theirs)).total()


class _Side:
    """The shards of a split in one of the datasets, with checksums of the parts and the source of each sample.

    The sources are None if a receipt is missing or does not belong to its shard.
    """

    def __init__(self, dataset: Dataset, split: str, receipts: bool, progress: OnShard) -> None:
        self.shards = dataset[split].shards if split in dataset else ()
        self.images: list[int] = []
        self.others: list[int] = []
        self.sources: list[str] | None = [] if receipts else None
        for number, shard in enumerate(self.shards):
            index = dataset[split].reader.index(number)
            self.images += image_checksums(index).tolist()
            self.others += _other_checksums(index)
            if self.sources is not None:
                found = dataset[split].receipt(number)
                if found is None:
                    self.sources = None
                else:
                    self.sources += found.sources
            if progress is not None:
                progress(shard)


def _other_checksums(index: Index) -> list[int]:
    """Return for each record a hash of the names, CRC-32s and sizes of its parts except key and image."""
    images = {part.encode() for part in IMAGE_PARTS}
    contents: list[set[tuple[bytes, int, int]]] = [
        set() for _ in range(int(index["record"][-1]) + 1 if len(index) else 0)
    ]
    for record, part, crc32, size in index[["record", "part", "crc32", "size"]].tolist():
        if part != KEY_PART and part not in images:
            contents[record].add((part, crc32, size))
    return [hash(frozenset(content)) for content in contents]
