"""Exactly once, from the plan's arithmetic to real worker processes, across cuts and changes of topology.

The thousands of cases on plan and partition draw everything there is to draw; the dozens in real processes hold
`Loader` and its DataLoader workers to the same laws.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, Phase, assume, example, given
from hypothesis import strategies as st

import shardflow
from shardflow.order.rank_partition import TAILS, RankPartition
from shardflow.order.shuffle_plan import FIRST_WINDOW, ShufflePlan
from tests.helpers.examples import examples
from tests.helpers.loading import with_workers
from tests.helpers.making import make_dataset

Counts = npt.NDArray[np.int64]

ARITHMETIC = examples(1500, derandomize=True)
PROCESSES = examples(
    24,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],  # shrinking a failure would start processes for minutes
    report_multiple_bugs=False,
)
REAL_SIZES = {"uneven": [20, 9, 31], "single": [1] * 11, "windows": [300, 7, 281]}


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Who shares the work: ranks, workers of each, samples in a batch of each."""

    world: int
    workers: int
    batch: int

    @property
    def global_batch(self) -> int:
        """Samples that all ranks together take in a step."""
        return self.world * self.batch


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """An epoch's order, and the tail it ends in."""

    sizes: tuple[int, ...]
    seed: int
    epoch: int
    streams: int
    buffer: int
    shuffle: bool
    tail: str

    @property
    def length(self) -> int:
        """Samples in the epoch."""
        return sum(self.sizes)

    def plan(self) -> ShufflePlan:
        """The order, as a new object that remembers nothing."""
        options: Any = {"seed": self.seed, "epoch": self.epoch, "streams": self.streams, "buffer": self.buffer}
        return ShufflePlan(self.sizes, shuffle=self.shuffle, **options)

    def partitions(self, topology: Topology) -> list[RankPartition]:
        """The partitions of all ranks."""
        options: Any = {"length": self.length, "batch_size": topology.batch, "world_size": topology.world}
        return [RankPartition(rank=rank, tail=self.tail, **options) for rank in range(topology.world)]


TOPOLOGIES = st.builds(Topology, world=st.integers(1, 9), workers=st.integers(0, 5), batch=st.integers(1, 40))
SIZES = st.one_of(
    st.lists(st.integers(0, 60), min_size=1, max_size=10),
    st.lists(st.integers(0, 900), min_size=1, max_size=4),  # long enough for windows that grow
)
EPOCHS = st.builds(
    Epoch,
    sizes=SIZES.filter(any).map(tuple),
    seed=st.integers(-(2**63), 2**63),
    epoch=st.integers(0, 10**6),
    streams=st.one_of(st.integers(1, 12), st.integers(13, 80)),
    buffer=st.one_of(st.integers(1, 40), st.integers(FIRST_WINDOW - 2, 1500)),
    shuffle=st.sampled_from([True, True, True, False]),
    tail=st.sampled_from(TAILS),
)
LONG = Epoch(sizes=(900, 1, 899), seed=1, epoch=2, streams=1, buffer=700, shuffle=True, tail="short")
"""Through the growing windows, a full one, and one that the end of the stream cuts short."""


def steps_of(workers: int, steps: int) -> Iterator[int]:
    """The steps in the order in which the DataLoader asks its workers for them."""
    own = [list(range(worker, steps, max(1, workers))) for worker in range(max(1, workers))]
    return (step for turn in itertools.zip_longest(*own) for step in turn if step is not None)


def delivered(epoch: Epoch, topology: Topology, first: int, steps: int | None = None) -> tuple[Counts, Counts, int]:
    """What all ranks together deliver in their first steps from position `first`, or in all that are left.

    Returns how often each sample came, how often each came as an invalid repeat, and where the epoch goes on.
    """
    starts = np.cumsum(epoch.sizes) - epoch.sizes
    seen, repeated, ends = np.zeros(epoch.length, np.int64), np.zeros(epoch.length, np.int64), set()
    lengths = set()
    for partition in epoch.partitions(topology):
        plan = epoch.plan()
        own = partition.steps(first) if steps is None else steps
        lengths.add(own)
        ends.add(partition.after(first, own))
        taken = [partition.positions(first, step) for step in steps_of(topology.workers, own)]
        if not taken:
            continue
        positions, valid = (np.concatenate(column) for column in zip(*taken, strict=True))
        assert (positions[valid] % topology.world == partition.rank).all(), "a rank left its streams"
        shards, records = plan.locate(positions)
        assert ((records >= 0) & (records < np.array(epoch.sizes)[shards])).all()
        np.add.at(seen, (starts[shards] + records)[valid], 1)
        np.add.at(repeated, (starts[shards] + records)[~valid], 1)
    assert len(lengths) == 1, "ranks have different numbers of steps"
    (end,) = ends
    return seen, repeated, end


