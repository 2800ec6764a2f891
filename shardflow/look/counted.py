"""What is known of the images of a split: from the manifest's statistics, or else from the indexes of some shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardflow.dataset import Dataset
from shardflow.shardindex import IMAGE_PARTS
from shardflow.statistics import Statistics

from .choice import evenly
from .peek import Peek

_SHARDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Counts over images.

    Attributes:
        images: How many were counted.
        whole: Whether these are all of the split.
        bytes_before, bytes_after: Encoded bytes of them all; None where it is not known.
        widths_before, heights_before, widths_after, heights_after: Side in pixels, rounded down to a few digits →
            images; empty where it is not known.
        classes: Label → images; empty where it is not known.
        done: What was done to how many of them while packing.
    """

    images: int
    whole: bool
    bytes_before: int | None
    bytes_after: int
    widths_before: Mapping[int, int] = field(default_factory=dict)
    heights_before: Mapping[int, int] = field(default_factory=dict)
    widths_after: Mapping[int, int] = field(default_factory=dict)
    heights_after: Mapping[int, int] = field(default_factory=dict)
    classes: Mapping[int, int] = field(default_factory=dict)
    done: Mapping[str, int] = field(default_factory=dict)


def count_images(dataset: Dataset, split: str) -> Counted:
    """Count the images of a split."""
    known = (dataset.manifest.statistics or {}).get(split)
    if known is None:
        return _from_indexes(dataset, split)
    basic = ("images", "bytes_before", "bytes_after")
    return Counted(
        images=known.counts["images"],
        whole=True,
        bytes_before=known.counts["bytes_before"],
        bytes_after=known.counts["bytes_after"],
        widths_before=known.widths_before,
        heights_before=known.heights_before,
        widths_after=known.widths_after,
        heights_after=known.heights_after,
        classes=known.classes,
        done={name: number for name, number in known.counts.items() if name not in basic and number},
    )


def _from_indexes(dataset: Dataset, split: str) -> Counted:
    peek = Peek(dataset, split)
    chosen = evenly(len(peek.split.shards), _SHARDS)
    seen, images, size = Statistics(), 0, 0
    for shard in chosen:
        for _, part, _, payload_bytes, _, width, height in peek.rows(shard) or ():
            if part.decode().rpartition(".")[2] in IMAGE_PARTS:
                images, size = images + 1, size + payload_bytes
                if width and height:
                    seen.count(before=(width, height), after=(width, height), labels=())
    return Counted(
        images=images,
        whole=len(chosen) == len(peek.split.shards),
        bytes_before=None,
        bytes_after=size,
        widths_after=seen.widths_after,
        heights_after=seen.heights_after,
    )
