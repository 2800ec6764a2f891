from __future__ import annotations

import copy
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import shardflow as sf
from shardflow.cli.main import shardflow
from shardflow.errors import ConfigError, PackIncompleteError
from shardflow.formats.annotations import Annotations, Boxes, Keypoints
from shardflow.formats.coordinates import read_coordinates
from shardflow.packing.sources.resolve import list_source
from tests.helpers.folders import contents, encoded, photo, quarantined, turned, write_tree
from tests.helpers.jobs import preview

SMALL: dict[str, Any] = {"short_side": 32, "executor": "serial", "shuffle": False}
FIELDS = {"labels": "labels", "iscrowd": "iscrowd", "area": "area:float", "ids": "ids"}
BOXES = Boxes("json", "boxes", "xyxy", fields=FIELDS)
MASKS = {"masks": "segmentation:mask"}

CONTENT: dict[str, Any] = {
    "images": [{"id": 70 + n, "file_name": f"{n:012d}.jpg", "width": 96, "height": 64} for n in range(4)],
    "categories": [{"id": 18, "name": "dog"}, {"id": 3, "name": "car"}, {"id": 90, "name": "toothbrush"}],
    "annotations": [
        {"id": 5, "image_id": 72, "category_id": 90, "bbox": [10.5, 4, 20, 30], "area": 99.5, "iscrowd": 0},
        {"id": 6, "image_id": 70, "category_id": 3, "bbox": [0, 0, 96, 64], "area": 6144, "iscrowd": 1},
        {"id": 4, "image_id": 72, "category_id": 18, "bbox": [2, 2, 4, 4], "segmentation": []},
    ],
}


def _write(
    folder: Path, content: Any, *, name: str = "instances_train2017.json", images: str = "train2017", first: int = 0
) -> Path:
    """Draw a COCO set in COCO's own layout, with the pictures from `first` on; return the path of its JSON."""
    path = folder / "annotations" / name
    listed = content["images"] if isinstance(content, dict) else []
    files = {f"{images}/{image['file_name']}": photo(n) for n, image in enumerate(listed, first)}
    write_tree(folder, {**files, f"annotations/{name}": json.dumps(content).encode()})
    return path


def test_a_set_becomes_a_dataset(tmp_path: Path) -> None:
    """Boxes are corners in pixels, labels count categories by id, and images without annotations have empty lists."""
    sf.pack(_write(tmp_path / "coco", CONTENT), tmp_path / "dst", **SMALL)
    dataset = sf.open(tmp_path / "dst")
    assert dataset.classes == ["car", "dog", "toothbrush"]
    assert dataset.manifest.annotations == Annotations(boxes=BOXES)
    samples = list(dataset["train"])
    assert [json.loads(sample["labels.json"]) for sample in samples] == [[0], [], [1, 2], []]
    assert json.loads(samples[2]["json"]) == {
        "image_id": 72,
        "width": 96,
        "height": 64,
        "boxes": [[5.25, 2, 15.25, 17], [1, 1, 3, 3]],
        "labels": [2, 1],
        "iscrowd": [0, 0],
        "area": [99.5, 16],
        "ids": [5, 4],
    }
    for sample, boxes in zip(samples, (1, 0, 2, 0), strict=True):
        found = read_coordinates(dataset.manifest.annotations, sample.get, (48, 32))
        assert found.boxes is not None
        assert found.boxes.shape == (boxes, 4)
        assert {name: len(values) for name, values in found.box_fields.items()} == dict.fromkeys(FIELDS, boxes)
    statistics = dataset.manifest.statistics
    assert statistics is not None
    assert (statistics["train"].counts["boxes"], statistics["train"].classes) == (3, {0: 1, 1: 1, 2: 1})