@given(epoch=EPOCHS, before=TOPOLOGIES, after=TOPOLOGIES, cut=st.floats(0, 1))
@example(
    epoch=LONG, before=Topology(world=3, workers=2, batch=7), after=Topology(world=2, workers=0, batch=40), cut=0.5
)
@ARITHMETIC
def test_every_sample_once_across_a_cut(epoch: Epoch, before: Topology, after: Topology, cut: float) -> None:
    """An epoch that is left after any step and goes on with other ranks, workers and batches takes each sample once.

    "drop" leaves out less than a global batch; "pad" adds to that just the repeats that fill the last one.
    """
    steps = round(cut * epoch.partitions(before)[0].steps())
    seen, repeated, position = delivered(epoch, before, 0, steps)
    assert position == min(steps * before.global_batch, epoch.length) == seen.sum()
    rest, padding, end = delivered(epoch, after, position)
    seen += rest
    assert seen.max(initial=0) <= 1
    left_out = epoch.length - int(seen.sum())
    if epoch.tail == "drop":
        assert left_out == (epoch.length - position) % after.global_batch == epoch.length - end
    else:
        assert (left_out, end) == (0, epoch.length)
    filled = -(epoch.length - position) % after.global_batch if epoch.tail == "pad" else 0
    assert padding.sum() == filled
    if steps * before.global_batch <= epoch.length:
        assert not repeated.any()


