"""Diff: how two datasets differ, told from manifests, indexes and receipts; no tar is read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shardflow.errors import FormatError, NotFoundError
from shardflow.formats.manifest import Shard
from shardflow.formats.receipt import from_bytes

from .dataset import Dataset, open_dataset
from .selection import contents

_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitDiff:
    """How a split differs; pairs are (of the first dataset, of the second).

    Attributes:
        samples, shards: Numbers.
        same_shards: Shards whose tars are the same, byte for byte.
        by: How samples were told apart: "source" by the path of the input, where both have receipts, else "content" by
            size and CRC-32 of the image.
        both: Samples that both have.
        changed: Of those, told by source, how many have another image now.
        only: Samples that one alone has.
        examples: Some of the sources of those.
    """

    samples: tuple[int, int]
    shards: tuple[int, int]
    same_shards: int
    by: str
    both: int
    changed: int
    only: tuple[int, int]
    examples: tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """How two datasets differ; pairs are (of the first dataset, of the second).

    Attributes:
        fingerprints: They are the same when the datasets are.
        recipe: Setting → its values, where they differ; None where one does not say.
        classes_only: Names of the classes that one alone has.
        renumbered: Classes of both that have another number.
        splits: How each split differs, also those that one alone has.
    """

    fingerprints: tuple[str, str]
    recipe: Mapping[str, tuple[Any, Any]]
    classes_only: tuple[tuple[str, ...], tuple[str, ...]]
    renumbered: tuple[str, ...]
    splits: Mapping[str, SplitDiff]

    @property
    def same(self) -> bool:
        """Whether there is no difference."""
        return self.fingerprints[0] == self.fingerprints[1]


def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    a_options: Mapping[str, Any] | None = None,
    b_options: Mapping[str, Any] | None = None,
    progress: Callable[[Shard], None] | None = None,
) -> Diff:
    """Say how two datasets differ.

    Args:
        a, b: Datasets.
        a_options, b_options: What fsspec's file systems take, where these are URLs.
        progress: Called after each shard whose index was read.

    Raises:
        NotFoundError: There is no dataset, or an index is missing.
        IntegrityError: An index is not the one packed.
        StoreError: One of them is out of reach.
    """
    first, second = open_dataset(a, storage_options=a_options), open_dataset(b, storage_options=b_options)
    pairs = {name: (first.recipe.get(name), second.recipe.get(name)) for name in {**first.recipe, **second.recipe}}
    ours, theirs = ({name: number for number, name in enumerate(one.classes or ())} for one in (first, second))
    splits = dict.fromkeys((*first.splits, *second.splits))
    return Diff(
        fingerprints=(first.fingerprint, second.fingerprint),
        recipe={name: pair for name, pair in pairs.items() if pair[0] != pair[1]},
        classes_only=(
            tuple(name for name in ours if name not in theirs),
            tuple(name for name in theirs if name not in ours),
        ),
        renumbered=tuple(name for name in ours if ours[name] != theirs.get(name, ours[name])),
        splits={split: _split_diff(first, second, split, progress) for split in splits},
    )


def _split_diff(a: Dataset, b: Dataset, split: str, progress: Callable[[Shard], None] | None) -> SplitDiff:
    receipts = not (a.manifest.roots or b.manifest.roots)  # views have none
    sides = tuple(_Side(dataset, split, receipts, progress) for dataset in (a, b))
    tars = [Counter(shard.sha256 for shard in side.shards) for side in sides]
    by_source = all(side.sources is not None for side in sides)
    first, second = (Counter[Any](side.sources if by_source else side.contents) for side in sides)
    changed = 0
    if by_source:
        now = dict(zip(sides[1].sources or (), sides[1].contents, strict=True))
        before = zip(sides[0].sources or (), sides[0].contents, strict=True)
        changed = sum(now.get(source, content) != content for source, content in before)
    only = (first - second, second - first)
    return SplitDiff(
        samples=(len(sides[0].contents), len(sides[1].contents)),
        shards=(len(sides[0].shards), len(sides[1].shards)),
        same_shards=(tars[0] & tars[1]).total(),
        by="source" if by_source else "content",
        both=(first & second).total(),
        changed=changed,
        only=(only[0].total(), only[1].total()),
        examples=tuple(tuple(sorted(map(str, one))[:_NAMED]) if by_source else () for one in only),  # type: ignore[arg-type]
    )


class _Side:
    """A split of one of the datasets; `sources` are the inputs of its samples, None where a receipt is of no use."""

    def __init__(self, dataset: Dataset, split: str, receipts: bool, progress: Callable[[Shard], None] | None) -> None:
        self.shards = dataset[split].shards if split in dataset else ()
        self.contents: list[int] = []
        self.sources: list[str] | None = [] if receipts else None
        for number, shard in enumerate(self.shards):
            self.contents += contents(dataset[split].index(number)).tolist()
            if self.sources is not None:
                if (sources := _sources(dataset, shard)) is None:
                    self.sources = None
                else:
                    self.sources += sources
            if progress is not None:
                progress(shard)


def _sources(dataset: Dataset, shard: Shard) -> tuple[str, ...] | None:
    """Return the inputs of the samples of a shard; None where its receipt is missing, or is not of this shard."""
    try:
        sources = from_bytes(dataset.storage.read(shard.receipt_name)).sources
    except (NotFoundError, FormatError):
        return None
    return sources if len(sources) == shard.samples else None