def test_polygons_and_runs_become_masks_of_boxes(tmp_path: Path) -> None:
    """Where annotations have segments, these follow the image beside their boxes; a broken one is a bad input."""
    content = copy.deepcopy(CONTENT)
    corners = [2, 2, 6, 2, 6, 6, 2, 6]
    runs = {"size": [64, 96], "counts": [64 * 48, 64 * 48]}  # the right half
    content["annotations"][2]["segmentation"] = [corners, [80, 50, 90, 50, 90, 60]]
    content["annotations"][1]["segmentation"] = runs
    sf.pack(_write(tmp_path / "coco", content), tmp_path / "dst", **SMALL)
    dataset = sf.open(tmp_path / "dst")
    assert dataset.manifest.annotations == Annotations(boxes=Boxes("json", "boxes", "xyxy", fields=FIELDS | MASKS))
    samples = [json.loads(sample["json"])["segmentation"] for sample in dataset["train"]]
    assert samples == [
        [{"size": [32, 48], "counts": [32 * 24, 32 * 24]}],
        [],
        [[], [[1, 1, 3, 1, 3, 3, 1, 3], [40, 25, 45, 25, 45, 30]]],
        [],
    ]
    assert sf.verify(tmp_path / "dst", sources=[tmp_path / "coco/annotations/instances_train2017.json"]) == []
    content["annotations"][1]["segmentation"]["counts"][1] = 2**40
    url = _write(tmp_path / "broken", content)
    sf.pack(url, tmp_path / "most", max_errors=1, **SMALL)
    (bad,) = quarantined(tmp_path / "most")
    assert re.search("segmentation.*fill the image", bad["reason"])


