"""Image copies: the same image under different labels, or in different splits, which is mostly a mistake.

The indexes tell, so no tar is read: an image file that is packed twice gets the same bytes, and an index has the size
and the CRC-32 of each image and label. Of a hundred million different images a few dozen agree in both by chance.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np

from shardflow._wording import plural
from shardflow.errors import FormatError, IntegrityError, StoreError
from shardflow.formats.labels import LABEL_PARTS
from shardflow.formats.shard_index import Index
from shardflow.order.keyed_rng import U64
from shardflow.storage.transfers import TransferPool

from .open_dataset import Dataset, Split
from .selection import image_checksums
from .shard_rows import read_index

logger = logging.getLogger(__name__)

_INDEXES_AT_A_TIME = 8
_MOST_SAMPLES = 5_000_000  # their indexes have some 400 MB, which a bucket sends within half a minute


def warn_of_copies(*datasets: Dataset) -> None:
    """Warn of images that have different labels, and of those that are in different splits, with two of their names.

    Where an index cannot be read, that is the warning. More than `_MOST_SAMPLES` are not compared.
    """
    names = sorted({name for dataset in datasets for name in dataset})
    if len(names) == 1 and all(dataset.classes is None for dataset in datasets):
        return
    parts = [split for dataset in datasets for split in dataset.values()]
    if sum(map(len, parts)) > _MOST_SAMPLES:
        logger.info(
            "whether images come twice was not checked, because there are over %s samples", f"{_MOST_SAMPLES:,}"
        )
        return
    shards = [(dataset.storage, shard) for dataset in datasets for shard in dataset.shards]
    try:
        with TransferPool(_INDEXES_AT_A_TIME) as pool:
            found = list(pool.map(lambda each: _checksums(read_index(*each)), shards))
    except (FormatError, IntegrityError, StoreError) as error:
        logger.warning("whether images come twice was not checked: %s", error)
        return
    images, labels = (np.concatenate(each) for each in zip(*found, strict=True))
    splits = np.repeat([names.index(split.name) for split in parts], [len(split) for split in parts])
    wrong = (
        "remove the samples with wrong ones (`shardflow remove --keys`), or pack such an image once with all its labels"
    )
    for samples, values, found_in, remedy in (
        (np.flatnonzero(labels), labels, "with different labels", wrong),
        (np.arange(len(images)), splits, "in several splits", "keep it in one, or results will look too good"),
    ):
        order = samples[np.lexsort((values[samples], images[samples]))]
        pairs = np.flatnonzero((np.diff(images[order]) == 0) & (np.diff(values[order]) != 0))
        if len(pairs):
            count = plural(len(np.unique(images[order[pairs]])), "image")
            shown = sorted({source_of(parts, int(sample)) for sample in order[pairs[0] : pairs[0] + 2]})
            logger.warning("%s packed %s, such as %s: %s", count, found_in, " and ".join(shown), remedy)


def _checksums(index: Index) -> tuple[U64, U64]:
    """Return for each record the CRC-32 and the size of its image as one number, and those of its label; 0 for none."""
    images = image_checksums(index)
    labels = np.zeros_like(images)
    rows = index[np.isin(index["part"], [part.encode() for part in LABEL_PARTS])]
    labels[rows["record"]] = rows["crc32"].astype(np.uint64) << np.uint64(32) | rows["size"]
    return images, labels


def source_of(splits: Iterable[Split], number: int) -> str:
    """Return the source and the key of a sample, numbered over all splits, as a message shows them."""
    for split in splits:
        if number < len(split):
            break
        number -= len(split)
    try:
        return f"{split.source(number)!r} ({split.name}:{split[number]['__key__']})"
    except (FormatError, IntegrityError, StoreError):  # tars of other tools have no receipts
        return f"sample {number} of {split.name}"
