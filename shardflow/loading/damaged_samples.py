"""Damaged samples: each raises its error, is left out of its bin, or is replaced by another of its batch."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardflow.dataset.sample import Sample
from shardflow.errors import DecodeError, IntegrityError, ShardflowError

from .batch import Batch
from .decoders.decoder import as_views
from .ragged_images import RaggedImages
from .source import Source

DAMAGED = Sample({}, (0, 0), 0, 0, "", "")
"""The placeholder of a sample that could not be read, until `replace_damaged`."""


def replace_damaged(batch: Batch, failures: Mapping[int, ShardflowError], sources: Sequence[Source]) -> dict[int, int]:
    """Replace failed samples of a batch by good ones, and record the failures; or raise the first failure.

    If its source allows it, a failed sample is replaced by the next good one of the batch, so the result is the same in
    every process. In bins of a token budget, where another sample has other tokens, the replacement only fills the
    place until `leave_out`. Return failed sample → replacement.
    """
    replaced: dict[int, int] = {}
    if not failures:
        return replaced
    size = len(batch.samples)
    refused = [index for index in failures if len(failures) == size or not sources[batch.sources[index]].max_errors]
    if refused:
        error = failures[min(refused)]
        if isinstance(error, DecodeError | IntegrityError) and not sources[batch.sources[min(refused)]].max_errors:
            error.args = (f"{error}; max_errors= replaces damaged samples",)
        raise error
    decoder = sources[batch.sources[0]].decoder
    for index in failures:
        good = next(other % size for other in range(index + 1, index + size) if other % size not in failures)
        replaced[index] = good
        if sources[batch.sources[index]].epochs.sampler.patch is not None:
            batch.left_out.add(index)
        batch.samples[index], batch.pixels[index] = batch.samples[good], batch.pixels[good]
        batch.sources[index] = batch.sources[good]
        batch.valid[index] = False
        if isinstance(batch.images, RaggedImages):
            batch.images = list(batch.images)  # the replacement has another size
        if batch.images is not None:
            decoder.copy_image(batch.images, index, good)
        for values in (view for column in batch.returned.values() for view in as_views(column)):
            values[index] = copy.deepcopy(values[good])  # a transform may write into either
        for crops in () if batch.crops is None else as_views(batch.crops):
            crops.replace(index, crops[good : good + 1])
    batch.replaced += [str(failures[index]) for index in sorted(failures)]
    return replaced


def leave_out(batch: Batch) -> None:
    """Remove the damaged samples of bins from a batch."""
    if not batch.left_out:
        return
    rows = np.array([row for row in range(len(batch.samples)) if row not in batch.left_out])
    for name in _COLUMNS:
        setattr(batch, name, _kept(getattr(batch, name), rows))
    batch.annotations = tuple({field: _kept(view[field], rows) for field in view} for view in batch.annotations)
    batch.returned = {field: _kept(column, rows) for field, column in batch.returned.items()}
    batch.left_out.clear()


_COLUMNS = ("keys", "shards", "records", "valid", "bins", "sources", "samples", "pixels", "images", "crops")


def _kept(column: Any, rows: Any) -> Any:
    """Return some rows of a column, or of each view."""
    if column is None:
        return None
    if isinstance(column, tuple):
        return tuple(_kept(view, rows) for view in column)
    return [column[row] for row in rows] if isinstance(column, list | RaggedImages) else column[rows]
