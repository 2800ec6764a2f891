from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import shardflow as sf
from shardflow.cli.main import shardflow as cli
from shardflow.errors import ConfigError
from shardflow.formats import manifest
from tests.helpers.making import make_dataset
from tests.helpers.tars import members_of, write_tar


def rename_classes(dataset: Path, classes: tuple[str, ...] | None) -> Path:
    """Replace the class names of a dataset."""
    file = dataset / manifest.FILE_NAME
    file.write_bytes(replace(manifest.from_bytes(file.read_bytes()), classes=classes).to_bytes())
    return dataset


def images_with_classes(url: Path) -> list[tuple[str, bytes]]:
    """Return the images of a dataset with the names of their classes."""
    dataset = sf.open(url)
    return sorted((dataset.classes[int(sample["cls"])], sample["jpg"]) for sample in dataset["train"])  # type: ignore[index]


def test_two_datasets_as_one(tmp_path: Path) -> None:
    """A merge has all samples of both datasets, split by split, over the tars of both."""
    one, two = make_dataset(tmp_path / "one", {"train": [5, 4], "val": [3]}), make_dataset(tmp_path / "two", [7])
    report = sf.merge([one, two], tmp_path / "both")
    assert report.samples == {"train": 16, "val": 3}
    both = sf.open(tmp_path / "both")
    assert [int(sample["cls"]) for sample in both["train"]] == [*range(9), *range(7)]
    assert both.classes == sf.open(one).classes
    assert {root.url for root in both.manifest.roots.values()} == {"../one", "../two"}
    assert sf.verify(tmp_path / "both") == []


def test_tars_of_equal_bytes_come_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of two datasets packed alike, one's samples come, and a warning counts the others."""
    one, two = make_dataset(tmp_path / "one", [3]), make_dataset(tmp_path / "two", [3, 2])
    assert sf.merge([one, two], tmp_path / "both").samples == {"train": 5}
    assert "left out 3 samples that the datasets have more than once" in caplog.text


def test_a_sample_of_both_comes_once(tmp_path: Path) -> None:
    """Overlapping subsets of one dataset are united: each sample comes once, in the order of the tar."""
    dataset = make_dataset(tmp_path / "set", [10, 10])
    sf.subset(dataset, tmp_path / "a", keys=[f"{n:09}" for n in (1, 3, 5, 12)])
    sf.subset(dataset, tmp_path / "b", keys=[f"{n:09}" for n in (0, 3, 4, 5, 9)])
    assert sf.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "both").samples == {"train": 7}
    found = [int(sample["__key__"]) for sample in sf.open(tmp_path / "both")["train"]]
    assert found == [0, 1, 3, 4, 5, 9, 12]
    rows = sum(len(np.load(index)) for index in (tmp_path / "both").rglob("*.npy"))
    assert rows == 7 * len(("cls", "jpg"))
    assert sf.verify(tmp_path / "both") == []


def test_no_sample_is_merged_into_two_splits(tmp_path: Path) -> None:
    """Datasets that have a sample in different splits are refused; the remedy in the message works."""
    dataset = make_dataset(tmp_path / "set", [10, 10])
    sf.split_folds(dataset, tmp_path / "folds", folds=2)
    one, two = tmp_path / "folds/fold0", tmp_path / "folds/fold1"
    for given in ([one, two], [one, dataset], [dataset, two]):
        with pytest.raises(
            ConfigError, match=r"split (train|val) of .* are in the split (train|val) of .* split the re"
        ):
            sf.merge(given, tmp_path / "both")
    assert not (tmp_path / "both").exists()
    sf.subset(one, tmp_path / "some", limit=3)
    assert sf.merge([one, tmp_path / "some"], tmp_path / "fine").samples == {"train": 10, "val": 10}
    sf.subset(dataset, tmp_path / "a", limit=5)
    sf.merge([tmp_path / "a", dataset], tmp_path / "whole")
    sf.split(tmp_path / "whole", tmp_path / "held-out", val=0.5)


