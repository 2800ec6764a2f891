"""YOLO sets as a source of packing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import shardflow as sf
from shardflow.errors import ConfigError
from shardflow.formats.annotations import Boxes
from shardflow.packing.sources.resolve import list_source
from tests.helpers.folders import encoded, photo, quarantined, write_tree

PACK: dict[str, Any] = {"short_side": 32, "executor": "serial", "shuffle": False}
YAML = b"path: ../elsewhere\ntrain: images/train\nval: images/val\nnames:\n  0: cat\n  1: dog\n  2: eel\n"
TEXT = b"1 0.5 0.25 0.5 0.5\n\n2 0.25 0.5 0.125 1\n"


def write_set(root: Path, **changed: bytes | None) -> Path:
    """Write a set in YOLO's layout, with some files changed; return its YAML."""
    files = {f"images/train/{n}.jpg": photo(n) for n in range(3)} | {"images/val/3.jpg": photo(3), "data.yaml": YAML}
    files |= {"labels/train/0.txt": TEXT, "labels/val/3.txt": b"0 .5 .5 1 1"}
    files |= {name.replace("__", "/").replace("_", "."): data for name, data in changed.items() if data is not None}
    return write_tree(root, files) / "data.yaml"


def test_hidden_files_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Images and texts whose names begin with a dot, as macOS adds them, are not of the set."""
    path = write_set(tmp_path)
    write_tree(tmp_path, {"images/train/._0.jpg": b"", "labels/train/._0.txt": b"", "images/train/.x/0.jpg": b""})
    assert (list_source(path).inputs, caplog.text) == (4, "")


def test_a_set_becomes_a_dataset(tmp_path: Path) -> None:
    """Boxes stay fractions, labels are the numbers of the YAML, and an image without a text has no boxes."""
    sf.pack(write_set(tmp_path / "set"), tmp_path / "dst", **PACK)
    dataset = sf.open(tmp_path / "dst")
    assert dataset.classes == ["cat", "dog", "eel"]
    assert dataset.manifest.annotations.boxes == Boxes(
        "json", "boxes", "cxcywh", normalized=True, fields={"labels": "labels"}
    )
    first, second, _ = dataset["train"]
    assert json.loads(first["json"]) == {"boxes": [[0.5, 0.25, 0.5, 0.5], [0.25, 0.5, 0.125, 1]], "labels": [1, 2]}
    assert json.loads(second["json"]) == {"boxes": [], "labels": []}
    assert json.loads(first["labels.json"]) == [1, 2]
    decoder, fields = sf.decoders.Image(), ("image", "boxes", "box_labels")
    loader = sf.Loader(tmp_path / "dst", split="val", batch_size=1, fields=fields, decoder=decoder, num_workers=0)
    ((image, (boxes,), (labels,)),) = loader
    assert (boxes.tolist(), labels.tolist()) == ([[0, 0, image.shape[-1], image.shape[-2]]], [0])
    assert sf.verify(tmp_path / "dst", sources=[tmp_path / "set/data.yaml"]) == []


def test_folders_of_splits_with_images_inside(tmp_path: Path) -> None:
    """`train/images` beside `train/labels`, named with ../ in front, as Roboflow exports it, and names in a list."""
    yaml = b"train: ../train/images\nnames: [a, b]\n"
    files = {"train/images/x.jpg": photo(1), "train/labels/x.txt": b"1 .5 .5 .5 .5", "data.yaml": yaml}
    source = list_source(sf.sources.Yolo(write_tree(tmp_path, files) / "data.yaml"))
    assert {split: [item.label for item in items] for split, items in source.splits.items()} == {"train": [(1,)]}
    assert source.classes == ("a", "b")


def test_names_are_texts(tmp_path: Path) -> None:
    """What YAML takes for a truth value, an octal number or a time of day is the name of a class as it is written."""
    url = write_set(tmp_path, data_yaml=b"names: [no, 010, 1:30]\ntrain: images/train")
    assert list_source(url).classes == ("no", "010", "1:30")


def test_what_lacks_images_or_has_two_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A split without images, and a text without one, are named in warnings; two images of a text are quarantined."""
    png = encoded(Image.new("RGB", (96, 64)), "PNG")
    more = {"labels__train__8_txt": TEXT, "labels__train__classes_txt": b"cat"}
    url = write_set(tmp_path / "set", images__train__0_png=png, data_yaml=YAML + b"test: images/test\n", **more)
    sf.pack(url, tmp_path / "dst", max_errors=2, **PACK)
    assert "split 'test' has no images in images/test" in caplog.text
    assert "1 text without an image, such as 'labels/train/8.txt'" in caplog.text
    rows = quarantined(tmp_path / "dst")
    assert [row["path"] for row in rows] == ["images/train/0.jpg", "images/train/0.png"]
    assert all("labels/train/0.txt belongs to 2 images" in row["reason"] for row in rows)


