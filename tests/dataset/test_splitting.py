from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import shardflow as sf
from shardflow.errors import ConfigError, IntegrityError
from tests.helpers.making import jpeg, make_dataset, write_dataset


def dataset_with_classes(root: Path, sizes: list[int]) -> Path:
    """Write a dataset of two shards with these numbers of samples per class."""
    labels = [label for label, size in enumerate(sizes) for _ in range(size)]
    samples = [(f"{n:05}", {"jpg": jpeg(n), "cls": b"%d" % label}) for n, label in enumerate(labels)]
    half = len(samples) // 2
    names = tuple(f"class{label}" for label in range(len(sizes)))
    return write_dataset(root, {"train": [samples[:half], samples[half:]]}, classes=names)


def test_every_class_gives_its_share(tmp_path: Path) -> None:
    """A quarter of each class, and of all samples, is held out; each sample is in exactly one split."""
    dataset = dataset_with_classes(tmp_path / "set", [40, 20, 10, 6])
    report = sf.split(dataset, tmp_path / "virtual", val=0.25)
    assert report.samples == {"train": 57, "val": 19}
    virtual = sf.open(tmp_path / "virtual")
    counts = Counter(int(sample["cls"]) for sample in virtual["val"])
    assert (counts[0], counts[1]) == (10, 5)
    assert counts[2] in (2, 3)
    assert counts[3] in (1, 2)
    found = [sample["__key__"] for split in virtual.values() for sample in split]
    assert sorted(found) == [f"{n:05}" for n in range(76)]
    assert sf.verify(tmp_path / "virtual") == []
    sf.split(dataset, tmp_path / "again", val=0.25)
    assert sf.open(tmp_path / "again").fingerprint == virtual.fingerprint
    sf.split(dataset, tmp_path / "other", val=0.25, seed=1)
    assert sf.open(tmp_path / "other").fingerprint != virtual.fingerprint


def test_folds_are_disjoint_and_even(tmp_path: Path) -> None:
    """Each sample is held out in exactly one fold; folds are even to one, as a whole and in each class."""
    dataset = dataset_with_classes(tmp_path / "set", [23, 12, 7, 3, 1])
    reports = sf.split_folds(dataset, tmp_path / "folds", folds=4)
    folds = [sf.open(tmp_path / f"folds/fold{number}") for number in range(4)]
    assert [fold.fingerprint for fold in folds] == [report.fingerprint for report in reports]
    held_out = [[sample["__key__"] for sample in fold["val"]] for fold in folds]
    everything = [f"{n:05}" for n in range(46)]
    assert sorted(key for keys in held_out for key in keys) == everything
    for fold, keys in zip(folds, held_out, strict=True):
        assert sorted([*keys, *(sample["__key__"] for sample in fold["train"])]) == everything
    assert {len(keys) for keys in held_out} <= {11, 12}
    for label, size in enumerate([23, 12, 7, 3, 1]):
        counts = [sum(int(sample["cls"]) == label for sample in fold["val"]) for fold in folds]
        assert sum(counts) == size
        assert max(counts) - min(counts) <= 1
    again = sf.split_folds(dataset, tmp_path / "again", folds=4)
    assert [report.fingerprint for report in again] == [report.fingerprint for report in reports]


def test_copies_of_an_image_share_a_fold(tmp_path: Path) -> None:
    """Copies of one image are validated together, except at the border of two folds."""
    samples = [(f"{n:03}", {"jpg": jpeg(n // 4), "cls": b"0"}) for n in range(160)]
    dataset = write_dataset(tmp_path / "set", {"train": [samples]}, classes=("x",))
    sf.split_folds(dataset, tmp_path / "folds", folds=5)
    held_out = [
        {int(sample["__key__"]) // 4 for sample in sf.open(tmp_path / f"folds/fold{n}")["val"]} for n in range(5)
    ]
    assert sum(map(len, held_out)) <= 40 + 4


@pytest.mark.parametrize(("folds", "message"), [(1, "folds must be 2 or more"), (5, "cannot be split into 5 folds")])
def test_folds_that_cannot_be(tmp_path: Path, folds: int, message: str) -> None:
    """One fold, and more folds than samples, are refused."""
    dataset = make_dataset(tmp_path / "set", [4])
    with pytest.raises(ConfigError, match=message):
        sf.split_folds(dataset, tmp_path / "folds", folds=folds)


def test_other_splits_are_kept(tmp_path: Path) -> None:
    """A test split is kept as it is, and a dataset without labels can be split too."""
    dataset = make_dataset(tmp_path / "set", {"train": [10], "test": [4]}, labelled=False)
    assert sf.split(dataset, tmp_path / "virtual", val=0.3).samples == {"train": 7, "val": 3, "test": 4}


def test_what_cannot_be_split(tmp_path: Path) -> None:
    """A share that leaves a split empty, a share out of range, and a dataset with a split val are refused."""
    dataset = make_dataset(tmp_path / "set", {"train": [4], "val": [4]})
    with pytest.raises(ConfigError, match="already has a split val, with 4 samples; use that"):
        sf.split(dataset, tmp_path / "virtual")
    single = make_dataset(tmp_path / "single", [4])
    with pytest.raises(ConfigError, match="leaves train or val empty"):
        sf.split(single, tmp_path / "virtual", val=0.01)
    for val in (1, "0.1"):
        with pytest.raises(ConfigError, match="val must be above 0 and below 1"):
            sf.split(single, tmp_path / "virtual", val=val)  # type: ignore[arg-type]


def test_bad_labels_are_named(tmp_path: Path) -> None:
    """A label that has to be read, and is damaged or not a number, is an error that names the sample."""
    samples = [(f"{n}", {"jpg": jpeg(n), "cls": label}) for n, label in enumerate((b"0", b"01", b"zero"))]
    dataset = write_dataset(tmp_path / "set", {"train": [samples]}, classes=("x", "y"))
    with pytest.raises(IntegrityError, match=r"000000\.tar, sample 2: label b'zero' is not a number"):
        sf.split(dataset, tmp_path / "virtual")
    tar = dataset / "train/000000.tar"
    data = bytearray(tar.read_bytes())
    data[sf.open(dataset)["train"].reader.members(0, 1)[0].offset + 1] ^= 1  # which makes a 0 of the 1
    tar.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"000000\.tar, sample 1: part 'cls' is damaged"):
        sf.split(dataset, tmp_path / "virtual")
