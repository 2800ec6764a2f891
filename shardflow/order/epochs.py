"""The epochs of a source: from a position in an epoch to the shard, record and random key of a sample."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from shardflow._validation import check_integer
from shardflow.errors import ConfigError

from . import keyed_rng
from .keyed_rng import I64
from .rank_partition import MOST_POSITIONS
from .sampler import EpochPlan, EpochSampler, Facts, Sampler, Shape, bound
from .shuffle_plan import ShuffledEpochs
from .shuffle_settings import default_streams

_CHUNK = 1 << 20


class ShardSpan(NamedTuple):
    """A shard, and the range of positions at which it is read."""

    shard: int
    begin: int
    end: int


class Located(NamedTuple):
    """The samples at some positions of an epoch; those of one position follow each other.

    Attributes:
        shards, records: The place of each sample: int64 [B].
        keys: The random key of each sample: uint64 [B].
        counts: Number of samples at each position, int64.
        shapes: Height and width of each image, int64 [B, 2]; None if the sampler does not choose them.
    """

    shards: I64
    records: I64
    keys: keyed_rng.U64
    counts: I64
    shapes: I64 | None


class Visit(NamedTuple):
    """One occurrence of a sample in the order of a source.

    Attributes:
        epoch: The epoch.
        shape: Height and width that the sampler chose for the batch or the image, if any.
        key: The random key.
    """

    epoch: int
    shape: Shape | None
    key: int


def augmentation_keys(seed: int, number: int, samples: I64, repeats: I64 | None = None) -> keyed_rng.U64:
    """Return the keys of samples, by their numbers in the split, in pass `number` over it: uint64 [B].

    Each repeat of a sample has its own key; that of the first, repeat 0, is the same as without repeats.
    """
    keys = keyed_rng.fold_array(keyed_rng.key(seed, "augment", number), samples)
    if repeats is None:
        return keys
    # Folded with a word first, because transforms on a device fold small numbers into keys too.
    within = keyed_rng.fold_array(keys, np.array([keyed_rng.key("repeat")], dtype=np.uint64))
    return np.where(repeats > 0, keyed_rng.fold_array(within, repeats), keys)


def limited(shard_samples: I64, limit: int | None) -> I64:
    """Return the number of samples of each shard that are among the first `limit` of a split."""
    if limit is None:
        return shard_samples
    limit = min(check_integer("limit", limit, 1), int(shard_samples.sum()))
    sizes: I64 = np.clip(limit - (np.cumsum(shard_samples) - shard_samples), 0, shard_samples)
    return sizes[sizes > 0]


class Epochs:
    """The order of a source's epochs, and the random keys of their samples.

    With `samples_per_epoch` the passes over the samples, each in its own order, form one endless stream, and epoch e is
    the e-th section of that length.

    Attributes:
        sampler: The sampler, bound to the facts.
        samples: Number of samples of the split that take part.
        pass_length, length: Positions in a pass, and in an epoch.
        seed, shuffle, samples_per_epoch: As given.
        source: The number of the source in a mix; 0 without a mix.
        key_seed: The seed of the order and the random keys: `seed` for source 0. It differs between the sources of a
            mix, so that they draw independently.
    """

    def __init__(
        self, facts: Facts, sampler: Sampler | None = None, *, seed: int = 0, samples_per_epoch: int | None = None
    ) -> None:
        self.seed = self.key_seed = check_integer("seed", seed)
        self.source, self.shuffle, self.samples_per_epoch = 0, facts.shuffle, samples_per_epoch
        self.sampler: EpochSampler = ShuffledEpochs(facts) if sampler is None else bound(sampler, facts)
        self.samples, self.pass_length = facts.samples, self.sampler.length
        self._starts = np.cumsum(facts.shard_samples) - facts.shard_samples
        if samples_per_epoch is not None:
            self.samples_per_epoch = check_integer("samples_per_epoch", samples_per_epoch, 1, MOST_POSITIONS)
            self._check_sections(facts)
        self.length = self.samples_per_epoch or self.pass_length
        self._plans: dict[tuple[int, int], EpochPlan] = {}  # of the two passes used last

    def drawn(self) -> I64:
        """Return the numbers of the samples that can come."""
        found = self.sampler.drawn()
        return np.arange(self.samples) if found is None else found

    def _check_sections(self, facts: Facts) -> None:
        """Check that passes can be cut into epochs of `samples_per_epoch`."""
        if not self.pass_length:
            raise ConfigError(f"split {facts.split!r} has no samples to form epochs of; choose another split")
        if self.shuffle is not None and self.shuffle.shard_affinity:
            raise ConfigError(
                "Shuffle(shard_affinity=True) keeps the shards of a rank in epochs that are whole passes; with "
                "samples_per_epoch each pass would begin at another rank: leave one of them out"
            )
        unit = {"sample": 1, "batch": facts.batch_size, "step": facts.batch_size * facts.world_size}
        group = unit[self.sampler.together]
        if (self.samples_per_epoch or 0) % group or self.pass_length % group:
            raise ConfigError(
                f"samples_per_epoch={self.samples_per_epoch} and a pass of {self.pass_length} samples must be "
                f"multiples of the {group} samples that the sampler keeps together; leave samples_per_epoch out"
            )

    def as_source(self, number: int) -> Epochs:
        """Return the epochs of the same samples as source `number` of a mix, in its own order."""
        other = copy.copy(self)
        other.source, other._plans = number, {}
        other.key_seed = self.seed if number == 0 else keyed_rng.key(self.seed, "source", number)
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_plans": {}}  # workers make their own plans

    def default_streams(self, world_size: int) -> int:
        """Return the number of streams of a run with `world_size` ranks."""
        if self.shuffle is None:
            return 1
        return self.shuffle.streams or default_streams(world_size)

    def locate(self, epoch: int, positions: I64, streams: int) -> Located:
        """Return the samples at positions 0 … length-1 of an epoch."""
        first_pass, offset = divmod(epoch * self.length, self.pass_length)  # Python integers: may exceed 64 bits
        passes, within = np.divmod(offset + positions, self.pass_length)
        plans = {later: self._plan(first_pass + later, streams) for later in sorted({*passes.tolist()})}
        counts = np.empty_like(positions)
        for later, plan in plans.items():
            counts[passes == later] = plan.counts(within[passes == later])
        sample_passes = np.repeat(passes, counts)
        shards, records, repeats = (np.empty_like(sample_passes) for _ in range(3))
        keys = np.empty(len(sample_passes), dtype=np.uint64)
        for later, plan in plans.items():
            here = sample_passes == later
            shards[here], records[here], repeats[here] = plan.visits(within[passes == later])
            samples = self._starts[shards[here]] + records[here]
            keys[here] = augmentation_keys(self.key_seed, first_pass + later, samples, repeats[here])
        shapes = self.sampler.image_shapes(self._starts[shards] + records)
        return Located(shards, records, keys, counts, shapes)

    def shape(self, epoch: int, position: int, streams: int) -> Shape | None:
        """Return the shape of the images in the batch of a position; None if the decoder decides."""
        if not self.sampler.shapes:
            return None
        number, within = divmod(epoch * self.length + position, self.pass_length)
        return self._plan(number, streams).shape(within)

    def visit(self, sample: int, number: int, streams: int) -> Visit | None:
        """Return the first occurrence of a sample in pass `number` over the split; None if it has none."""
        if self.sampler.identity is None and self.samples_per_epoch is None:  # once per pass
            return Visit(number, None, int(augmentation_keys(self.key_seed, number, np.array([sample]))[0]))
        shard = int(np.searchsorted(self._starts, sample, side="right")) - 1
        record = sample - int(self._starts[shard])
        for begin in range(0, self.pass_length, _CHUNK):
            positions = np.arange(begin, min(begin + _CHUNK, self.pass_length))
            plan, numbers = self._plan(number, streams), np.array([sample])
            shards, records, repeats = plan.visits(positions)
            found = np.flatnonzero((shards == shard) & (records == record))
            if len(found):
                first = int(np.repeat(positions, plan.counts(positions))[found[0]])
                (key,) = augmentation_keys(self.key_seed, number, numbers, repeats[found[:1]]).tolist()
                epoch, position = divmod(number * self.pass_length + first, self.length)
                shapes = self.sampler.image_shapes(numbers)
                shape = (
                    self.shape(epoch, position, streams) if shapes is None else (int(shapes[0, 0]), int(shapes[0, 1]))
                )
                return Visit(epoch, shape, key)
        return None

    def needs(self, epoch: int, first: int, streams: int, rank: int, world_size: int) -> Iterator[ShardSpan]:
        """Yield the shards that a rank reads from position `first` of an epoch on, in the order of first use."""
        if not self.length:
            return
        if self.sampler.together == "batch":
            rank, world_size = 0, 1  # a batch is consecutive positions
        start = epoch * self.length
        for number in range((start + first) // self.pass_length, -(-(start + self.length) // self.pass_length)):
            before = number * self.pass_length - start  # positions of the epoch before this pass
            plan = self._plan(number, streams)
            shards, begins, ends = plan.needs((rank - before) % world_size, world_size)
            wanted = (ends + before > first) & (begins + before < self.length)
            columns = shards[wanted], begins[wanted] + before, ends[wanted] + before
            yield from map(ShardSpan, *(column.tolist() for column in columns))

    def _plan(self, number: int, streams: int) -> EpochPlan:
        if (number, streams) not in self._plans:
            while len(self._plans) > 1:
                del self._plans[next(iter(self._plans))]
            self._plans[number, streams] = self.sampler.plan(seed=self.key_seed, epoch=number, streams=streams)
        return self._plans[number, streams]