def test_texts_that_are_not_read_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A text with the extension .TXT, and a split without texts, are named in warnings: their images have no boxes."""
    png = encoded(Image.new("RGB", (96, 64)), "PNG")
    more = {"labels__train__8_TXT": TEXT, "images__train__8_png": png, "images__test__9_png": png}
    list_source(write_set(tmp_path / "set", data_yaml=YAML + b"test: images/test\n", **more))
    assert "1 text without an image, such as 'labels/train/8.TXT'" in caplog.text
    assert "split 'test' has no boxes: none of its 1 image has a text, such as 'labels/test/9.txt'" in caplog.text


def test_the_path_of_the_yaml(tmp_path: Path) -> None:
    """Images may be below the `path` of the YAML."""
    write_set(tmp_path / "elsewhere")
    (tmp_path / "yamls").mkdir()
    (tmp_path / "yamls/data.yaml").write_bytes(YAML)
    assert list_source(tmp_path / "yamls/data.yaml").inputs == 4


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1 0.5 0.25 0.5", "line 2 has 4 numbers"),
        ("1 .1 .1 .9 .1 .9 .9", "polygon"),
        ("3 .5 .5 .5 .5", "class 3 is not one of the 3 names"),
        ("1.5 .5 .5 .5 .5", "class 1.5"),
        ("1 .5 .5 nan .5", "not made of numbers"),
        ("1 .5 .5 1e999 .5", "not made of numbers"),
        ("1 .5 .5 0_1 .5", "not made of numbers"),
        ("1 320 200 64 64", "not fractions"),
        ("cat .5 .5 .5 .5", "not made of numbers"),
    ],
)
def test_a_line_that_is_not_a_box(tmp_path: Path, line: str, reason: str) -> None:
    """The image is quarantined; the reason names the text and the line."""
    url = write_set(tmp_path / "set", labels__train__1_txt=f"0 .5 .5 .5 .5\n{line}".encode())
    sf.pack(url, tmp_path / "dst", max_errors=1, **PACK)
    (row,) = quarantined(tmp_path / "dst")
    assert row["path"] == "images/train/1.jpg"
    assert "labels/train/1.txt, line 2" in row["reason"]
    assert reason in row["reason"]


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        (b"- 1", "expected names"),
        (b"names: [a", "not valid YAML"),
        (b"names: [a]\n", "no folder of images"),
        (b"names: {0: a, 2: b}\ntrain: images/train", "one name for each"),
        (b"names: [a, b, c]\ntrain: images/other", "no images in images/other/"),
        (b"names: [a, b, c]\ntrain: list.txt", "expected folders"),
        (b"names: [a, b, c]\ntrain: images\nval: images/val", "in two splits"),
        (b"!!python/object/apply:os.system ['true']", "expected names"),
        (b"names: {0: a, 0: b, 1: c}\ntrain: images/train", "a key is repeated"),
        (b"names: [a, b, c]\nnc: 2\ntrain: images/train", "nc is '2'"),
        (b"names: [a, '', c]\ntrain: images/train", "one name for each"),
    ],
)
def test_a_yaml_that_is_not_of_a_set(tmp_path: Path, yaml: bytes, message: str) -> None:
    """The error names the YAML and what is expected in it; nothing that it names is run."""
    with pytest.raises(ConfigError, match=message) as raised:
        list_source(write_set(tmp_path, data_yaml=yaml))
    assert "data.yaml" in str(raised.value)


def test_no_boxes_at_all(tmp_path: Path) -> None:
    """A set without any text is refused: its folder has another name than `labels`."""
    files = {"images/train/0.jpg": photo(0), "data.yaml": b"train: images/train\nnames: [a]"}
    with pytest.raises(ConfigError, match="no text with boxes"):
        list_source(write_tree(tmp_path, files) / "data.yaml")


def test_boxes_follow_a_square_crop(tmp_path: Path) -> None:
    """Fractions become those of the packed image."""
    sf.pack(write_set(tmp_path / "set"), tmp_path / "dst", square=True, **PACK)
    first = next(iter(sf.open(tmp_path / "dst")["train"]))
    (box, _), width = json.loads(first["json"])["boxes"], 32 / 48  # 96 x 64 became 48 x 32, then 32 x 32
    assert np.allclose(box, [0.5, 0.25, 0.5 / width, 0.5], atol=1e-6)
