"""Which samples are looked at: some from all over a split, or those of one class."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from shardflow.dataset.dataset import Split
from shardflow.errors import ConfigError
from shardflow.formats.manifest import Shard
from shardflow.formats.shard_index import IMAGE_PARTS

from .sample_reader import labels_of

SHARDS = 4
"""Of a split, whose indexes are read."""


def spread(split: Split, count: int) -> list[int]:
    """Return the numbers of up to `count` samples, evenly from up to four shards that lie evenly in the split.

    Few shards, because each needs its index; the first samples that a split has say little about the others.
    """
    chosen = evenly(len(split.shards), SHARDS)
    firsts = split.first_sample(np.array(chosen, dtype=np.int64)).tolist()
    numbers: list[int] = []
    for place, (shard, first) in enumerate(zip(chosen, firsts, strict=True)):
        wanted = -(-(count - len(numbers)) // (len(chosen) - place))
        numbers += [first + record for record in evenly(split.shards[shard].samples, wanted)]
    return numbers


def of_class(
    split: Split,
    classes: Sequence[str] | None,
    name: str,
    count: int,
    progress: Callable[[Shard], None] | None = None,
) -> list[int]:
    """Return the numbers of the first samples of a class, up to `count`.

    Which samples are of the class is written in the samples alone, so whole shards are read, one after the other;
    `progress` is called after each.

    Raises:
        ConfigError: There is no such class, or the split has no sample of it.
    """
    if classes is None or name not in classes:
        known = "none: the samples have no labels" if classes is None else ", ".join(classes[:20])
        raise ConfigError(f"no class {name!r}; the classes are {known}")
    wanted, found, number = classes.index(name), [], 0
    for ordinal, line in enumerate(split.shards):
        for record in range(line.samples):
            if wanted in labels_of(split.reader.read(ordinal, record, unchecked=IMAGE_PARTS).parts):
                found.append(number + record)
                if len(found) == count:
                    return found
        split.reader.unmap(ordinal)
        if progress is not None:
            progress(line)
        number += line.samples
    if not found:
        raise ConfigError(f"split {split.name!r} has no sample of class {name!r}; choose another split")
    return found


def evenly(length: int, count: int) -> list[int]:
    """Return up to `count` of the numbers 0 … length-1, evenly spread, each from the middle of its part."""
    count = min(length, count)
    return [(2 * place + 1) * length // (2 * count) for place in range(count)]
