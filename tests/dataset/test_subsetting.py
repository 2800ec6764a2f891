from __future__ import annotations

from pathlib import Path

import pytest

import shardflow as sf
from shardflow.errors import ConfigError, DatasetExistsError, NotFoundError
from tests.helpers.folders import contents
from tests.helpers.making import jpeg, make_dataset, write_dataset
from tests.helpers.tars import members_of, write_tar


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of 20, 30 and 7 samples for training and one of 5; every sample of a split has another class."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", {"train": [20, 30, 7], "val": [5]})


def keys(url: Path, split: str = "train") -> list[str]:
    """The keys of a split in order."""
    return [sample["__key__"] for sample in sf.open(url)[split]]


def test_classes(dataset: Path, tmp_path: Path) -> None:
    """`classes` keeps the samples of these classes with their labels; no tar is copied or changed."""
    before = contents(dataset)
    report = sf.subset(dataset, tmp_path / "virtual", classes=["class3", "class30", "class56"])
    assert (report.samples, report.shards) == ({"train": 3, "val": 1}, {"train": 3, "val": 1})
    assert keys(tmp_path / "virtual") == ["000000003", "000000030", "000000056"]
    assert [sample["cls"] for sample in sf.open(tmp_path / "virtual")["train"]] == [b"3", b"30", b"56"]
    assert sf.open(tmp_path / "virtual").classes == sf.open(dataset).classes
    assert sf.verify(tmp_path / "virtual") == []
    assert not list((tmp_path / "virtual").rglob("*.tar"))
    assert contents(dataset) == before


def test_samples(dataset: Path, tmp_path: Path) -> None:
    """`samples` keeps the samples with these keys; a key that several splits have needs its split."""
    sf.subset(dataset, tmp_path / "virtual", keys=["000000040", "train:000000001", "val:000000004"])
    assert keys(tmp_path / "virtual") == ["000000001", "000000040"]
    assert keys(tmp_path / "virtual", "val") == ["000000004"]
    with pytest.raises(ConfigError, match="'train:000000001'"):
        sf.subset(dataset, tmp_path / "no", keys=["000000001"])
    with pytest.raises(ConfigError, match=r"2.*3.*'x', 'y'"):
        sf.subset(dataset, tmp_path / "no", keys=["x", "y", "000000040"])
    with pytest.raises(ConfigError, match=r"'a/1.jpg'; `shardflow table` lists the key of each file"):
        sf.subset(dataset, tmp_path / "no", keys=["a/1.jpg"])


def test_shares_are_exact_repeatable_and_nested(dataset: Path, tmp_path: Path) -> None:
    """A share has the exact size, is repeatable, contains the smaller shares, and depends on the seed."""
    chosen = {}
    for name, fraction, seed in (("a", 0.3, 0), ("b", 0.3, 0), ("small", 0.1, 0), ("other", 0.3, 1)):
        report = sf.subset(dataset, tmp_path / name, fraction=fraction, seed=seed)
        assert report.samples == {
            "train": round(57 * fraction),
            **({"val": round(5 * fraction)} if fraction > 0.2 else {}),
        }
        chosen[name] = keys(tmp_path / name)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert set(chosen["small"]) < set(chosen["a"]) != set(chosen["other"])
    assert sf.subset(dataset, tmp_path / "few", limit=4).samples == {"train": 4, "val": 4}
    assert set(keys(tmp_path / "few")) < set(chosen["small"])


def test_samples_without_an_image_have_hashes_of_their_own(tmp_path: Path) -> None:
    """Samples of foreign tars whose images have other names are chosen, split and compared by their largest part."""

    def write(name: str, first: int) -> Path:
        shard = [(f"{n:03}", {"cls": b"%d" % (n % 5), "rgb.jpg": jpeg(first + n)}) for n in range(60)]
        return write_dataset(tmp_path / name, {"train": [shard]}, classes=tuple("abcde"))

    url = write("set", 0)
    sf.subset(url, tmp_path / "half", fraction=0.5)
    assert {int(sample["cls"]) for sample in sf.open(tmp_path / "half")["train"]} == set(range(5))
    assert sf.split(url, tmp_path / "val", val=0.5).samples == {"train": 30, "val": 30}
    assert sf.diff(url, write("other", 60)).splits["train"].both == 0


def test_selection_stays_when_the_dataset_grows(tmp_path: Path) -> None:
    """Samples keep their hashes when others are added in front of them, so most of a share stays the same."""
    for name, sizes in (("one", [40]), ("two", [40, 40])):
        sf.subset(make_dataset(tmp_path / name, sizes), tmp_path / f"{name}-half", fraction=0.5)
    before, after = keys(tmp_path / "one-half"), keys(tmp_path / "two-half")
    assert len(set(before) & set(after)) > 0.6 * len(before)