def test_keypoints(tmp_path: Path) -> None:
    """Where one annotation has keypoints, every box has as many, zeros where it had none; other images have none."""
    content = copy.deepcopy(CONTENT)
    content["annotations"][0]["keypoints"] = [20, 10, 2, 0, 0, 0]
    sf.pack(_write(tmp_path, content, name="person_keypoints_val2017.json", images="val2017"), tmp_path / "d", **SMALL)
    dataset = sf.open(tmp_path / "d")
    declared = dataset.manifest.annotations
    assert declared == Annotations(boxes=BOXES, keypoints=Keypoints("json", "keypoints[]", "xyv"))
    points = [read_coordinates(declared, sample.get, (48, 32)).keypoints for sample in dataset["val"]]
    assert [each.shape for each in points if each is not None] == [(1, 2, 3), (0, 0, 3), (2, 2, 3), (0, 0, 3)]
    assert np.asarray(points[2]).tolist() == [[[10, 5, 2], [0, 0, 0]], [[0, 0, 0], [0, 0, 0]]]


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        (["nose", "left_eye", "right_eye", "right_hip", "tail", "left_hip"], ((1, 2), (3, 5))),
        (["nose", "left_eye", "mouth", "", "", ""], ()),
        (["left_eye", "right_eye"] * 4, ()),  # more than there are points
        ([], ()),
    ],
)
def test_left_and_right_change_places(
    tmp_path: Path, names: list[str], pairs: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Points whose names differ in left and right are pairs that loading exchanges where it mirrors the image.

    Where there are none, a warning says so once.
    """
    content = copy.deepcopy(CONTENT)
    content["annotations"][0]["keypoints"] = [n for point in range(6) for n in (point, 2 * point, 2)]
    content["categories"][2]["keypoints"] = names
    source = list_source(_write(tmp_path, content))
    assert source.annotations.keypoints == Keypoints("json", "keypoints[]", "xyv", flip_pairs=pairs)
    assert caplog.text.count("no two keypoints have names that differ in left and right") == (not pairs)
    content["categories"][1]["keypoints"] = ["another"]
    declared = list_source(_write(tmp_path / "other", content)).annotations.keypoints
    assert declared is not None
    assert declared.flip_pairs == ()


def test_validation_is_added_by_extending(tmp_path: Path) -> None:
    """A second set with the same categories becomes a further split; with other numbers of classes it is refused."""
    train = _write(tmp_path / "coco", CONTENT)
    val = _write(tmp_path / "coco", CONTENT, name="instances_val2017.json", images="val2017", first=4)
    sf.pack(train, tmp_path / "dst", **SMALL)
    assert sf.extend(val, tmp_path / "dst", executor="serial").packed == 4
    dataset = sf.open(tmp_path / "dst")
    assert {split: len(dataset[split]) for split in dataset} == {"train": 4, "val": 4}
    assert sf.verify(tmp_path / "dst", sources=[train, val]) == []
    other = {**CONTENT, "categories": [{"id": 18, "name": "dog"}, {"id": 19, "name": "car"}, {"id": 90, "name": "x"}]}
    other["annotations"] = other["annotations"][:1]
    test = _write(tmp_path / "coco", other, name="instances_test2017.json", images="test2017")
    with pytest.raises(ConfigError, match="labels of its boxes are fixed numbers"):
        sf.extend(test, tmp_path / "dst", executor="serial")
    with pytest.raises(ConfigError, match="labels of its boxes are fixed numbers"):
        list_source(sf.sources.Shards(tmp_path / "dst", classes=["toothbrush", "dog", "car"]))


@pytest.mark.parametrize(
    ("json_path", "images", "split"),
    [
        ("coco/annotations/instances_train2017.json", "coco/train2017", "train"),
        ("coco/annotations/instances_val2017.json", "coco/images/val2017", "val"),
        ("roboflow/valid/_annotations.coco.json", "roboflow/valid", "valid"),
        ("own/labels.json", "own/images", "train"),
        ("own/test_labels.json", "own", "test"),
    ],
)
def test_images_are_found(tmp_path: Path, json_path: str, images: str, split: str) -> None:
    """The folder of the images follows from the usual layouts, and the split from the name of the file or folder."""
    files = {f"{images}/{image['file_name']}": photo(1) for image in CONTENT["images"]}
    write_tree(tmp_path, {**files, json_path: json.dumps(CONTENT).encode()})
    source = list_source(tmp_path / json_path)
    assert {split: len(items) for split, items in source.splits.items()} == {split: 4}
    assert len(source.reader.read(source.splits[split][0]).image) == len(photo(1))


def test_named_folder_and_classes(tmp_path: Path) -> None:
    """Images elsewhere are named by an option, and class names in another order give the labels other numbers."""
    path = write_tree(_write(tmp_path / "a", CONTENT, images="elsewhere").parent, {"names": b"toothbrush\ncar\ndog\n"})
    runner = CliRunner()
    arguments = ["pack", str(path / "instances_train2017.json"), str(tmp_path / "dst"), "--short-side", "32"]
    with pytest.raises(ConfigError, match="folder with --image-folder"):
        list_source(path / "instances_train2017.json")
    with pytest.raises(PackIncompleteError, match=r"none of the 4 inputs .*--image-folder$"):
        sf.pack(sf.sources.Coco(path / "instances_train2017.json", images=path), tmp_path / "none", **SMALL)
    arguments += ["--image-folder", str(tmp_path / "a/elsewhere"), "--classes", str(path / "names"), "--no-shuffle"]
    done = runner.invoke(shardflow, arguments)
    assert done.exit_code == 0, done.output
    dataset = sf.open(tmp_path / "dst")
    assert dataset.classes == ["toothbrush", "car", "dog"]
    assert [json.loads(sample["json"])["labels"] for sample in dataset["train"]] == [[1], [], [0, 2], []]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"bbox": [1, 2, 3]}, r"annotation 5: bbox is \[1, 2, 3\], not four numbers"),
        ({"bbox": ["1", 2, 3, 4]}, "annotation 5: bbox is"),
        ({"bbox": [float("nan"), 2, 3, 4]}, "annotation 5: bbox is"),
        ({"bbox": None}, "annotation 5: bbox is None"),
        ({"category_id": 4}, "annotation 5: category 4 is not listed"),
        ({"category_id": [18]}, "annotation 5: category .18. is not listed"),
        ({"area": "large"}, "annotation 5: area, iscrowd or id is not a number"),
        ({"keypoints": [1, 2]}, "annotation 5: keypoints are not a flat list of x, y, visibility"),
        ({"bbox": [9, 9, -5, 5]}, r"annotation 5: bbox is \[9, 9, -5, 5\], with a side below 0"),
    ],
)
def test_bad_annotations(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    """An image whose annotation is not COCO's is quarantined with the reason; the others are packed."""
    content = copy.deepcopy(CONTENT)
    content["annotations"][0].update(changed)
    path = _write(tmp_path, content)
    report = sf.pack(path, tmp_path / "dst", max_errors=1, **SMALL)
    assert (report.packed, report.quarantined) == (3, 1)
    (reason,) = report.reasons
    assert re.search(said, reason)
    if "bbox" not in changed:
        assert [bad.path for bad in preview(path, tmp_path / "free").bad] == ["000000000002.jpg"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "is not a COCO set"),
        ({"info": 1}, "is not a COCO set"),
        ({**CONTENT, "images": [1]}, "is not a COCO set"),
        ({**CONTENT, "images": []}, "lists no images"),
        ({**CONTENT, "images": CONTENT["images"][:1] * 2}, "has the image 70 twice"),
        ({**CONTENT, "annotations": [{"image_id": []}]}, "is not a COCO set"),
        ({**CONTENT, "annotations": [{"image_id": 70, "caption": "a dog"}]}, "no annotation has a box"),
        ({**CONTENT, "categories": [{"id": "x", "name": "dog"}]}, "is not a COCO set"),
        ({**CONTENT, "categories": [{"id": 1.5, "name": "dog"}]}, "category ids must be different integers, found 1.5"),
        ({**CONTENT, "categories": [*CONTENT["categories"], {"id": 3, "name": "eel"}]}, "different integers, found 3"),
        (
            {**CONTENT, "annotations": [{"image_id": "70", "bbox": [1, 2, 3, 4]}]},
            "no annotation belongs to a listed image.*'70'",
        ),
    ],
)
def test_what_is_no_set(tmp_path: Path, content: Any, said: str) -> None:
    """A JSON that is not a COCO set of boxes is refused with what was expected."""
    path = write_tree(tmp_path, {"x.json": json.dumps(content).encode()}) / "x.json"
    with pytest.raises(ConfigError, match=said):
        list_source(path)
    path.write_text('{"images": [{"id": 1, "file_name": "a.jpg", "file_name": "b.jpg"}]}')
    with pytest.raises(ConfigError, match=r"object.*'file_name'"):
        list_source(path)
    path.write_bytes(b"{" * 100_000)
    with pytest.raises(ConfigError, match="is not valid JSON"):
        list_source(path)


