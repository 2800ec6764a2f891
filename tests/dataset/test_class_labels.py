from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardflow as sf
from shardflow.dataset.class_labels import read_labels, single_classes
from tests.helpers.examples import examples
from tests.helpers.making import jpeg, write_dataset

CLASSES = 120


def _forms(numbers: list[int]) -> st.SearchStrategy[tuple[str, bytes]]:
    """A part with these class numbers, as shardflow or another writer would write it."""
    several = st.just(("labels.json", json.dumps(numbers).encode()))
    if len(numbers) != 1:
        return several
    text = b"%d" % numbers[0]
    return st.one_of(several, *(st.just(("cls", form)) for form in (text, b"00" + text, text + b"\n", b" " + text)))


LABELS = st.lists(st.integers(0, CLASSES - 1), max_size=3, unique=True).flatmap(
    lambda numbers: st.tuples(st.just(tuple(numbers)), _forms(numbers))
)


@given(shards=st.lists(st.lists(LABELS, min_size=1, max_size=6), min_size=1, max_size=3))
@examples(30)
def test_labels_are_those_of_the_samples(shards: list[list[tuple[tuple[int, ...], tuple[str, bytes]]]]) -> None:
    """Every form of a label gives its classes, one or several, in the order of the samples."""
    with tempfile.TemporaryDirectory() as folder:
        image, number = jpeg(0), iter(range(100))
        written = [[(f"{next(number)}", {"jpg": image, name: part}) for _, (name, part) in shard] for shard in shards]
        write_dataset(Path(folder) / "set", {"train": written}, classes=tuple(map(str, range(CLASSES))))
        split = sf.open(Path(folder) / "set")["train"]
        expected = [labels for shard in shards for labels, _ in shard]
        assert list(read_labels(split, CLASSES)) == expected
        single = [labels[0] if len(labels) == 1 else -1 for labels in expected]
        assert single_classes(split, CLASSES).tolist() == single


def _dataset(root: Path) -> Path:
    samples = [(f"{n:03}", {"jpg": jpeg(n), "cls": b"%d" % (n % 11)}) for n in range(40)]
    return write_dataset(root, {"train": [samples[:25], samples[25:]]}, classes=tuple(f"c{n}" for n in range(11)))


def test_no_tar_is_read(tmp_path: Path) -> None:
    """Labels, subsets by class, splits and folds need the indexes alone."""
    dataset = _dataset(tmp_path / "set")
    for tar in dataset.glob("train/*.tar"):
        tar.unlink()
    split = sf.open(dataset)["train"]
    assert np.array_equal(single_classes(split, 11), np.arange(40) % 11)
    assert sf.subset(dataset, tmp_path / "subset", classes=["c3", "c10"]).samples == {"train": 7}
    assert sf.split(dataset, tmp_path / "held-out", val=0.25).samples == {"train": 30, "val": 10}
    assert len(sf.split_folds(dataset, tmp_path / "folds", folds=3)) == 3


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_without_an_index_the_shard_is_read(tmp_path: Path, damage: str) -> None:
    """A lost or damaged index costs time, and no label."""
    dataset = _dataset(tmp_path / "set")
    index = dataset / "train/000001.npy"
    index.unlink() if damage == "missing" else index.write_bytes(index.read_bytes()[:-1])
    assert np.array_equal(single_classes(sf.open(dataset)["train"], 11), np.arange(40) % 11)


def test_a_number_beyond_the_classes_is_read(tmp_path: Path) -> None:
    """A label that is none of the classes is left to those who read it, as before."""
    assert list(read_labels(sf.open(_dataset(tmp_path / "set"))["train"], 5)) == [(n % 11,) for n in range(40)]
