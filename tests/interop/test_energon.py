from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

import shardflow as sf
from shardflow.errors import ConfigError
from shardflow.interop.energon import write_energon
from tests.helpers.making import make_dataset, write_dataset


def test_places_are_those_of_the_tar(tmp_path: Path) -> None:
    """An index has the place of the first header of each sample, as tarfile finds it, and the end of the last one."""
    dataset = make_dataset(tmp_path / "set", {"train": [6, 5], "val": [3]})
    written = list(write_energon(sf.open(dataset)))
    assert len(written) == 3 + 3
    for tar in dataset.rglob("*.tar"):
        with tarfile.open(tar) as archive:
            begins = [member.offset for member in archive if member.name.endswith(".cls")]
        places = np.fromfile(tar.with_suffix(".tar.idx"), "<u8").tolist()
        assert places == [*begins, tar.stat().st_size - 1024]
    assert sf.verify(dataset) == []


def test_description(tmp_path: Path) -> None:
    """`.nv-meta` has the counts, the splits, and what a sample is, with and without labels."""
    for labelled, kind, fields in (
        (True, "ImageClassificationSample", {"image": "jpg", "label": "cls"}),
        (False, "ImageSample", {"image": "jpg"}),
    ):
        dataset = make_dataset(tmp_path / kind, {"train": [6, 5], "val": [3]}, labelled=labelled)
        list(write_energon(sf.open(dataset)))
        texts = {
            name: (dataset / ".nv-meta" / name).read_text() for name in (".info.json", "split.yaml", "dataset.yaml")
        }
        read = {name: json.loads(text[text.index("{") :]) for name, text in texts.items()}  # after a YAML comment
        assert read[".info.json"]["shard_counts"] == {
            "train/000000.tar": 6,
            "train/000001.tar": 5,
            "val/000000.tar": 3,
        }
        assert read["split.yaml"]["split_parts"]["val"] == ["val/000000.tar"]
        about = read["dataset.yaml"]
        assert about["sample_type"]["__class__"] == kind
        assert about["field_map"] == fields


def test_samples_of_several_classes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A dataset of which a sample has several classes is described as images, with a warning: Energon reads one."""
    samples = [("a", {"jpg": b"", "cls": b"0"}), ("b", {"jpg": b"", "labels.json": b"[0, 1]"})]
    dataset = write_dataset(tmp_path, {"train": [samples]}, classes=("x", "y"))
    list(write_energon(sf.open(dataset)))
    assert '"ImageSample"' in (dataset / ".nv-meta/dataset.yaml").read_text()
    assert "not every sample has one class" in caplog.text


def test_an_edited_file_is_kept(tmp_path: Path) -> None:
    """The command replaces its own metadata, and refuses a file that was edited."""
    dataset = make_dataset(tmp_path, {"train": [6]})
    for _ in range(2):
        list(write_energon(sf.open(dataset)))
    edited = dataset / ".nv-meta/dataset.yaml"
    edited.write_text(edited.read_text().replace('"cls"', '"json"'))
    before = edited.read_bytes()
    with pytest.raises(ConfigError, match=r"dataset\.yaml"):
        list(write_energon(sf.open(dataset)))
    assert edited.read_bytes() == before


def test_images_of_several_kinds(tmp_path: Path) -> None:
    """Energon takes one part for the image, so a dataset with several kinds is refused."""
    dataset = write_dataset(tmp_path, {"train": [[("a", {"jpg": b"x"}), ("b", {"png": b"x"})]]})
    with pytest.raises(ConfigError, match=r"\['jpg', 'png'\]"):
        list(write_energon(sf.open(dataset)))
