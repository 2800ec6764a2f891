from __future__ import annotations

import itertools
import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import shardflow
from shardflow.errors import ConfigError, ResumeMismatchError
from shardflow.samplers import ClassBatches, Subset, Weighted
from tests.helpers.making import jpeg, make_dataset, write_dataset
from tests.helpers.ranks import launch

SIZES = [20, 9, 31]
TOTAL = sum(SIZES)
CLASS_SIZES = [40, 12, 5, 0, 3]
VALUES = np.linspace(0, 2.5, TOTAL) ** 2


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 60 samples in three uneven shards; the label of a sample is its number."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", SIZES)


@pytest.fixture(scope="module")
def long_tailed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose classes have 40, 12, 5, no and 3 samples, in two shards."""
    labels = np.repeat(np.arange(5), CLASS_SIZES)
    samples = [(f"{n:05}", {"jpg": jpeg(n), "cls": b"%d" % label}) for n, label in enumerate(labels.tolist())]
    root = tmp_path_factory.mktemp("data") / "long"
    return write_dataset(root, {"train": [samples[::2], samples[1::2]]}, classes=tuple("abcde"))


def make_loader(url: Path, weights: Any, **options: Any) -> shardflow.Loader:
    """A loader of small crops, with every sample in a batch, by weights or by a sampler."""
    options = {"batch_size": 7, "num_workers": 0, "tail": "short", **options}
    options = {"shuffle": shardflow.Shuffle(buffer=16, streams=3), "fields": ("image", "index"), **options}
    sampler = weights if weights is None or hasattr(weights, "bind") else Weighted(weights)
    return shardflow.Loader(url, decoder=shardflow.decoders.RandomResizedCrop(12), sampler=sampler, **options)


def contents(batches: Any) -> list[tuple[bytes, list[int]]]:
    """The pixels and numbers of all batches."""
    return [(images.numpy().tobytes(), numbers.tolist()) for images, numbers in batches]


def counts(batches: Any) -> np.ndarray[Any, Any]:
    """How often each sample came."""
    numbers = [number for _, batch in batches for number in batch.tolist()]
    return np.bincount(numbers, minlength=TOTAL)


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_come_as_often_as_their_weights(dataset: Path, workers: int) -> None:
    """Each count is the weight, rounded up or down; an epoch has the rounded sum; and over epochs the mean is exact."""
    loader = make_loader(dataset, VALUES, num_workers=workers)
    length = round(VALUES.sum())
    epochs = [counts(loader) for _ in range(20)]
    assert {int(epoch.sum()) for epoch in epochs} == {length}
    scaled = VALUES * length / VALUES.sum()
    assert all((np.abs(epoch - scaled) < 1).all() for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert np.abs(np.mean(epochs, axis=0) - scaled).max() < 0.4


def crops(weights: Any, dataset: Path) -> dict[int, list[bytes]]:
    """The pixels of each sample, by its number."""
    found: dict[int, list[bytes]] = {}
    for images, numbers in make_loader(dataset, weights):
        for number, image in zip(numbers.tolist(), images, strict=True):
            found.setdefault(number, []).append(image.numpy().tobytes())
    return found


def test_repeats_have_pixels_of_their_own(dataset: Path) -> None:
    """A sample is cropped anew each time that it comes in an epoch; one of its crops is that without weights."""
    plain, thrice = crops(None, dataset), crops(3, dataset)
    assert all(len(set(found)) == 3 for found in thrice.values())
    assert all(plain[number][0] in found for number, found in thrice.items())


@pytest.mark.parametrize("one", [1, np.ones(TOTAL), np.ones(TOTAL, dtype=bool), Subset(index=range(TOTAL))])
def test_equal_weights_change_nothing(dataset: Path, one: Any) -> None:
    """With each weight 1 the batches are those without weights, in the same order."""
    assert contents(make_loader(dataset, one)) == contents(make_loader(dataset, None))


def test_a_subset_is_weights_of_zero_and_one(dataset: Path) -> None:
    """`Subset` and a mask are the same; a number that is named twice comes twice."""
    mask = np.zeros(TOTAL)
    mask[[3, 8, 21, 59]] = 1
    named = make_loader(dataset, Subset(index=[59, 3, 21, 8]), batch_size=2)
    assert contents(named) == contents(make_loader(dataset, mask, batch_size=2))
    assert Counter(counts(make_loader(dataset, Subset(index=[5, 5, 7]), batch_size=1)).tolist()) == {
        0: 58,
        1: 1,
        2: 1,
    }


@pytest.mark.parametrize("workers", [0, 2])
def test_a_subset_keeps_its_order(dataset: Path, workers: int) -> None:
    """Not shuffled, the samples of a `Subset` come in the order given, repeats too, on ranks, resumed, with a limit."""
    given = [50, 3, 59, 3, 0, 41, 21, 20, 19, 50, 3]

    def numbers(batches: Any) -> list[int]:
        return [n for _, batch in batches for n in batch.tolist()]

    def make(indices: list[int] = given, **options: Any) -> shardflow.Loader:
        options = {"batch_size": 2, "num_workers": workers, "shuffle": False, **options}
        return make_loader(dataset, Subset(index=indices), **options)

    some = make()
    assert [numbers(some), numbers(some)] == [given] * 2
    assert numbers(make(limit=42)) == [3, 3, 0, 41, 21, 20, 19, 3]
    ranks = [list(make(group=(rank, 2), batch_size=1)) for rank in range(2)]
    assert numbers(itertools.chain.from_iterable(zip(*ranks, strict=True))) == given
    stopped = make()
    next(iter(stopped))
    resumed = make()
    resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert numbers(resumed) == given[2:]
    with pytest.raises(ResumeMismatchError, match="sampler is"):
        make(given[::-1]).load_state_dict(stopped.state_dict())
    stream = make(samples_per_epoch=7)
    assert numbers(stream) + numbers(stream) == (given * 2)[:14]
    crops = [image.numpy().tobytes() for images, _ in make() for image in images]
    assert len({crops[place] for place, number in enumerate(given) if number == 3}) == 3


def test_a_list_in_the_order_of_the_split_is_weights(dataset: Path) -> None:
    """An ascending `Subset` has the batches and the state of equal weights; so has any that is shuffled."""
    mask = np.isin(np.arange(TOTAL), [3, 8, 21])
    for given, options in (([3, 8, 21], {"shuffle": False}), ([21, 3, 8], {})):
        named = make_loader(dataset, Subset(index=given), **options)
        assert named.state_dict() == make_loader(dataset, mask, **options).state_dict()
        assert contents(named) == contents(make_loader(dataset, mask, **options))


def test_weights_by_class(long_tailed: Path) -> None:
    """ "balanced" shows each class equally often, "sqrt" by the root of its size, a mapping those that it names."""

    def classes(weights: Any) -> list[int]:
        loader = make_loader(long_tailed, weights, fields=("image", "label"))
        found = Counter(n for _, labels in loader for n in labels.tolist())
        return [found[label] for label in range(5)]

    # Each sample comes as often as its weight says, to one; the sums over classes are then right to a few.
    assert np.abs(np.array(classes("balanced")) - [15, 15, 15, 0, 15]).max() <= 2
    roots = np.sqrt(CLASS_SIZES)
    assert np.abs(np.array(classes("sqrt")) - 60 * roots / roots.sum()).max() <= 2
    assert classes({"b": 2, 4: 0, "d": 9}) == [40, 24, 5, 0, 0]
    assert classes({"a": 0.5}) == [20, 12, 5, 0, 3]


def test_weights_by_class_name_classes_that_are_numbers_by_name(tmp_path: Path) -> None:
    """Where classes are named by numbers, a key that is a number is a name, and never the place of another class."""
    samples = [(f"{n:05}", {"jpg": jpeg(n), "cls": b"%d" % (n % 3)}) for n in range(9)]
    ids = write_dataset(tmp_path / "ids", {"train": [samples]}, classes=("7", "2", "1"))

    def classes(weights: Any) -> list[int]:
        found = Counter(n for _, each in make_loader(ids, weights, fields=("image", "label")) for n in each.tolist())
        return [found[label] for label in range(3)]

    for one in (1, "1", np.int64(1)):
        assert classes({one: 5}) == [3, 3, 15]
    with pytest.raises(ConfigError, match="unknown class 0; the dataset has 7, 2, 1"):
        make_loader(ids, {0: 5})


def test_weights_come_from_a_file(dataset: Path, tmp_path: Path) -> None:
    """A `.npy` is mapped, of any type of number."""
    np.save(tmp_path / "w.npy", VALUES.astype(np.float32))
    found = make_loader(dataset, tmp_path / "w.npy")
    assert contents(found) == contents(make_loader(dataset, VALUES.astype(np.float32)))


@pytest.mark.parametrize("workers", [0, 2])
def test_resume_after_any_batch_gives_the_rest(dataset: Path, workers: int) -> None:
    """Stopping after any batch and loading the state elsewhere gives exactly the rest, and then the next epoch."""
    whole = make_loader(dataset, VALUES, num_workers=workers)
    expected = contents(whole) + contents(whole)
    per_epoch = len(whole)
    for stop in range(0, per_epoch + 1, 3):
        stopped = make_loader(dataset, VALUES, num_workers=workers)
        before = contents(itertools.islice(stopped, stop))
        resumed = make_loader(dataset, VALUES, num_workers=workers)
        resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
        assert before + contents(resumed) == expected[:per_epoch]
        assert contents(resumed) == expected[per_epoch:]


def test_resume_may_change_topology(dataset: Path) -> None:
    """With another world size and batch size, what was seen stays seen and the rest comes once."""
    numbers = [n for _, batch in make_loader(dataset, VALUES) for n in batch.tolist()]
    stopped = make_loader(dataset, VALUES)
    before = [n for _, batch in itertools.islice(stopped, 4) for n in batch.tolist()]
    after: list[int] = []
    for rank in range(3):
        resumed = make_loader(dataset, VALUES, group=(rank, 3), batch_size=5)
        resumed.load_state_dict(stopped.state_dict())
        after += [n for _, batch in resumed for n in batch.tolist()]
    assert sorted(before + after) == sorted(numbers)


def test_samples_per_epoch_go_on_through_the_passes(dataset: Path) -> None:
    """With `samples_per_epoch`, weighted passes follow each other without a gap."""
    loader = make_loader(dataset, VALUES, samples_per_epoch=35, shuffle=False)
    stream = [n for _ in range(6) for _, batch in loader for n in batch.tolist()]
    passes = make_loader(dataset, VALUES, shuffle=False)
    expected = [n for _ in range(2) for _, batch in passes for n in batch.tolist()]
    assert stream[: len(expected)] == expected[: len(stream)]


def test_a_limit_takes_the_first_weights(dataset: Path) -> None:
    """With `limit`, the weights of the first samples count."""
    found = counts(make_loader(dataset, np.arange(TOTAL), limit=10))
    assert found.tolist() == [*range(10), *[0] * 50]


@pytest.mark.parametrize("workers", [0, 2])
def test_weights_change_between_epochs(dataset: Path, workers: int) -> None:
    """`set_sampler` counts from the next epoch on, also with other lengths, and the state names the weights."""
    loader = make_loader(dataset, 1, num_workers=workers)
    assert counts(loader).tolist() == [1] * TOTAL
    loader.set_sampler(Weighted(VALUES))
    state = loader.state_dict()
    assert len(loader) == -(-round(VALUES.sum()) // 7)
    fresh = make_loader(dataset, VALUES, num_workers=workers)
    with pytest.raises(ResumeMismatchError, match=r"sampler .*set_sampler .*load_state_dict"):
        make_loader(dataset, 1).load_state_dict(state)
    fresh.load_state_dict(state)
    assert contents(loader) == contents(fresh)


def test_changing_an_array_of_weights_changes_no_order(dataset: Path) -> None:
    """Weights are those that an array has when it is given, also where a training loop writes to it meanwhile."""
    expected = make_loader(dataset, np.full(TOTAL, 0.5))
    for given in (np.full(TOTAL, 0.5), torch.full((TOTAL,), 0.5)):
        loader = make_loader(dataset, given)
        for epoch in (0, 1):
            expected.set_epoch(epoch)
            found = []
            for images, numbers in loader:
                found.append((images, numbers))
                given[numbers] = 3.0
            assert contents(found) == contents(expected)
        loader.set_sampler(Weighted(given))
        assert counts(loader).max() == 3


def test_weights_that_change_in_the_middle_end_the_epoch(dataset: Path) -> None:
    """After `break`, new weights begin with the next epoch, but after a peek with the epoch that it looked at.

    A position that was loaded keeps its weights.
    """
    loader = make_loader(dataset, 1)
    next(iter(loader))
    loader.set_sampler(Weighted(3))
    assert loader.state_dict()["epoch"] == 0
    list(itertools.islice(loader, 2))
    loader.set_sampler(Weighted(2))
    assert loader.state_dict()["epoch"] == 1
    assert counts(loader).tolist() == [2] * TOTAL
    stopped = make_loader(dataset, 1)
    contents(itertools.islice(stopped, 2))
    resumed = make_loader(dataset, 1)
    resumed.load_state_dict(stopped.state_dict())
    resumed.set_sampler(Weighted(np.ones(TOTAL)))  # the same ones
    with pytest.raises(ConfigError, match="call set_sampler before load_state_dict"):
        resumed.set_sampler(Weighted(2))


def test_states_with_and_without_weights_differ(dataset: Path) -> None:
    """A state says whether there were weights or streams that keep their shards, and fits no loader that differs."""
    shard_affinity = {"shuffle": shardflow.Shuffle(buffer=16, streams=3, shard_affinity=True)}
    states = [
        make_loader(dataset, weights, **options).state_dict()
        for weights, options in ((None, {}), (2, {}), (None, shard_affinity))
    ]
    for place, (weights, options) in enumerate(((None, {}), (2, {}), (None, shard_affinity))):
        for number, state in enumerate(states):
            loader = make_loader(dataset, weights, **options)
            if number == place:
                loader.load_state_dict(state)
                continue
            with pytest.raises(ResumeMismatchError):
                loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, 2], "Weighted has 2 numbers for the 60 samples of split 'train'"),
        ({"x": 2}, "weights name the unknown class 'x'"),
        ({0: "many"}, "must be a number, found 'many'"),
        ("balance", "is neither a column nor a file, nor 'balanced' or 'sqrt' of Weighted"),
        ([-1.0] * 60, "that of sample 0 is -1"),
        ([0.0] * 60, "found 0"),
        (Subset(index=[]), r"Subset\(0 samples\) selects no sample of split 'train'"),
        (0.05, r"has 3 samples, less than one batch of 7.*sum of the weights of Weighted\(0.05\).*samples_per_epoch"),
        (
            Subset(index=[60]),
            r"Subset names sample 60, .* 0 … 59: numbers count packed samples, which Split\.sources\(\) lists",
        ),
        (Subset(index=[0, 1, 1] * 20), r"a 0 or 1 for each sample, as a mask has: write np.flatnonzero\(mask\)"),
        (object(), "must be numbers"),
    ],
)
def test_weights_that_cannot_be_are_refused(dataset: Path, weights: Any, message: str) -> None:
    """Weights that do not fit the split are an error that says what fits."""
    with pytest.raises(ConfigError, match=message):
        make_loader(dataset, weights, tail="drop")


def test_what_cannot_be_a_weight_file(dataset: Path, tmp_path: Path) -> None:
    """A file of objects, and one that is no `.npy`, are refused, and nothing in them is executed."""
    np.save(tmp_path / "objects.npy", np.array([object()]), allow_pickle=True)
    (tmp_path / "text.npy").write_text("1 2 3")
    for name in ("objects.npy", "text.npy"):
        with pytest.raises(ConfigError, match=r"\.npy file of numbers"):
            make_loader(dataset, tmp_path / name)
    with pytest.raises(ConfigError, match="list of sample numbers"):
        Subset(index=[0.5])


def test_classes_that_are_not_single(tmp_path: Path) -> None:
    """Weights by class need one class for each sample."""
    samples = [("0", {"jpg": jpeg(0), "cls": b"0"}), ("1", {"jpg": jpeg(1), "labels.json": b"[0, 1]"})]
    url = write_dataset(tmp_path / "set", {"train": [samples]}, classes=("x", "y"))
    with pytest.raises(ConfigError, match=r"1 of 2 .*sample 1"):
        make_loader(url, "balanced", batch_size=1)
    unlabelled = make_dataset(tmp_path / "without", [3], labelled=False)
    with pytest.raises(ConfigError, match="dataset with labels"):
        make_loader(unlabelled, "sqrt", batch_size=1)


def test_set_sampler_needs_a_sampler(dataset: Path) -> None:
    """A loader made without a sampler says how to make it; weights that do not fit leave it as it was."""
    with pytest.raises(ConfigError, match=r"make it with sampler=samplers.Weighted\(1\)"):
        make_loader(dataset, None).set_sampler(Weighted(2))
    loader = make_loader(dataset, 1, tail="drop")
    with pytest.raises(ConfigError, match="less than one batch"):
        loader.set_sampler(Weighted(0.05))
    assert contents(loader) == contents(make_loader(dataset, 1, tail="drop"))


def test_a_substitute_has_its_own_number(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The number in "index" is that of the sample whose image it is, also where it stands in for a damaged one."""
    url = make_dataset(tmp_path / "set", [6])
    tar = url / "train/000000.tar"
    data = bytearray(tar.read_bytes())
    members = shardflow.open(url)["train"].reader.members(0, 2)
    data[next(member.offset for member in members if member.name.endswith("jpg")) + 3] ^= 1
    tar.write_bytes(data)
    with caplog.at_level(logging.ERROR):
        ((_, labels, numbers),) = shardflow.Loader(
            url, batch_size=6, shuffle=False, num_workers=0, max_errors=1, fields=("image", "label", "index")
        )
    assert numbers.tolist() == labels.tolist() == [0, 1, 3, 3, 4, 5]


