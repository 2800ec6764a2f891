"""A batch on its way through the stages of a worker's pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardflow.dataset.mapped_shard import MappedShard
from shardflow.dataset.partial_shard import PartialSample
from shardflow.errors import IntegrityError, ShardflowError
from shardflow.order.keyed_rng import U64


class Sample(NamedTuple):
    """One sample of a batch: its parts by name, where it lies, and its image where it is decoded already."""

    parts: Mapping[str, memoryview]
    shard: MappedShard | PartialSample
    record: int
    pixels: npt.NDArray[np.uint8] | None = None

    @property
    def key(self) -> str:
        """The key, read from the tar: few batches need it, and it is what else is read there.

        Raises:
            IntegrityError: The header that holds it is damaged.
        """
        return self.shard.key(self.record)

    def blame(self, error: ShardflowError) -> ShardflowError:
        """Return the error, with this sample as the place where it happened."""
        try:
            key = self.key
        except IntegrityError:
            key = f"record {self.record}"
        return error.at(shard=self.shard.url, key=key)


@dataclass(slots=True, kw_only=True)
class Batch:
    """A batch in a worker's pipeline; each stage fills in its part.

    Attributes:
        key: The batch's own 64-bit key.
        keys: uint64 [B], the samples' keys: from (seed, epoch, sample) alone.
        shards, records: int64 [B], where the samples lie.
        valid: bool [B], False for the repeats that fill a padded tail.
        empty: This rank has no sample in this step. The batch then carries one, so that shapes and dtypes are right,
            and the last stage removes it.
        samples: The samples that were read.
        images: The images from the decoder, then from the transform.
        substituted: The problem of each sample that another one of the batch replaces.
    """

    key: int
    keys: U64
    shards: npt.NDArray[np.int64]
    records: npt.NDArray[np.int64]
    valid: npt.NDArray[np.bool_]
    empty: bool
    samples: list[Sample] = field(default_factory=list)
    images: Any = None
    substituted: list[str] = field(default_factory=list)
