from __future__ import annotations

from pathlib import Path

import pytest

import shardflow as sf
from shardflow.errors import ConfigError, DatasetExistsError, NotFoundError
from tests.helpers.folders import contents
from tests.helpers.making import make_dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of 20, 30 and 7 samples for training and one of 5; every sample of a split has another class."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", {"train": [20, 30, 7], "val": [5]})


def keys(url: Path, split: str = "train") -> list[str]:
    """The keys of a split in order."""
    return [sample["__key__"] for sample in sf.open(url)[split]]


def test_classes(dataset: Path, tmp_path: Path) -> None:
    """The samples of the classes that were named, with the labels they had, and no byte of a tar anywhere else."""
    before = contents(dataset)
    report = sf.subset(dataset, tmp_path / "view", classes=["class3", "class30", "class56"])
    assert (report.samples, report.shards) == ({"train": 3, "val": 1}, {"train": 3, "val": 1})
    assert keys(tmp_path / "view") == ["000000003", "000000030", "000000056"]
    assert [sample["cls"] for sample in sf.open(tmp_path / "view")["train"]] == [b"3", b"30", b"56"]
    assert sf.open(tmp_path / "view").classes == sf.open(dataset).classes
    assert sf.verify(tmp_path / "view") == []
    assert not list((tmp_path / "view").rglob("*.tar"))
    assert contents(dataset) == before


def test_samples(dataset: Path, tmp_path: Path) -> None:
    """The samples with the keys that were named; a key of several splits asks for its split."""
    sf.subset(dataset, tmp_path / "view", samples=["000000040", "train:000000001", "val:000000004"])
    assert keys(tmp_path / "view") == ["000000001", "000000040"]
    assert keys(tmp_path / "view", "val") == ["000000004"]
    with pytest.raises(ConfigError, match="'train:000000001'"):
        sf.subset(dataset, tmp_path / "no", samples=["000000001"])
    with pytest.raises(ConfigError, match=r"lacks 2 of the 3 samples named, such as 'x', 'y'"):
        sf.subset(dataset, tmp_path / "no", samples=["x", "y", "000000040"])


def test_shares_are_exact_repeatable_and_nested(dataset: Path, tmp_path: Path) -> None:
    """A share has the number it should, is the same again, holds all smaller ones, and is another for another seed."""
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


def test_a_choice_stays_when_the_dataset_grows(tmp_path: Path) -> None:
    """Samples keep their lots when others come in front of them, so that most of a share stays what it was."""
    for name, sizes in (("one", [40]), ("two", [40, 40])):
        sf.subset(make_dataset(tmp_path / name, sizes), tmp_path / f"{name}-half", fraction=0.5)
    before, after = keys(tmp_path / "one-half"), keys(tmp_path / "two-half")
    assert len(set(before) & set(after)) > 0.6 * len(before)


def test_a_view_of_a_view_leads_to_the_tars(dataset: Path, tmp_path: Path) -> None:
    """A subset of a subset has the first dataset as its base, and is read when the one between is gone."""
    sf.subset(dataset, tmp_path / "view", fraction=0.5)
    sf.subset(tmp_path / "view", tmp_path / "deep/er", limit=3)
    expected = keys(tmp_path / "deep/er")
    (tmp_path / "view").rename(tmp_path / "gone")
    (base,) = sf.open(tmp_path / "deep/er").manifest.roots.values()
    assert (tmp_path / "deep/er" / base.url).resolve() == dataset
    assert base.fingerprint == sf.open(dataset).fingerprint
    assert keys(tmp_path / "deep/er") == expected


def test_all_of_it_trains(dataset: Path, tmp_path: Path) -> None:
    """The loader hands out each sample of a view once, and its state names the view."""
    sf.subset(dataset, tmp_path / "view", fraction=0.6)
    loader = sf.Loader(tmp_path / "view", batch_size=4, tail="short", num_workers=2)
    labels = sorted(label for _, batch in loader for label in batch.tolist())
    assert labels == [int(key) for key in keys(tmp_path / "view")]
    assert loader.state_dict()["fingerprint"] == sf.open(tmp_path / "view").fingerprint


def test_a_view_moves_with_what_it_leads_to(tmp_path: Path) -> None:
    """Links on the way to either end do no harm, and a folder that holds both can be moved."""
    make_dataset(tmp_path / "data/set", [9])
    (tmp_path / "link").symlink_to(tmp_path / "data")
    sf.subset(tmp_path / "link/set", tmp_path / "link/views/few", limit=3)
    fingerprint = sf.open(tmp_path / "data/views/few").fingerprint
    (tmp_path / "data").rename(tmp_path / "moved")
    assert len(keys(tmp_path / "moved/views/few")) == 3
    assert sf.open(tmp_path / "moved/views/few").fingerprint == fingerprint


def test_wrong_arguments(dataset: Path, tmp_path: Path) -> None:
    """What cannot be chosen, or would choose nothing, is refused with the reason, and nothing is written."""
    for arguments, message in (
        ({}, "say what to take"),
        ({"fraction": 1.0}, "above 0 and below 1"),
        ({"limit": 0}, "1 or more"),
        ({"classes": ["nothing"]}, "has no class 'nothing'"),
        ({"fraction": 0.001}, "not one sample is left"),
    ):
        with pytest.raises(ConfigError, match=message):
            sf.subset(dataset, tmp_path / "view", **arguments)  # type: ignore[arg-type]
    assert not (tmp_path / "view").exists()
    with pytest.raises(DatasetExistsError):
        sf.subset(dataset, dataset, limit=1)
    with pytest.raises(NotFoundError):
        sf.subset(tmp_path / "nowhere", tmp_path / "view", limit=1)
    unlabelled = make_dataset(tmp_path / "plain", [3], labelled=False)
    with pytest.raises(ConfigError, match="no classes to choose from"):
        sf.subset(unlabelled, tmp_path / "view", classes=["a"])