def test_numbers_without_names_are_not_compared(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A merge or a mix of datasets whose classes are numbers alone says that they are not compared."""
    one, two = make_dataset(tmp_path / "one", [3]), make_dataset(tmp_path / "two", [5])
    sf.merge([one, two], tmp_path / "named")
    assert not caplog.messages
    rename_classes(one, ("0", "1", "2"))
    rename_classes(two, ("0", "1", "2", "3", "4"))
    options = {"batch_size": 2, "decoder": sf.decoders.CenterCrop(8), "num_workers": 0}
    for combine in (lambda: sf.merge([one, two], tmp_path / "both"), lambda: sf.Mix([(one, 1), (two, 1)], **options)):
        combine()
        (warning,) = caplog.messages
        assert f"the classes of {one} and {two} are numbers without names" in warning
        caplog.clear()
    sf.Mix([(one, 1), (one, 1)], **options)
    assert not caplog.messages


def test_classes_must_mean_the_same(tmp_path: Path) -> None:
    """Lists of classes that begin alike are merged; different names of a number, and labels in only one dataset, are
    refused, and the remedy in the message works.
    """
    one, two = make_dataset(tmp_path / "one", [3]), make_dataset(tmp_path / "two", [5])
    sf.merge([one, two], tmp_path / "fine")
    assert sf.open(tmp_path / "fine").classes == [f"class{n}" for n in range(5)]
    rename_classes(one, ("class0", "dog", "class2"))
    with pytest.raises(ConfigError, match=r"1.*'dog'.*'class1'") as refused:
        sf.merge([one, two], tmp_path / "virtual")
    remedy = str(refused.value).partition("`shardflow ")[2].partition("`")[0]
    (tmp_path / "all.txt").write_text("dog\nclass4\nclass3\nclass2\nclass1\nclass0\n")
    for name, url in (("new-one", one), ("new-two", two)):
        given = {"NEW": str(tmp_path / name), "FILE": str(tmp_path / "all.txt"), str(one): str(url)}
        arguments = [given.get(word, word) for word in remedy.split()]
        assert CliRunner().invoke(cli, arguments, catch_exceptions=False, standalone_mode=False).exception is None
    sf.merge([tmp_path / "new-one", tmp_path / "new-two"], tmp_path / "all")
    assert images_with_classes(tmp_path / "all") == sorted(images_with_classes(one) + images_with_classes(two))
    rename_classes(one, ("0", "1", "2"))
    with pytest.raises(ConfigError, match=r"if numbers mean the same, make .*one again with `--classes FILE`"):
        sf.merge([one, two], tmp_path / "virtual")
    plain = make_dataset(tmp_path / "plain", [3], labelled=False)
    with pytest.raises(ConfigError, match=r"plain.*class"):
        sf.merge([two, plain], tmp_path / "virtual")
    with pytest.raises(ConfigError, match="two or more"):
        sf.merge([two], tmp_path / "virtual")


def test_a_tar_that_was_rewritten_is_named(tmp_path: Path) -> None:
    """Indexes before and after a tar was rewritten are refused with its name, before anything is written."""
    for tar in (0, 1):
        write_tar(tmp_path / f"tars/{tar}.tar", members_of(range(3 * tar, 3 * tar + 3)))
    sf.index(tmp_path / "tars", tmp_path / "old")
    write_tar(tmp_path / "tars/1.tar", members_of(range(7, 10)))
    write_tar(tmp_path / "tars/2.tar", members_of(range(10, 12)))
    sf.index(tmp_path / "tars", tmp_path / "new")
    with pytest.raises(ConfigError, match=r"tars/1\.tar was rewritten: .*; make the older one again"):
        sf.merge([tmp_path / "old", tmp_path / "new"], tmp_path / "both")
    assert not (tmp_path / "both").exists()
