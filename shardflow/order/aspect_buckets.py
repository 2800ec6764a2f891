"""Aspect buckets: each batch has one shape, close to those of its images.

    stream    the samples in the order of another sampler
    groups    the samples of a bucket, in stream order, are cut into global batches; each stream gives equally many
              samples to a group, at its own positions, so that a rank reads the same shards as without buckets
    epoch     the groups, in the order in which the stream completes them
    rest      samples that fill no group of their bucket move to the next bucket; only the last bucket may be left with
              less than a global batch, the tail of the epoch

Every sample comes as often as in the stream.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow._validation import check_integer
from shardflow.errors import ConfigError

from .keyed_rng import I64
from .sampler import EpochPlan, EpochSampler, Facts, ListPlan, Sampler, Shape, Together, bound, known_sizes
from .shuffle_plan import ShuffledEpochs

_CHUNK = 1 << 18


class AspectBuckets:
    """Batches of one shape each, of images with the nearest aspect ratio. The shape is the same on all ranks.

    The last samples of a bucket move to the next one, so each sample comes once.

    >>> buckets = shardflow.samplers.AspectBuckets([(224, 224), (192, 256), (256, 192)])

    Args:
        shapes: Shapes of the buckets, (height, width) in pixels.
        sampler: The sampler whose samples are grouped; by default each sample comes once.

    Attributes:
        shapes: The shapes, from the tallest to the widest.

    Raises:
        ConfigError: The list is empty, or a shape is not a pair of whole numbers above 0.
    """

    def __init__(self, shapes: Sequence[Shape], sampler: Sampler | None = None) -> None:
        try:
            pairs = [(height, width) for height, width in shapes]
        except (TypeError, ValueError):
            raise ConfigError(
                f"shapes must be a list of pairs of height and width, as [(224, 224), (192, 256)]; found {shapes!r}"
            ) from None
        found = {(check_integer("height", height, 1), check_integer("width", width, 1)) for height, width in pairs}
        if not found:
            raise ConfigError("shapes must have one pair of height and width or more")
        self.shapes = tuple(sorted(found, key=lambda shape: (shape[1] / shape[0], shape)))
        self.sampler = sampler

    def __repr__(self) -> str:
        return f"AspectBuckets({list(self.shapes)}{'' if self.sampler is None else f', {self.sampler!r}'})"

    def buckets(self, sizes: I64) -> I64:
        """Return the bucket of each image, int64 [N], given its width and height, [N, 2]."""
        ratios = np.log([width / height for height, width in self.shapes])
        wanted = np.log(sizes[:, 0] / sizes[:, 1])
        right = np.clip(np.searchsorted(ratios, wanted), 1, max(1, len(ratios) - 1))
        left = right - 1
        right = np.minimum(right, len(ratios) - 1)
        nearest: I64 = np.where(wanted - ratios[left] <= ratios[right] - wanted, left, right)
        return nearest

    def bind(self, facts: Facts) -> EpochSampler:
        """Return epochs of such batches."""
        sizes = known_sizes(facts, "AspectBuckets")
        stream = ShuffledEpochs(facts) if self.sampler is None else bound(self.sampler, facts)
        if stream.together != "sample":
            raise ConfigError(f"{self.sampler!r} composes whole batches already; AspectBuckets needs another sampler")
        return BucketEpochs(stream, self.shapes, self.buckets(sizes), facts)


class BucketEpochs(EpochSampler):
    """The epochs of another sampler, grouped into buckets."""

    together: Together = "step"

    def __init__(self, stream: EpochSampler, shapes: Sequence[Shape], buckets: I64, facts: Facts) -> None:
        self._stream, self.shapes, self._buckets = stream, shapes, buckets
        self._group = facts.batch_size * facts.world_size
        self._firsts = np.cumsum(facts.shard_samples) - facts.shard_samples
        self.length, self.warnings = stream.length, stream.warnings
        shown = [list(shape) for shape in shapes]
        self.identity = {"aspect_buckets": [self._group, shown], "sampler": stream.identity}

    def plan(self, *, seed: int, epoch: int, streams: int) -> EpochPlan:
        """Return the order of an epoch."""
        plan = self._stream.plan(seed=seed, epoch=epoch, streams=streams)
        return BucketPlan(plan, self._buckets, self._firsts, group=self._group, streams=streams, shapes=self.shapes)


class BucketPlan(ListPlan):
    """The order of one epoch.

    Args:
        plan: The plan whose samples are grouped.
        buckets: The bucket of each sample of the split, an integer from 0; adjacent numbers are similar shapes.
        first_samples: The number of the first sample of each shard, int64.
        group: Samples in a global batch.
        streams: Streams of the plan.
        shapes: The shape of each bucket.

    Attributes:
        moved: Number of samples in a group of another bucket.
    """

    def __init__(
        self,
        plan: EpochPlan,
        buckets: npt.NDArray[Any],
        first_samples: I64,
        *,
        group: int,
        streams: int,
        shapes: Sequence[Shape] = (),
    ) -> None:
        self._group, self._shapes = group, shapes
        common = math.gcd(streams, group)  # positions equal modulo this are in the same streams
        each = group // common
        parts = [
            np.stack(plan.visits(np.arange(begin, min(begin + _CHUNK, plan.length))))
            for begin in range(0, plan.length, _CHUNK)
        ]
        visits = np.concatenate(parts, axis=1) if parts else np.empty((3, 0), dtype=np.int64)
        own = buckets[first_samples[visits[0]] + visits[1]]
        groups: list[I64] = []
        kinds: list[int] = []
        rest = np.empty(0, dtype=np.int64)
        last = int(own.max(initial=0))
        for bucket in range(last + 1):
            places = np.flatnonzero(own == bucket)
            by_remainder = [places[places % common == remainder] for remainder in range(common)]
            whole = min(map(len, by_remainder)) // each
            # [groups, each, common]: position p of a group belongs to the streams p % common.
            stacked = np.stack([one[: whole * each].reshape(whole, each) for one in by_remainder], axis=-1)
            rest = np.concatenate([rest, *(one[whole * each :] for one in by_remainder)])
            filled = len(rest) // group * group
            groups += [*stacked.reshape(whole, group), *rest[:filled].reshape(-1, group)]
            kinds += [bucket] * (len(groups) - len(kinds))
            rest = rest[filled:]
        order = sorted(range(len(groups)), key=lambda number: int(groups[number].max()))
        places = np.concatenate([*(groups[number] for number in order), rest])
        super().__init__(visits[:, places])
        self._kinds = np.array([*(kinds[number] for number in order), last])
        self.moved = int((own[places] != self._kinds[np.arange(self.length) // group]).sum())

    def bucket(self, position: int) -> int:
        """Return the bucket of the global batch of a position."""
        return int(self._kinds[position // self._group])

    def shape(self, position: int) -> Shape | None:
        """Return the shape of that bucket."""
        return self._shapes[self.bucket(position)]
