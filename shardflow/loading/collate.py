"""Collating: the last stage of a worker, which turns a batch into the fields that the training loop receives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from shardflow.errors import ConfigError

from .batch import Batch
from .batch_fields import batch_field, part_value
from .damaged_samples import leave_out
from .decoders.decoder import Allocator, allocate
from .fork_rng import fork_rng, reseed
from .source import Source
from .stages import Batches, batch_place
from .stats import BatchCounts
from .worker_errors import add_context


class Collate:
    """Turns batches into tuples in the order of `fields`, and applies the batch transform to them.

    A field that the source of a batch lacks is None. If a batch mixes samples of several sources, the field is a list
    with None for samples that lack it.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        fields: Sequence[str],
        allocator: Allocator = allocate,
        *,
        by_sample: bool = False,
    ) -> None:
        self._sources, self._fields, self._allocator, self._by_sample = sources, fields, allocator, by_sample

    def __call__(self, batches: Batches) -> Iterator[WorkerOutput]:
        """Return finished batches."""
        for batch in batches:
            leave_out(batch)
            numbers = {*batch.sources}
            columns = tuple(self._field(field, batch, numbers) for field in self._fields)
            batch_transform = self._sources[batch.sources[0]].batch_transform
            if batch.empty:
                columns = tuple(map(_emptied, self._fields, columns))
            if batch_transform is not None:
                with fork_rng(), add_context(partial(batch_place, "batch_transform", batch)):
                    reseed(batch.key)
                    columns = batch_transform(*columns)
                if columns is None:
                    raise ConfigError("batch_transform returned None; return the batch")
            counts = BatchCounts(0 if batch.empty else len(batch.samples), batch.read_bytes, batch.network_bytes)
            yield WorkerOutput(columns, batch.replaced, counts)

    def _field(self, field: str, batch: Batch, numbers: set[int]) -> Any:
        lacking = {number for number in numbers if field not in self._sources[number].returns}
        if not lacking:
            return batch_field(field, batch, self._sources, self._allocator)
        if not self._by_sample:
            return None
        pairs = zip(batch.sources, batch.samples, strict=True)
        return [
            None if number in lacking else part_value(sample, field, self._sources[number].columns.of_parts)
            for number, sample in pairs
        ]


class WorkerOutput(NamedTuple):
    """A finished batch, the problems of its replaced samples, and its counts for the statistics."""

    columns: Any
    replaced: list[str]
    counts: BatchCounts


def _emptied(field: str, column: Any) -> Any:
    left = int(field == "cu_seqlens")  # begins with 0 even without samples
    if column is None:
        return None
    return tuple(view[:left] for view in column) if isinstance(column, tuple) else column[:left]
