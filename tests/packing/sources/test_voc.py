"""PASCAL VOC sets as a source of packing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import shardflow as sf
from shardflow.errors import ConfigError, SampleError
from shardflow.packing.sources.resolve import list_source
from shardflow.packing.sources.voc import parse_xml
from tests.helpers.folders import photo, quarantined, write_tree

PACK: dict[str, Any] = {"short_side": 32, "executor": "serial", "shuffle": False}


def annotation(number: int, *objects: tuple[str, int, int, int, int], width: int = 96, extra: str = "") -> bytes:
    """Return the XML of an image of 96 x 64 pixels."""
    corners = "<bndbox><ymin>{2}</ymin><xmin>{1}</xmin><xmax>{3}</xmax><ymax>{4}</ymax></bndbox>"
    listed = "".join(
        f"<object><name>{each[0]}</name>{extra}{corners.format(*each)}<part><name>head</name></part></object>"
        for each in objects
    )
    size = f"<size><width>{width}</width><height>64</height><depth>3</depth></size>"
    return f"<annotation><filename>{number}.jpg</filename>{size}{listed}</annotation>".encode()


def write_set(root: Path, changed: dict[str, bytes | None] | None = None) -> Path:
    """Write a set of five images in VOC's layout, one of them in no list, with some files changed or left out."""
    files: dict[str, bytes | None] = {f"JPEGImages/{n}.jpg": photo(n) for n in range(5)}
    files |= {f"Annotations/{n}.xml": annotation(n) for n in range(5)}
    files["Annotations/1.xml"] = annotation(
        1, ("dog", 1, 1, 96, 64), ("cat", 11, 21, 50, 60), extra="<difficult>1</difficult>"
    )
    files |= {"ImageSets/Main/train.txt": b"0\n1\n2\n", "ImageSets/Main/val.txt": b"3\n"}
    files |= {"ImageSets/Main/trainval.txt": b"0\n1\n2\n3\n", "ImageSets/Main/cat_train.txt": b"0 -1\n1 1\n"}
    files |= changed or {}
    return write_tree(root, {name: data for name, data in files.items() if data is not None})


def test_hidden_files_are_left_out(tmp_path: Path) -> None:
    """An XML whose name begins with a dot, as macOS adds them, is not an image of the set."""
    lists = {f"ImageSets/Main/{name}.txt": None for name in ("train", "val", "trainval")}
    assert list_source(write_set(tmp_path, {"Annotations/._1.xml": b"", **lists})).inputs == 5


