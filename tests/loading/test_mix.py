from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import shardflow
from shardflow.errors import ConfigError, DecodeError, ResumeMismatchError
from shardflow.formats.annotations import Annotations, Boxes
from shardflow.order import keyed_rng
from shardflow.samplers import Subset, Weighted
from tests.helpers.making import jpeg, make_dataset, write_dataset
from tests.helpers.ranks import launch


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Datasets of 40, 24 and 60 samples."""
    root = tmp_path_factory.mktemp("data")
    return [make_dataset(root / str(sum(sizes)), sizes) for sizes in ([25, 15], [24], [30, 30])]


def mix(datasets: list[Path], weights: tuple[float, ...] = (5, 1, 2), **options: Any) -> shardflow.Mix:
    """A mix by batch, whose batches say which dataset they are from: by their length, 4, 5 and 6."""
    loaders = [
        shardflow.Loader(url, batch_size=4 + n, fields=("label",), tail="drop", num_workers=options.pop("workers", 0))
        for n, url in enumerate(datasets)
    ]
    return shardflow.Mix(list(zip(loaders, weights, strict=True)), **{"by": "batch", **options})


def seed_of(source: int, seed: int = 0) -> int:
    """The seed with which a loader alone has the order and the pixels of a source of a mix."""
    return keyed_rng.key(seed, "source", source) if source else seed


def contents(batches: Any) -> list[list[int]]:
    """The labels of each batch."""
    return [labels.tolist() for (labels,) in batches]


def test_shares_follow_the_weights_in_every_stretch(datasets: list[Path]) -> None:
    """Any stretch of steps takes from each source what its weight says, to within two batches or so."""
    some = mix(datasets)
    chosen = some.source_of(np.arange(100_000))
    for length in (10, 100, 1000, 10_000):
        for begin in range(0, 90_000, 7919):
            counts = np.bincount(chosen[begin : begin + length], minlength=3)
            assert np.abs(counts - length * np.array([5, 1, 2]) / 8).max() <= 3.5


def test_order_of_sources_is_frozen(datasets: list[Path]) -> None:
    """The interleaving is part of a run's identity, so it never changes."""
    assert mix(datasets).source_of(np.arange(16)).tolist() == [0, 0, 0, 2, 0, 0, 1, 0, 2, 0, 0, 2, 0, 0, 1, 0]


def test_each_source_runs_through_its_own_epochs(datasets: list[Path]) -> None:
    """What the mix hands out of a source is exactly that source's own epochs, one after the other."""
    some = mix(datasets, steps_per_epoch=20)
    handed_out = [batch for _ in range(6) for batch in contents(some)]
    assert len(handed_out) == 120
    for n, url in enumerate(datasets):
        of_source = [batch for batch in handed_out if len(batch) == 4 + n]
        alone = shardflow.Loader(url, batch_size=4 + n, fields=("label",), num_workers=0, seed=seed_of(n))
        expected: list[list[int]] = []
        while len(expected) < len(of_source):
            expected += contents(alone)
        assert of_source == expected[: len(of_source)]


@pytest.mark.parametrize("workers", [0, 1])
def test_resume_after_any_batch_gives_the_rest(datasets: list[Path], workers: int) -> None:
    """A state saved anywhere, even in the middle of all sources' epochs, gives exactly the rest and the next epoch."""
    whole = mix(datasets, steps_per_epoch=13, workers=workers)
    expected = [contents(whole) for _ in range(3)]
    for epoch, stop in ((0, 0), (0, 5), (1, 7), (1, 13)):
        stopped = mix(datasets, steps_per_epoch=13, workers=workers)
        for _ in range(epoch):
            contents(stopped)
        contents(itertools.islice(stopped, stop))
        resumed = mix(datasets, steps_per_epoch=13, workers=workers)
        resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
        assert contents(resumed) == expected[epoch][stop:]
        assert contents(resumed) == expected[epoch + 1]


def test_set_epoch_and_leaving_early_reach_any_epoch_by_arithmetic(datasets: list[Path]) -> None:
    """An epoch of the mix is the same whether it was reached by iterating, by `set_epoch` or after a `break`."""
    some = mix(datasets, steps_per_epoch=11)
    expected = [contents(some) for _ in range(5)]
    jumping = mix(datasets, steps_per_epoch=11)
    for epoch in (3, 1, 4):
        jumping.set_epoch(epoch)
        assert contents(jumping) == expected[epoch]
    jumping.set_epoch(0)
    contents(itertools.islice(jumping, 4))
    assert contents(jumping) == expected[1]