@pytest.mark.parametrize("begin", ["", "./", "{folder}/train2017//"])
def test_one_file_of_two_images(tmp_path: Path, begin: str) -> None:
    """A file that two image ids name is quarantined under both: each has a part of its annotations alone."""
    content = copy.deepcopy(CONTENT)
    _write(tmp_path, content)
    name = begin.format(folder=tmp_path) + content["images"][0]["file_name"]
    content["images"].append({**content["images"][0], "id": 7100, "file_name": name})
    path = tmp_path / "annotations/instances_train2017.json"
    path.write_text(json.dumps(content))
    assert len(preview(path, tmp_path / "free").bad) == 2
    report = sf.pack(path, tmp_path / "dst", max_errors=2, **SMALL)
    assert (report.packed, report.quarantined) == (3, 2)
    assert all(content["images"][0]["file_name"] in reason for reason in report.reasons)


def test_missing_images_and_foreign_annotations(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An image that is not there is a bad input, seen by a dry run; annotations of other images are counted."""
    content = copy.deepcopy(CONTENT)
    content["annotations"].append({**content["annotations"][0], "image_id": 1})
    path = _write(tmp_path, content)
    (tmp_path / "train2017/000000000003.jpg").unlink()
    (bad,) = preview(path, tmp_path / "dst").bad
    assert (bad.path, bad.reason) == ("000000000003.jpg", "No such file or directory")
    assert "left out 1 annotation of unlisted images" in caplog.text
    assert sf.pack(path, tmp_path / "dst", max_errors=1, **SMALL).packed == 3


def test_the_same_bytes_for_any_workers(tmp_path: Path) -> None:
    """A set is packed to the same bytes by any number of processes."""
    path = _write(tmp_path / "coco", CONTENT)
    sf.pack(path, tmp_path / "one", short_side=32, shard_samples=3, executor="serial")
    sf.pack(path, tmp_path / "two", short_side=32, shard_samples=3, workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_images_of_another_size_are_bad_input(tmp_path: Path) -> None:
    """An upright image that does not have the size which the JSON gives is quarantined, with both sizes."""
    content = copy.deepcopy(CONTENT)
    sizes = [(96, 64), (192, 128), (96, 64), (None, None), ("96", 64), (64, 96)]
    content["images"] = [
        {"id": n, "file_name": f"{n}.jpg", "width": width, "height": height} for n, (width, height) in enumerate(sizes)
    ]
    content["annotations"] = [{"id": 1, "image_id": 0, "category_id": 3, "bbox": [0, 0, 96, 64]}]
    path = _write(tmp_path / "coco", content)
    tall = encoded(Image.open(io.BytesIO(photo(1))), "JPEG", exif=turned(6))
    for number in (2, 5):
        (tmp_path / f"coco/train2017/{number}.jpg").write_bytes(tall)
    report = sf.pack(path, tmp_path / "dst", max_errors=3, **SMALL)
    assert report.packed == 3
    reasons = {line["path"]: line["reason"] for line in quarantined(tmp_path / "dst")}
    assert sorted(reasons) == ["1.jpg", "2.jpg", "4.jpg"]
    assert "has 96x64 pixels, its annotations are of one with 192x128" in reasons["1.jpg"]
    assert "has 64x96 pixels, its annotations are of one with 96x64, as it is stored" in reasons["2.jpg"]
    assert "width and height are ('96', 64)" in reasons["4.jpg"]