def _with_weights_of_its_own(url: Path) -> str:
    """What a rank meets whose weights are not those of the others."""
    rank = torch.distributed.get_rank()
    loader = make_loader(url, 1, num_workers=0)
    assert counts(loader).sum() == TOTAL // 2
    loader.set_sampler(Weighted(np.ones(TOTAL) + (np.arange(TOTAL) == rank)))
    with pytest.raises(ConfigError) as caught:
        next(iter(loader))
    return str(caught.value)


def test_ranks_with_other_weights_are_told(dataset: Path) -> None:
    """Weights that differ between ranks are an error on all of them, at once, and no hang."""
    found = launch(_with_weights_of_its_own, 2, dataset)
    assert found == ["sampler must be equal on all ranks, but rank 1 differs from rank 0"] * 2


def test_weights_of_classes_in_another_order_are_told(long_tailed: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Weights by class in the order of a table, which fit the sizes of the classes, are a warning; others are none."""
    labels = np.array(shardflow.Loader(long_tailed, batch_size=1, num_workers=0).dataset.targets)
    by_class = 1 / np.maximum(CLASS_SIZES, 1)
    right, table = by_class[labels], by_class[np.sort(labels)[::-1]]
    make_loader(long_tailed, 60 * right / right.sum())
    make_loader(long_tailed, "balanced")
    make_loader(long_tailed, np.linspace(0.5, 1.5, len(labels)))
    make_loader(long_tailed, np.arange(len(labels)) % 2 + 1)
    make_loader(long_tailed, np.where(labels == 1, 5, 1))
    split = shardflow.open(long_tailed)["train"]
    keys = [key for shard in range(len(split.shards)) for key in split.stored_keys(shard)]
    make_loader(long_tailed, pd.Series(1.0, keys).where(np.arange(60) % 12 > 0, 5))  # as often as the third class
    assert not caplog.records
    for weights in (60 * table / table.sum(), np.where(np.sort(labels)[::-1] == 1, 5, 1)):
        caplog.clear()
        make_loader(long_tailed, weights.tolist())
        assert "weights occur as often as the samples of the classes, but not with these samples" in caplog.text


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_classes(long_tailed: Path, workers: int) -> None:
    """With `ClassBatches`, each batch has different classes with that many samples, on any number of ranks."""
    options: dict[str, Any] = {"batch_size": 6, "fields": ("image", "label", "index")}
    loader = make_loader(long_tailed, ClassBatches(2), num_workers=workers, **options)
    epoch = [(labels.tolist(), index.tolist()) for _, labels, index in loader]
    assert len(epoch) == len(loader) == 3
    for labels, _ in epoch:
        assert sorted(Counter(labels).values()) == [2, 2, 2]
    by_rank = [
        [index.tolist() for _, _, index in make_loader(long_tailed, ClassBatches(2), group=(rank, 2), **options)]
        for rank in range(2)
    ]
    assert [by_rank[0][0], by_rank[1][0], by_rank[0][1]] == [index for _, index in epoch]
    stopped = make_loader(long_tailed, ClassBatches(2), **options)
    next(iter(stopped))
    resumed = make_loader(long_tailed, ClassBatches(2), group=(1, 2), **options)
    resumed.load_state_dict(stopped.state_dict())
    assert [index.tolist() for _, _, index in resumed] == [epoch[2][1]]
    with pytest.raises(ResumeMismatchError, match=r"sampler is .*class_batches.*batch_size="):
        make_loader(long_tailed, ClassBatches(3), **options).load_state_dict(stopped.state_dict())


def test_classes_that_are_too_small_for_a_batch_are_named(long_tailed: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Classes with fewer than `samples_per_class` samples are a warning with their number, names and sizes."""
    make_loader(long_tailed, ClassBatches(3), batch_size=6)
    assert not caplog.records
    loader = make_loader(long_tailed, ClassBatches(6), batch_size=12, fields=("image", "label"))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "2 of 4 classes have fewer samples and never come: 'c' (5), 'e' (3)" in record.getMessage()
    assert {n for _, labels in loader for n in labels.tolist()} == {0, 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 7}, "batch_size=7 is not a multiple"),
        ({"shuffle": False}, "class batches need shuffle=True"),
        ({"samples_per_epoch": 9}, "multiples of the 6 samples"),
        ({"shuffle": shardflow.Shuffle(shard_affinity=True)}, "shard_affinity would have no effect"),
        ({"batch_size": 20}, "need 10 classes of that size; 4 have it"),
        ({"sampler": 0}, "samples_per_class must be 1 or more"),
    ],
)
def test_batches_of_classes_that_cannot_be(long_tailed: Path, options: dict[str, Any], message: str) -> None:
    """What does not go together is an error that says so."""
    arguments = {"sampler": 2, "batch_size": 6, **options}
    with pytest.raises(ConfigError, match=message):
        make_loader(long_tailed, ClassBatches(arguments.pop("sampler")), **arguments)


def test_shard_affinity_is_yes_or_no() -> None:
    """`shard_affinity` is neither a number nor a word."""
    with pytest.raises(ConfigError, match=r"shard_affinity .*found 'no'"):
        shardflow.Shuffle(shard_affinity="no")  # type: ignore[arg-type]