@pytest.mark.parametrize("smaller", [1, 2])
def test_leaving_early_after_an_elastic_resume_repeats_nothing(datasets: list[Path], smaller: int) -> None:
    """A mix resumed with other batch sizes reaches later epochs after a `break` or by `set_epoch` as by iterating."""

    def resumed() -> shardflow.Mix:
        loaders = [
            shardflow.Loader(url, batch_size=(4 + n) // (1 + smaller), fields=("label",), num_workers=0)
            for n, url in enumerate(datasets)
        ]
        some = shardflow.Mix(list(zip(loaders, (5, 1, 2), strict=True)), by="batch", steps_per_epoch=13)
        some.load_state_dict(state)
        return some

    begun = mix(datasets, steps_per_epoch=13)
    contents(begun)
    contents(itertools.islice(begun, 6))
    state = begun.state_dict()
    whole = resumed()
    rest = contents(whole)
    expected = [contents(whole) for _ in range(3)]
    left = resumed()
    assert contents(itertools.islice(left, 3)) == rest[:3]
    assert contents(left) == expected[0]
    left.set_epoch(4)
    assert contents(left) == expected[2]


def test_ranks_agree_without_talking(datasets: list[Path]) -> None:
    """At every step all ranks take their batch from the same source, and together each sample once per source epoch."""
    ranks = [
        shardflow.Mix(
            [(url, weight) for url, weight in zip(datasets, (2, 1, 3), strict=True)],
            batch_size=4,
            group=(rank, 2),
            fields=("label",),
            num_workers=0,
            shuffle=shardflow.Shuffle(streams=2),
            by="batch",
        )
        for rank in range(2)
    ]
    assert len(ranks[0]) == len(ranks[1]) == 5 + 3 + 7
    first, second = contents(ranks[0]), contents(ranks[1])
    sources = ranks[0].source_of(np.arange(15))
    for source, size in enumerate((40, 24, 60)):
        taken = [label for a, b, s in zip(first, second, sources, strict=True) if s == source for label in a + b]
        passes = [taken[i : i + size // 8 * 8] for i in range(0, len(taken), size // 8 * 8)]
        assert all(len(set(one)) == len(one) for one in passes)


def test_another_mix_is_refused(datasets: list[Path]) -> None:
    """A state of other weights or another epoch length is refused, and so are impossible mixes."""
    state = mix(datasets).state_dict()
    with pytest.raises(ResumeMismatchError, match="weights"):
        mix(datasets, (1, 1, 1)).load_state_dict(state)
    with pytest.raises(ResumeMismatchError, match="steps_per_epoch"):
        mix(datasets, steps_per_epoch=3).load_state_dict(state)
    with pytest.raises(ConfigError, match="finite weight above 0"):
        mix(datasets, (1, 0, 1))
    with pytest.raises(ConfigError, match=r"\bseed\b.*no effect"):
        mix(datasets, seed=3)


def test_the_state_of_a_source_belongs_to_its_place(datasets: list[Path]) -> None:
    """A source's state fits a loader alone only where that has the same order: the first one's."""
    state = mix([datasets[0]] * 3).state_dict()
    for source, own in enumerate(state["sources"]):
        alone = shardflow.Loader(datasets[0], batch_size=4, fields=("label",), num_workers=0)
        if source == 0:
            alone.load_state_dict(own)
            continue
        with pytest.raises(ResumeMismatchError, match=rf"source is {source} in the state and 0 here.*sources of a Mix"):
            alone.load_state_dict(own)


def test_a_second_iteration_ends_the_first(datasets: list[Path]) -> None:
    """The older of two iterations says so, and the newer one has the batches and the state of its epoch."""
    expected = mix(datasets)
    first, second = contents(expected), contents(expected)
    some = mix(datasets)
    older = iter(some)
    assert [next(older)[0].tolist()] == first[:1]
    newer = iter(some)
    begun = next(newer)
    with pytest.raises(ConfigError, match=r"the mix .*iterated again"):
        next(older)
    assert contents([begun, *newer]) == second
    assert some.state_dict() == expected.state_dict()


def test_moving_a_mix_ends_its_iteration(datasets: list[Path]) -> None:
    """A mix that is moved while it is iterated goes on from there."""
    expected = mix(datasets)
    contents(expected)
    second = contents(expected)
    some = mix(datasets)
    running = iter(some)
    next(running)
    some.set_epoch(1)
    with pytest.raises(ConfigError, match="set_epoch or load_state_dict"):
        next(running)
    assert contents(some) == second


def test_a_refused_state_moves_nothing(datasets: list[Path]) -> None:
    """When one source refuses its part of a state, or the state is damaged, all stay where they were."""
    moved = mix(datasets)
    contents(moved)
    state = moved.state_dict()
    some = mix(datasets)
    before = some.state_dict()
    for change in (
        {"sources": [*state["sources"][:2], {**state["sources"][2], "seed": 9}]},
        {"sources": state["sources"][:2]},
        {"sources": None},
        {"position": "x"},
        {"position": len(some) + 1},
        {"epoch": 2**63},
    ):
        with pytest.raises(ResumeMismatchError):
            some.load_state_dict({**state, **change})
        assert some.state_dict() == before
    with pytest.raises(ResumeMismatchError, match=r"dict from Mix\.state_dict"):
        some.load_state_dict(None)  # type: ignore[arg-type]


def test_a_mix_is_a_loader(datasets: list[Path]) -> None:
    """It measures where the time goes, says what was replaced, and ends all workers."""
    some = mix(datasets, workers=1)
    batches = len(contents(some))
    assert some.stats().batches == batches
    assert some.replaced == set()
    some.close()
    assert some._pool.pids() == []
    swapped = [
        (shardflow.Loader(datasets[0], batch_size=4, num_workers=0, fields=fields), 1)
        for fields in (("image", "label"), ("label", "image"))
    ]
    with pytest.raises(ConfigError, match="fields differ"):
        shardflow.Mix(swapped)
    for sources in ([(datasets[0], float("inf"))], [(datasets[0], "3")], [swapped[0][0]], [datasets[0]], 3):
        with pytest.raises(ConfigError, match="finite weight above 0"):
            shardflow.Mix(sources, batch_size=4)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Mix\(\[\("):  # the line to write
        shardflow.Mix(datasets, [3, 1], batch_size=4)  # type: ignore[arg-type, list-item]


def test_a_loader_of_a_mix_keeps_its_weights(datasets: list[Path]) -> None:
    """The sampler of a loader does not change under a mix of either kind; one that was refused leaves it free."""
    for by in ("sample", "batch"):
        options: dict[str, Any] = {"num_workers": 0, "tail": "short", "fields": ("label",)}
        one = shardflow.Loader(datasets[0], batch_size=30, sampler=Weighted(0.5), **options)
        if by == "sample":
            with pytest.raises(ConfigError, match="fewer samples than one batch"):
                shardflow.Mix([(one, 1)])
        one.set_sampler(Weighted(1))
        some = shardflow.Mix([(one, 1)], by=by)
        with pytest.raises(ConfigError, match=r"samplers.*make another mix"):
            some.set_sampler(Weighted(2))
        one.set_sampler(Weighted(2))
        with pytest.raises(ConfigError, match=r"loader 0 .*make another mix"):
            next(iter(some))


def _with_weights_of_its_own(url: Path, by: str) -> str:
    """What a rank meets in a mix one of whose sources has weights that are not those of the others."""
    given = Subset(index=[torch.distributed.get_rank(), *range(2, 40)])
    loaders = [
        shardflow.Loader(url, batch_size=4, num_workers=0, tail="drop", fields=("label",), sampler=sampler)
        for sampler in (Weighted(1), given)
    ]
    with pytest.raises(ConfigError) as caught:
        list(shardflow.Mix([(loader, 1) for loader in loaders], by=by))
    return str(caught.value)


@pytest.mark.parametrize("by", ["sample", "batch"])
def test_ranks_with_other_weights_are_told(datasets: list[Path], by: str) -> None:
    """Weights of a source that differ between ranks are an error on all of them."""
    found = launch(_with_weights_of_its_own, 2, datasets[0], by)
    assert found == ["sampler must be equal on all ranks, but rank 1 differs from rank 0"] * 2


def test_a_mix_of_samples_counts_its_own_batches(datasets: list[Path]) -> None:
    """The samples that one of its loaders hands out by itself are not in the statistics of a mix by sample."""
    some = sample_mix(datasets)
    handed_out = sum(map(len, contents(some)))
    contents(some.loaders[0])
    assert some.stats().samples == handed_out


SIZES = (40, 24, 60)


def sample_mix(datasets: list[Path], rank: int = 0, world_size: int = 1, **options: Any) -> shardflow.Mix:
    """A mix by sample, with weights 2, 1, 3."""
    chosen = {
        "batch_size": 6,
        "fields": ("label",),
        "num_workers": 0,
        "shuffle": shardflow.Shuffle(streams=2),
        **options,
    }
    sources: list[Any] = list(zip(datasets, (2, 1, 3), strict=True)) if options.get("schedule") is None else datasets
    return shardflow.Mix(sources, group=(rank, world_size), **chosen)


def streams(
    rows: list[list[int]], some: shardflow.Mix, first_row: int = 0, begun: tuple[int, ...] = (0, 0, 0)
) -> list[list[int]]:
    """The labels of each source in the order of its stream, of which so many samples came before these rows."""
    found: list[list[int]] = [[], [], []]
    for row, labels in enumerate(rows, start=first_row):
        source = int(some.source_of(np.array([row]))[0])
        position = begun[source] + len(found[source])  # rank r has the position that is r modulo the number of ranks
        found[source] += [labels[(position + place) % len(labels)] for place in range(len(labels))]
    return found


def rows(ranks: list[list[list[int]]]) -> list[list[int]]:
    """The labels of all ranks, row by row: each row has one of each rank."""
    return [list(row) for batches in zip(*ranks, strict=True) for row in zip(*batches, strict=True)]


def test_samples_are_mixed_within_batches_by_default(datasets: list[Path]) -> None:
    """Every batch has each source's share, to within two samples, and the epoch the length of all together."""
    some = sample_mix(datasets, batch_size=12)
    assert len(some) == sum(SIZES) // 12
    assert [len(batch) for batch in contents(some)] == [12] * len(some)
    for step in range(1000):
        shares = np.bincount(some.source_of(np.arange(12 * step, 12 * step + 12)), minlength=3)
        assert np.abs(shares - 12 * np.array([2, 1, 3]) / 6).max() <= 2


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_mixed_samples_come_once_per_pass(datasets: list[Path], world_size: int) -> None:
    """Whatever the ranks, each pass over a source has each of its samples once, also where a batch spans two passes."""
    ranks = [sample_mix(datasets, rank, world_size, steps_per_epoch=9) for rank in range(world_size)]
    found = streams(rows([[batch for _ in range(5) for batch in contents(mix)] for mix in ranks]), ranks[0])
    for labels, size in zip(found, SIZES, strict=True):
        passes = [labels[begin : begin + size] for begin in range(0, len(labels), size)]
        assert len(passes) > 1 or world_size == 1
        assert all(len(set(one)) == len(one) for one in passes)
        assert all(len(one) == size for one in passes[:-1])


def test_a_mixed_source_has_the_samples_and_pixels_of_its_loader(datasets: list[Path]) -> None:
    """Each source comes in its loader's own order, decoded and transformed as that loader does it."""
    decoders = [
        shardflow.decoders.RandomResizedCrop(8),
        shardflow.decoders.CenterCrop(8),
        shardflow.decoders.CenterCrop(8),
    ]
    transforms = [None, v2.RandomErasing(1.0), None]
    settings = zip(datasets, decoders, transforms, strict=True)
    loaders = [
        shardflow.Loader(url, batch_size=6, num_workers=0, decoder=decoder, transform=transform)
        for url, decoder, transform in settings
    ]
    alone = [
        shardflow.Loader(url, batch_size=6, num_workers=0, decoder=decoder, transform=transform, seed=seed_of(source))
        for source, (url, decoder, transform) in enumerate(zip(datasets, decoders, transforms, strict=True))
    ]
    some = shardflow.Mix(list(zip(loaders, (2, 1, 3), strict=True)))
    found: list[list[bytes]] = [[], [], []]
    for step, (images, _) in enumerate(some):
        for image, source in zip(images, some.source_of(np.arange(6 * step, 6 * step + 6)), strict=True):
            found[source].append(image.numpy().tobytes())
    for loader, pixels in zip(alone, found, strict=True):
        expected = [image.numpy().tobytes() for images, _ in loader for image in images]
        shared = min(len(pixels), len(expected))
        assert shared > 12
        assert pixels[:shared] == expected[:shared]


SCHEDULE = [(0, [2, 0, 3]), (7, [1, 4, 1]), (12, [1, 1, 1])]


@pytest.mark.parametrize(("workers", "schedule"), [(0, None), (2, None), (0, SCHEDULE)])
def test_a_mix_of_samples_resumes_after_any_batch(datasets: list[Path], workers: int, schedule: Any) -> None:
    """A state gives exactly the rest and the next epoch; so do `set_epoch` and leaving early."""
    whole = sample_mix(datasets, steps_per_epoch=8, num_workers=workers, schedule=schedule)
    expected = [contents(whole) for _ in range(4)]
    for epoch, stop in ((0, 0), (0, 5), (1, 7), (1, 8)):
        stopped = sample_mix(datasets, steps_per_epoch=8, schedule=schedule)
        stopped.set_epoch(epoch)
        contents(itertools.islice(stopped, stop))
        resumed = sample_mix(datasets, steps_per_epoch=8, num_workers=workers, schedule=schedule)
        resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
        assert resumed.remaining == 8 - stop
        assert contents(resumed) == expected[epoch][stop:]
        assert contents(resumed) == expected[epoch + 1]
        assert contents(stopped) == expected[epoch + (stop > 0)]
    jumping = sample_mix(datasets, steps_per_epoch=8, schedule=schedule)
    for epoch in (3, 1):
        jumping.set_epoch(epoch)
        assert contents(jumping) == expected[epoch]


@pytest.mark.parametrize("schedule", [None, SCHEDULE])
def test_a_mix_of_samples_is_elastic(datasets: list[Path], schedule: Any) -> None:
    """On other ranks with other batches, each source goes on without a gap or a repeat, also after a `break`."""
    begun = [sample_mix(datasets, rank, 2, steps_per_epoch=10, schedule=schedule) for rank in range(2)]
    before = streams(rows([contents(itertools.islice(mix, 3)) for mix in begun]), begun[0])
    state = begun[0].state_dict()
    assert state == begun[1].state_dict()
    resumed = [sample_mix(datasets, rank, 3, steps_per_epoch=10, schedule=schedule, batch_size=4) for rank in range(3)]
    for mix in resumed:
        mix.load_state_dict(state)
    rest = [contents(mix) + contents(mix) for mix in resumed]
    after = streams(rows(rest), resumed[0], first_row=3 * 4, begun=tuple(map(len, before)))
    for early, late, size in zip(before, after, SIZES, strict=True):
        stream = early + late
        passes = [stream[begin : begin + size] for begin in range(0, len(stream), size)]
        assert all(len(set(one)) == len(one) for one in passes)
    left = sample_mix(datasets, 0, 3, steps_per_epoch=10, schedule=schedule, batch_size=4)
    left.load_state_dict(state)
    contents(itertools.islice(left, 2))
    assert contents(left) == rest[0][7:]


@pytest.mark.parametrize("by", ["sample", "batch"])
def test_shares_follow_a_schedule(datasets: list[Path], by: str) -> None:
    """Shares go from those of one step to those of the next, and stay; the steps count on over the epochs."""
    some = sample_mix(
        datasets,
        by=by,
        schedule=[(0, [1, 0, 0]), (20, [0, 1, 0]), (99, [0, 0, 1])],
        fields=("source",),
        steps_per_epoch=15,
    )
    steps = [sources.tolist() for _ in range(2) for (sources,) in some]
    assert set(steps[0]) == {0}
    assert {0, 1} == set(itertools.chain(*steps[8:12]))
    assert set(itertools.chain(*steps[20:])) <= {1, 2}
    assert "1 … 0 … 0 x" in repr(some)
    assert some.describe()["weights"] == [[0, [1, 0, 0]], [20, [0, 1, 0]], [99, [0, 0, 1]]]
    other = sample_mix(
        datasets,
        by=by,
        schedule=[(0, [1, 0, 0]), (21, [0, 1, 0]), (99, [0, 0, 1])],
        fields=("source",),
        steps_per_epoch=15,
    )
    with pytest.raises(ResumeMismatchError, match="weights"):
        other.load_state_dict(some.state_dict())


@pytest.mark.parametrize(
    "schedule",
    [[], [(1, [1, 1, 1])], [(0, [1, 1])], [(0, [1, 1, 1]), (0, [2, 1, 1])], [(0, [1, 1, 0])], [(0, [-1, 1, 1])], 3],
)
def test_wrong_schedules_are_refused(datasets: list[Path], schedule: Any) -> None:
    """A schedule has a weight of each source at steps that ascend from 0, and each source comes at some step."""
    with pytest.raises(ConfigError):
        sample_mix(datasets, schedule=schedule)


def test_weights_beside_a_schedule_are_refused(datasets: list[Path]) -> None:
    """Weights mean one thing: those of the sources, or those of the schedule."""
    with pytest.raises(ConfigError):
        shardflow.Mix([(url, 1) for url in datasets], schedule=[(0, [1, 1, 1])], batch_size=2)


def test_damaged_samples_of_a_mix_are_replaced_across_sources(tmp_path: Path) -> None:
    """With max_errors, a sample that cannot be decoded is replaced by another of its batch, of whichever source."""
    urls = [
        make_dataset(tmp_path / "good", [12]),
        make_dataset(tmp_path / "bad", [6], undecodable=range(6)),
    ]
    options: dict[str, Any] = {"batch_size": 6, "num_workers": 0, "decoder": shardflow.decoders.CenterCrop(8)}
    some = shardflow.Mix([(urls[0], 2), (urls[1], 1)], max_errors=6, **options)
    assert len(contents_of_images(some)) == len(some) == 3
    assert len(some.replaced) >= 5
    with pytest.raises(DecodeError):
        contents_of_images(shardflow.Mix([(urls[0], 2), (urls[1], 1)], **options))


@pytest.mark.parametrize("by", ["sample", "batch"])
def test_a_source_of_a_mix_may_be_strict(tmp_path: Path, by: str) -> None:
    """A source with max_errors=0 has none of its samples replaced, whatever the others allow."""
    bad = make_dataset(tmp_path / "bad", [6], undecodable=range(2))
    options: dict[str, Any] = {"batch_size": 3, "num_workers": 0, "decoder": shardflow.decoders.CenterCrop(8)}
    for strict in (0, 1):
        loaders = [shardflow.Loader(bad, max_errors=0 if place == strict else 9, **options) for place in (0, 1)]
        with pytest.raises(DecodeError):
            contents_of_images(shardflow.Mix([(loader, 1) for loader in loaders], by=by))


def contents_of_images(batches: Any) -> list[Any]:
    """The images of each batch."""
    return [images for images, _ in batches]


def test_mixes_of_samples_that_cannot_be_are_refused(datasets: list[Path]) -> None:
    """What must be equal is named, and a state of a mix by batch is refused by one by sample."""
    loaders = [shardflow.Loader(datasets[0], batch_size=size, num_workers=0) for size in (4, 5)]
    with pytest.raises(ConfigError, match=r"batch_size .*4, 5.*by='batch'"):
        shardflow.Mix([(loader, 1) for loader in loaders])
    shard_affinity = shardflow.Loader(
        datasets[0], batch_size=4, num_workers=0, shuffle=shardflow.Shuffle(shard_affinity=True)
    )
    with pytest.raises(ConfigError, match=r"shard_affinity=True\).* pass by='batch'"):
        shardflow.Mix([(shard_affinity, 1)])
    with pytest.raises(ConfigError, match=r"by .*'sample' or 'batch'"):
        shardflow.Mix([(loaders[0], 1)], by="shard")
    with pytest.raises(ConfigError, match="no tail"):
        sample_mix(datasets, tail="drop")
    with pytest.raises(ResumeMismatchError, match=r"by .*'sample' .*'batch'"):
        sample_mix(datasets, by="batch").load_state_dict(sample_mix(datasets).state_dict())
    assert "Mix of samples: 20 batches, epoch 0, 20 left; 2 x " in repr(sample_mix(datasets))
    assert repr(sample_mix(datasets)).count("epoch") == 1  # the mix's alone


def classes_dataset(root: Path, classes: tuple[str, ...] | None, **fields: str) -> Path:
    """A dataset of 12 samples of classes 0 and 1, each with a box of the same class in the given fields."""
    samples = [
        (f"{n}", {"jpg": jpeg(n), "cls": b"%d" % (n % 2), "json": b'{"boxes": [[1, 1, 9, 9]], "ids": [%d]}' % (n % 2)})
        for n in range(12)
    ]
    boxes = Boxes("json", "boxes", "xyxy", fields=fields)
    return write_dataset(root, {"train": [samples]}, classes=classes, annotations=Annotations(boxes=boxes))


@pytest.mark.parametrize("by", ["sample", "batch"])
@pytest.mark.parametrize("fields", [("label",), ("labels",), ("cls",), ("image", "box_labels"), ("image", "box_kind")])
def test_a_number_of_two_classes_is_refused(tmp_path: Path, by: str, fields: tuple[str, ...]) -> None:
    """Datasets that number their classes differently are not mixed where a field has these numbers."""
    names = fields[-1].removeprefix("box_") if fields[-1].startswith("box_") else "labels"
    lists = {"pets": ("cat", "dog"), "sea": ("dog", "eel"), "numbers": ("0", "1"), "nameless": None}
    urls = {name: classes_dataset(tmp_path / name, classes, **{names: "ids"}) for name, classes in lists.items()}
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 0, "fields": fields, "by": by}
    for other, found in (("sea", "'dog' in .*sea"), ("numbers", "'0' in .*numbers")):
        for pair in ((urls["pets"], urls[other]), (urls[other], urls["pets"])):
            with pytest.raises(ConfigError, match=rf"{fields[-1]}.*class 0 is .*--classes FILE") as refused:
                shardflow.Mix([(url, 1) for url in pair], **options)
            assert re.search(found, str(refused.value))
            assert re.search("'cat' in .*pets", str(refused.value))
    if fields != ("labels",):  # which needs to know the classes
        with pytest.raises(ConfigError, match=r"nameless .*pets has"):
            shardflow.Mix([(urls["pets"], 1), (urls["nameless"], 1)], **options)
        assert shardflow.Mix([(urls["nameless"], 1)] * 2, **options).classes == []


def test_classes_that_no_field_numbers_may_differ(tmp_path: Path) -> None:
    """Datasets of different classes are mixed without labels, and with fields of boxes that are no classes."""
    sources = [
        (classes_dataset(tmp_path / name, classes, iscrowd="ids", ids="ids", area="ids:float"), 1)
        for name, classes in (("pets", ("cat", "dog")), ("sea", ("dog", "eel")), ("nameless", None))
    ]
    boxes = shardflow.annotations.CroppedBoxes(crowds=True)
    for fields in (("image", "key"), ("image", boxes, "box_iscrowd", "box_ids", "box_area"), ("json",)):
        assert shardflow.Mix(sources, batch_size=4, num_workers=0, fields=fields).classes == []


@pytest.mark.parametrize("by", ["sample", "batch"])
def test_classes_that_begin_alike_are_mixed(tmp_path: Path, by: str) -> None:
    """A mix has the longest list of classes, of which the others are the beginning; multi-hot labels need one list."""
    sources = [
        (classes_dataset(tmp_path / "".join(classes), classes), 1)
        for classes in (("cat", "dog"), ("cat", "dog", "eel"))
    ]
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 0, "by": by}
    some = shardflow.Mix(sources, fields=("label",), **options)
    assert some.classes == ["cat", "dog", "eel"]
    assert some.class_to_idx == {"cat": 0, "dog": 1, "eel": 2}
    with pytest.raises(ConfigError, match=r"'labels' .*\[2, 3\]"):
        shardflow.Mix(sources, fields=("labels",), **options)


@pytest.mark.parametrize("by", ["sample", "batch"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_field_names_the_source(datasets: list[Path], by: str, workers: int) -> None:
    """The field "source" has the number of each sample's loader, whose "index" it is; one alone refuses the field."""
    fields = ("source", "index", "label")
    some = sample_mix(datasets, batch_size=10, num_workers=workers, fields=fields, by=by, steps_per_epoch=20)
    for step, (sources, numbers, labels) in enumerate(some):
        rows = np.arange(10 * step, 10 * step + 10) if by == "sample" else np.array([step])
        assert sources.dtype == torch.int64
        assert sources.tolist() == np.broadcast_to(some.source_of(rows), 10).tolist()
        assert torch.equal(numbers, labels)  # as these datasets are labelled
    with pytest.raises(ConfigError, match=r"the field 'source' is a loader's number in a Mix.*split.source\(number\)"):
        next(iter(shardflow.Loader(datasets[0], batch_size=10, num_workers=0, fields=fields)))


def keys_of(url: Path, **options: Any) -> dict[tuple[int, int], list[int]]:
    """The random keys of (source, sample) in a mix of one dataset with itself, pass by pass, over all ranks."""
    found: dict[tuple[int, int], list[int]] = {}
    for rank in range(world_size := options.pop("world_size", 1)):
        some = shardflow.Mix(
            [(url, 1), (url, 1)],
            fields=("source", "index", "random_key"),
            **{"batch_size": 4, "num_workers": 0, "group": (rank, world_size), **options},
        )
        for sources, numbers, keys in some:
            for source, number, key in zip(sources.tolist(), numbers.tolist(), keys.tolist(), strict=True):
                found.setdefault((source, number), []).append(key)
    return found


def test_sources_draw_independently(datasets: list[Path]) -> None:
    """A dataset that is mixed with itself comes in two orders with two sets of keys, however it is mixed."""
    url = datasets[0]
    expected = {}
    for source in range(2):
        alone = shardflow.Loader(url, batch_size=4, num_workers=0, fields=("index", "random_key"), seed=seed_of(source))
        expected |= {(source, int(n)): int(key) for batch in alone for n, key in zip(*batch, strict=True)}
    assert len(expected) == 80
    assert len(set(expected.values())) == 80
    for options in ({}, {"batch_size": 5}, {"by": "batch"}, {"num_workers": 2}, {"world_size": 2, "by": "batch"}):
        found = keys_of(url, **options)
        assert all(keys[0] == expected[place] for place, keys in found.items())
        assert len(found) > 70
    some = shardflow.Mix([(url, 1), (url, 1)], batch_size=8, num_workers=0, fields=("source", "index"))
    together = 0
    for sources, numbers in some:
        one, other = (set(numbers[sources == source].tolist()) for source in range(2))
        together += len(one & other)
    assert together < 20  # of 40: the two are not in one order


def test_loaders_that_are_in_use_are_refused(datasets: list[Path]) -> None:
    """A loader that was iterated, moved or resumed before is named, and what to do instead."""

    def loader(**options: Any) -> shardflow.Loader:
        return shardflow.Loader(datasets[0], batch_size=4, num_workers=0, fields=("label",), **options)

    begun, ended, moved, resumed = (loader() for _ in range(4))
    running = iter(begun)
    next(running)
    list(ended)
    moved.set_epoch(3)
    resumed.load_state_dict(begun.state_dict())
    for by in ("sample", "batch"):
        for one, place in (
            (begun, "4 of epoch 0"),
            (ended, "0 of epoch 1"),
            (moved, "3"),
            (resumed, "4 of epoch 0"),
        ):
            with pytest.raises(ConfigError, match=rf"loader 1 of the mix, of .*40, .*{place}.*make a new loader"):
                shardflow.Mix([(loader(), 1), (one, 1)], by=by)
    assert len(list(running)) == len(begun) - 1  # the mixes that were refused left it as it was


class FailsOnce:
    """A transform that raises an error at its ninth image."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Return the image."""
        self.calls += 1
        if self.calls == 9:
            raise TimeoutError
        return image


def test_a_mix_goes_on_after_an_error(datasets: list[Path]) -> None:
    """An error at the first batch of an epoch, which is also that of a loader's, leaves the mix where it was."""
    options: dict[str, Any] = {
        "batch_size": 4,
        "num_workers": 0,
        "limit": 8,
        "decoder": shardflow.decoders.CenterCrop(8),
    }
    expected = shardflow.Mix([(datasets[0], 1)], by="batch", **options)
    some = shardflow.Mix([(datasets[0], 1)], by="batch", transform=FailsOnce(), **options)
    assert [labels.tolist() for _, labels in some] == [labels.tolist() for _, labels in expected]
    with pytest.raises(TimeoutError):
        list(some)
    assert [labels.tolist() for _, labels in some] == [labels.tolist() for _, labels in expected]


@pytest.mark.parametrize("by", ["sample", "batch"])
def test_loaders_of_a_mix_go_their_own_way(datasets: list[Path], by: str) -> None:
    """A loader that is iterated or moved beside its mixes, of which there may be two, moves none of them."""
    expected = contents(mix(datasets) if by == "batch" else sample_mix(datasets))
    some = mix(datasets) if by == "batch" else sample_mix(datasets)
    other = shardflow.Mix([(some.loaders[1], 1), (some.loaders[1], 1)], by=by)
    batches = iter(some)
    found = [next(batches)[0].tolist() for _ in range(3)]
    next(iter(some.loaders[1]))
    some.loaders[1].set_epoch(2)
    next(iter(other))
    assert found + [labels.tolist() for labels, *_ in batches] == expected