def test_a_subset_of_a_subset_leads_to_the_tars(dataset: Path, tmp_path: Path) -> None:
    """A subset of a subset has the first dataset as its root, and can be read without the subset in between."""
    sf.subset(dataset, tmp_path / "virtual", fraction=0.5)
    sf.subset(tmp_path / "virtual", tmp_path / "deep/er", limit=3)
    expected = keys(tmp_path / "deep/er")
    (tmp_path / "virtual").rename(tmp_path / "gone")
    (root,) = sf.open(tmp_path / "deep/er").manifest.roots.values()
    assert (tmp_path / "deep/er" / root.url).resolve() == dataset
    assert root.fingerprint == sf.open(dataset).fingerprint
    assert keys(tmp_path / "deep/er") == expected


def test_loader_reads_it(dataset: Path, tmp_path: Path) -> None:
    """The loader yields each sample of a virtual dataset once, and its state has the fingerprint of that dataset."""
    sf.subset(dataset, tmp_path / "virtual", fraction=0.6)
    loader = sf.Loader(tmp_path / "virtual", batch_size=4, tail="short", num_workers=2)
    labels = sorted(label for _, batch in loader for label in batch.tolist())
    assert labels == [int(key) for key in keys(tmp_path / "virtual")]
    assert loader.state_dict()["fingerprint"] == sf.open(tmp_path / "virtual").fingerprint


def test_moved_with_its_root(tmp_path: Path) -> None:
    """Symbolic links in either path do no harm, and a folder that holds both datasets can be moved."""
    make_dataset(tmp_path / "data/set", [9])
    (tmp_path / "link").symlink_to(tmp_path / "data")
    sf.subset(tmp_path / "link/set", tmp_path / "link/virtual/few", limit=3)
    fingerprint = sf.open(tmp_path / "data/virtual/few").fingerprint
    (tmp_path / "data").rename(tmp_path / "moved")
    assert len(keys(tmp_path / "moved/virtual/few")) == 3
    assert sf.open(tmp_path / "moved/virtual/few").fingerprint == fingerprint


def test_wrong_arguments(dataset: Path, tmp_path: Path) -> None:
    """A condition that is wrong or selects nothing is refused with the reason, and nothing is written."""
    for arguments, message in (
        ({}, "a subset needs a condition"),
        ({"fraction": 1.0}, "above 0 and below 1"),
        ({"limit": 0}, "1 or more"),
        ({"fraction": "0.1"}, "fraction must be above 0 and below 1, found '0.1'"),
        ({"limit": "3"}, "limit must be a whole number, found '3'"),
        ({"classes": "class1"}, "classes must be a list of names, found 'class1'"),
        ({"classes": ["nothing"]}, "has no class 'nothing', but"),
        ({"classes": ["CLASS1"]}, r"has no class 'CLASS1' \(did you mean 'class1'\?\), but"),
        ({"classes": [str(dataset / "shardflow.json")]}, "; give names, not a file"),
        ({"fraction": 0.001}, "no sample is selected"),
    ):
        with pytest.raises(ConfigError, match=message):
            sf.subset(dataset, tmp_path / "virtual", **arguments)  # type: ignore[arg-type]
    assert not (tmp_path / "virtual").exists()
    with pytest.raises(DatasetExistsError):
        sf.subset(dataset, dataset, limit=1)
    with pytest.raises(NotFoundError):
        sf.subset(tmp_path / "nowhere", tmp_path / "virtual", limit=1)
    unlabelled = make_dataset(tmp_path / "plain", [3], labelled=False)
    with pytest.raises(ConfigError, match=r"classes.*choose"):
        sf.subset(unlabelled, tmp_path / "virtual", classes=["a"])


def test_keys_that_repeat_in_a_split(tmp_path: Path) -> None:
    """The tars of samples with one key are named, and the condition in the message chooses one of them."""
    for name in "ab":
        write_tar(tmp_path / f"{name}.tar", members_of(range(3)))
    sf.index(tmp_path)
    for key in ("00001", "train:00001"):
        places = r"number 1 of train in .*a\.tar, number 4 of train in .*b\.tar"
        with pytest.raises(ConfigError, match=rf"2 samples '{key}' \({places}\)") as refusal:
            sf.subset(tmp_path, tmp_path / "one", keys=[key])
    sf.subset(tmp_path, tmp_path / "one", where=str(refusal.value).rpartition('where="')[2].rstrip('"'))
    assert [sample["__key__"] for sample in sf.open(tmp_path / "one")["train"]] == ["00001"]