def test_a_set_becomes_a_dataset(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Boxes are corners from 0 on, labels count sorted names, splits are those of the lists, and the rest is named."""
    sf.pack(write_set(tmp_path / "set"), tmp_path / "dst", **{**PACK, "short_side": None})
    dataset = sf.open(tmp_path / "dst")
    assert dataset.classes == ["cat", "dog"]
    assert {split: len(dataset[split]) for split in dataset} == {"train": 3, "val": 1}
    assert "left out 1 image" in caplog.text
    empty, full, _ = dataset["train"]
    assert json.loads(full["json"]) == {
        "width": 96,
        "height": 64,
        "boxes": [[0, 0, 96, 64], [10, 20, 50, 60]],
        "labels": [1, 0],
        "difficult": [1, 1],
        "truncated": [0, 0],
    }
    assert json.loads(empty["json"])["boxes"] == []
    assert sf.verify(tmp_path / "dst", sources=[tmp_path / "set"]) == []


def test_without_lists(tmp_path: Path) -> None:
    """All images are of the split "train"; with trainval.txt alone, those in it."""
    none: dict[str, bytes | None] = dict.fromkeys(
        f"ImageSets/Main/{name}.txt" for name in ("train", "val", "trainval", "cat_train")
    )
    assert list_source(write_set(tmp_path / "a", none)).splits.keys() == {"train"}
    some = {**none, "ImageSets/Main/trainval.txt": b"1 2"}
    for number, lists in enumerate((some, {**some, "ImageSets/Main/test.txt": b"3"})):
        found = list_source(write_set(tmp_path / f"b{number}", lists)).splits
        assert [item.path for item in found["train"]] == ["JPEGImages/1.jpg", "JPEGImages/2.jpg"]
        assert len(found) == 1 + number


def test_one_image_of_two_xmls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Both are quarantined, as its boxes are those of one of them; an image without any XML is named in a warning."""
    files = {"Annotations/2.xml": annotation(1, ("dog", 1, 1, 9, 9)), "JPEGImages/2.jpg": None}
    url = write_set(tmp_path / "set", {**files, "Annotations/4.xml": None})
    sf.pack(url, tmp_path / "dst", max_errors=2, **PACK)
    rows = quarantined(tmp_path / "dst")
    assert [row["path"] for row in rows] == ["Annotations/1.xml", "Annotations/2.xml"]
    assert all("2 XMLs name the image JPEGImages/1.jpg;" in row["reason"] for row in rows)
    assert "left out 1 image without an XML" in caplog.text


BOMB = b'<!DOCTYPE a [<!ENTITY b "bbbbbbbbbb"><!ENTITY c "&b;&b;&b;&b;">]><annotation>&c;</annotation>'
OUTSIDE = b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/hostname">]><annotation><filename>&b;</filename></annotation>'


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (BOMB, "document type"),
        (OUTSIDE, "document type"),
        (BOMB.decode().encode("utf-16"), "document type"),
        (b"<annotation><filename>", "not valid XML"),
        (b"", "not valid XML"),
        (annotation(9), "JPEGImages/9.jpg does not exist"),
        (annotation(2, ("dog", 50, 1, 20, 9)), "corners"),
        (annotation(2, ("", 1, 1, 20, 9)), "no name"),
        (annotation(2).replace(b"<width>96", b"<width>wide"), "size/width is 'wide'"),
        (annotation(2).replace(b"<width>96", b"<width>9_6"), "size/width is '9_6', not a number"),
        (annotation(2).replace(b"<width>96", b"<width>96.5"), "size/width is 96.5, not a whole number"),
        (annotation(2, width=64), "96x64"),
        (annotation(4), "JPEGImages/4.jpg, but its own name JPEGImages/2.jpg"),
    ],
)
def test_an_xml_that_cannot_be_used(tmp_path: Path, data: bytes, reason: str) -> None:
    """Its image is quarantined with the reason; an entity is neither expanded nor opened."""
    sf.pack(write_set(tmp_path / "set", {"Annotations/2.xml": data}), tmp_path / "dst", max_errors=1, **PACK)
    (row,) = quarantined(tmp_path / "dst")
    assert reason in row["reason"]


def test_xml_without_a_document_type_is_read() -> None:
    """Namespaces of characters, comments and the five entities of XML itself are as in any parser."""
    root = parse_xml(b"<?xml version='1.0'?><a><!-- no --><b>&lt;&#65;</b>tail</a>")
    assert (root.findtext("b"), root[0].tail) == ("<A", "tail")
    with pytest.raises(SampleError):
        parse_xml(b"<a>&other;</a>")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ImageSets/Main/val.txt": b"2\n3\n"}, "'2' is in"),
        ({"ImageSets/Main/val.txt": b"7\n"}, "lists 7, but Annotations/7.xml is missing"),
        ({"ImageSets/Main/train.txt": b"", "ImageSets/Main/val.txt": b""}, "no Annotations.* is listed"),
    ],
)
def test_lists_that_contradict_the_files(tmp_path: Path, changed: dict[str, bytes | None], message: str) -> None:
    """An image in two splits, one that is not there, and empty lists are refused."""
    with pytest.raises(ConfigError, match=message):
        list_source(write_set(tmp_path, changed))
