"""What is known of the images of a split: from the manifest's statistics, or else from the indexes of some shards."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from shardflow.dataset.dataset import Dataset
from shardflow.formats.image_types import IMAGE_PARTS
from shardflow.formats.statistics import Statistics

from .choice import SHARDS, evenly
from .sample_reader import SampleReader


class Counted(NamedTuple):
    """Counts over images, and whether these are all of the split.

    Of what only packing knows there is nothing where the manifest has no statistics: classes, sizes and bytes before.
    """

    statistics: Statistics
    whole: bool


def count_images(dataset: Dataset, peek: SampleReader) -> Counted:
    """Count the images of the split that is peeked into."""
    known = (dataset.manifest.statistics or {}).get(peek.split.name)
    if known is not None:
        return Counted(known, whole=True)
    counts, sizes = Counter[str](), Statistics()
    chosen = evenly(len(peek.split.shards), SHARDS)
    for shard in chosen:
        rows = peek.rows(shard)
        for _, part, _, payload_bytes, _, width, height in () if rows is None else rows.members:
            if part.decode() in IMAGE_PARTS:
                counts.update(images=1, bytes_after=payload_bytes)
                if width and height:
                    sizes.count(before=(width, height), after=(width, height), labels=())
    found = Statistics(counts=counts, widths_after=sizes.widths_after, heights_after=sizes.heights_after)
    return Counted(found, whole=len(chosen) == len(peek.split.shards))
