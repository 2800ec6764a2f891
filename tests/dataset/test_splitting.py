from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import shardflow as sf
from shardflow.errors import ConfigError, IntegrityError
from tests.helpers.making import jpeg, make_dataset, write_dataset


def classed(root: Path, sizes: list[int]) -> Path:
    """A dataset of two shards with so many samples of each class."""
    labels = [label for label, size in enumerate(sizes) for _ in range(size)]
    samples = [(f"{n:05}", {"jpg": jpeg(n), "cls": b"%d" % label}) for n, label in enumerate(labels)]
    half = len(samples) // 2
    names = tuple(f"class{label}" for label in range(len(sizes)))
    return write_dataset(root, {"train": [samples[:half], samples[half:]]}, classes=names)


def test_every_class_gives_its_share(tmp_path: Path) -> None:
    """Each class gives a quarter, rounded so that the whole is a quarter too; no sample is in both or in none."""
    dataset = classed(tmp_path / "set", [40, 20, 10, 6])
    report = sf.split(dataset, tmp_path / "view", val=0.25)
    assert report.samples == {"train": 57, "val": 19}
    view = sf.open(tmp_path / "view")
    counts = Counter(int(sample["cls"]) for sample in view["val"])
    assert (counts[0], counts[1]) == (10, 5)
    assert counts[2] in (2, 3)
    assert counts[3] in (1, 2)
    found = [sample["__key__"] for split in view.values() for sample in split]
    assert sorted(found) == [f"{n:05}" for n in range(76)]
    assert sf.verify(tmp_path / "view") == []
    sf.split(dataset, tmp_path / "again", val=0.25)
    assert sf.open(tmp_path / "again").fingerprint == view.fingerprint
    sf.split(dataset, tmp_path / "other", val=0.25, seed=1)
    assert sf.open(tmp_path / "other").fingerprint != view.fingerprint


def test_other_splits_are_taken_along(tmp_path: Path) -> None:
    """A test split stays whole, and a dataset without labels is split as well."""
    dataset = make_dataset(tmp_path / "set", {"train": [10], "test": [4]}, labelled=False)
    assert sf.split(dataset, tmp_path / "view", val=0.3).samples == {"train": 7, "val": 3, "test": 4}


def test_what_cannot_be_split(tmp_path: Path) -> None:
    """A share that leaves a part empty, no share at all, and a dataset that has a val are refused."""
    dataset = make_dataset(tmp_path / "set", {"train": [4], "val": [4]})
    with pytest.raises(ConfigError, match="has a split val already, with 4 samples"):
        sf.split(dataset, tmp_path / "view")
    single = make_dataset(tmp_path / "single", [4])
    with pytest.raises(ConfigError, match="leaves one of train and val empty"):
        sf.split(single, tmp_path / "view", val=0.01)
    with pytest.raises(ConfigError, match="above 0 and below 1"):
        sf.split(single, tmp_path / "view", val=1)


def test_labels_that_cannot_be_trusted(tmp_path: Path) -> None:
    """A label that is damaged, or is no number, is an error that names the sample."""
    samples = [(f"{n}", {"jpg": jpeg(n), "cls": label}) for n, label in enumerate((b"0", b"1", b"zero"))]
    dataset = write_dataset(tmp_path / "set", {"train": [samples]}, classes=("x", "y"))
    with pytest.raises(IntegrityError, match=r"000000\.tar, sample 2: label b'zero' is not a number"):
        sf.split(dataset, tmp_path / "view")
    tar = dataset / "train/000000.tar"
    data = bytearray(tar.read_bytes())
    data[sf.open(dataset)["train"].shard(0).members(1)[0].offset] ^= 1  # which makes a 0 of the 1
    tar.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"000000\.tar, sample 1: part 'cls' is damaged"):
        sf.split(dataset, tmp_path / "view")