@given(
    epoch=EPOCHS, worlds=st.tuples(st.integers(1, 8), st.integers(1, 8)), share=st.integers(1, 6), cut=st.floats(0, 1)
)
@ARITHMETIC
def test_global_batches_are_the_same_for_every_world(
    epoch: Epoch, worlds: tuple[int, int], share: int, cut: float
) -> None:
    """With equal global batch and streams, a step takes the same samples on any number of ranks, wherever it began."""
    one, other = worlds
    topologies = [
        Topology(world=one, workers=0, batch=share * other),
        Topology(world=other, workers=3, batch=share * one),
    ]
    first = round(cut * epoch.length)
    plan, lengths, batches = epoch.plan(), set(), []
    for topology in topologies:
        partitions = epoch.partitions(topology)
        lengths |= {partition.steps(first) for partition in partitions}
        picked = range(min(lengths))[:: max(1, min(lengths) // 5)]  # a few steps and the last
        steps = sorted({*picked, *range(min(lengths))[-1:]})
        taken = [np.concatenate([partition.positions(first, step)[0] for partition in partitions]) for step in steps]
        batches.append([sorted(zip(*(part.tolist() for part in plan.locate(each)), strict=True)) for each in taken])
    assert len(lengths) == 1
    assert batches[0] == batches[1]


@given(epoch=EPOCHS, chunk=st.integers(1, 200))
@examples(500, ARITHMETIC)
def test_every_position_has_a_sample_of_its_own(epoch: Epoch, chunk: int) -> None:
    """The plan alone, asked in any portions, is a bijection of positions and samples."""
    plan, starts = epoch.plan(), np.cumsum(epoch.sizes) - epoch.sizes
    samples = []
    for begin in range(0, epoch.length, chunk):
        shards, records = plan.locate(np.arange(begin, min(begin + chunk, epoch.length)))
        samples.append(starts[shards] + records)
    assert np.array_equal(np.sort(np.concatenate(samples)), np.arange(epoch.length))
    assert plan.length == epoch.length


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small datasets whose labels number the samples."""
    root = tmp_path_factory.mktemp("data")
    return {name: make_dataset(root / name, sizes) for name, sizes in REAL_SIZES.items()}


REAL_TOPOLOGIES = st.builds(Topology, world=st.integers(1, 3), workers=st.integers(1, 2), batch=st.integers(1, 24))
REAL_OPTIONS = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**63),
        "shuffle": st.builds(
            shardflow.Shuffle,
            streams=st.integers(1, 9),
            buffer=st.one_of(st.integers(1, 40), st.integers(FIRST_WINDOW, 700)),
        ),
        "tail": st.sampled_from(TAILS),
        "prefetch_factor": st.integers(1, 4),
    }
)


def loaders(url: Path, topology: Topology, options: dict[str, Any]) -> list[shardflow.Loader]:
    """A loader for each rank, which reads labels and decodes nothing."""
    return [
        shardflow.Loader(
            url,
            fields=("label", "valid"),
            batch_size=topology.batch,
            group=(rank, topology.world),
            **with_workers({**options, "num_workers": topology.workers, "persistent_workers": False}),
        )
        for rank in range(topology.world)
    ]


def valid_labels(batches: Iterator[Any]) -> list[list[int]]:
    """The labels of each batch, without the repeats that fill a padded tail."""
    return [labels[valid].tolist() for labels, valid in batches]


def flat(*nested: list[list[int]]) -> list[int]:
    """All labels of some ranks' batches."""
    return [label for batches in nested for batch in batches for label in batch]


@given(
    name=st.sampled_from(sorted(REAL_SIZES)),
    options=REAL_OPTIONS,
    epoch=st.integers(0, 50),
    before=REAL_TOPOLOGIES,
    after=REAL_TOPOLOGIES,
    cut=st.floats(0, 1),
)
@PROCESSES
def test_every_sample_once_across_a_cut_in_real_workers(
    datasets: dict[str, Path],
    name: str,
    options: dict[str, Any],
    epoch: int,
    before: Topology,
    after: Topology,
    cut: float,
) -> None:
    """Left after any batch and loaded into loaders of another topology, an epoch in worker processes is exact."""
    length = sum(REAL_SIZES[name])
    assume(options["tail"] != "drop" or max(before.global_batch, after.global_batch) <= length)
    old = loaders(datasets[name], before, options)
    steps = round(cut * len(old[0]))
    seen = []
    for loader in old:
        loader.set_epoch(epoch)
        seen.append(valid_labels(itertools.islice(loader, steps)))
        assert len(seen[-1]) == steps
    states = [loader.state_dict() for loader in old]
    assert all(state == states[0] for state in states)
    new = loaders(datasets[name], after, options)
    for loader in new:
        loader.load_state_dict(states[0])
    rest = [valid_labels(iter(loader)) for loader in new]
    labels = flat(*seen, *rest)
    assert len(set(labels)) == len(labels)
    left_out = set(range(length)) - set(labels)
    assert len(labels) + len(left_out) == length
    position = min(steps * before.global_batch, length)
    assert len(left_out) == ((length - position) % after.global_batch if options["tail"] == "drop" else 0)
    assert len({len(batches) for batches in rest}) == 1
    assert {loader.state_dict()["epoch"] for loader in new} == {epoch + 1}


@given(
    name=st.sampled_from(sorted(REAL_SIZES)),
    options=REAL_OPTIONS,
    worlds=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    workers=st.tuples(st.integers(1, 3), st.integers(0, 2)),
    share=st.integers(1, 5),
)
@examples(14, PROCESSES)
def test_global_batches_are_the_same_in_real_workers(
    datasets: dict[str, Path],
    name: str,
    options: dict[str, Any],
    worlds: tuple[int, int],
    workers: tuple[int, int],
    share: int,
) -> None:
    """With equal global batch and streams, step k holds the same samples for every world size and number of workers."""
    assume(options["tail"] != "drop" or share * worlds[0] * worlds[1] <= sum(REAL_SIZES[name]))
    by_step = []
    for one, other, count in ((*worlds, workers[0]), (*worlds[::-1], workers[1])):
        topology = Topology(world=one, workers=count, batch=share * other)
        ranks = [valid_labels(iter(loader)) for loader in loaders(datasets[name], topology, options)]
        by_step.append([sorted(itertools.chain.from_iterable(step)) for step in zip(*ranks, strict=True)])
    assert by_step[0] == by_step[1]
    assert by_step[0]
