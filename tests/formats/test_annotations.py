from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from shardflow.errors import ConfigError, ManifestError
from shardflow.formats import manifest
from shardflow.formats.annotations import Annotations, Boxes, Keypoints, field_path, mask_field, path_steps

from .test_manifest import example, fingerprinted

DECLARED = Annotations(
    masks=("mask.png", "depth.png"),
    boxes=Boxes("json", "objects[].bbox", "xywh", fields={"labels": "objects[].id", "area": "objects[].area:float"}),
    keypoints=Keypoints("pose.json", "[].points", "xyv", normalized=True, flip_pairs=((1, 2), (4, 3))),
)


def test_the_manifest_holds_the_declaration() -> None:
    """A declaration is written, read and fingerprinted; a manifest without one is as it always was."""
    written = example(annotations=DECLARED)
    assert manifest.from_bytes(written.to_bytes()) == written
    assert json.loads(written.to_bytes())["annotations"] == {
        "masks": ["mask.png", "depth.png"],
        "boxes": {
            "part": "json",
            "path": "objects[].bbox",
            "format": "xywh",
            "normalized": False,
            "fields": {"labels": "objects[].id", "area": "objects[].area:float"},
        },
        "keypoints": {
            "part": "pose.json",
            "path": "[].points",
            "format": "xyv",
            "normalized": True,
            "flip_pairs": [[1, 2], [4, 3]],
        },
    }
    assert written.fingerprint != example().fingerprint
    assert replace(written, annotations=Annotations()).to_bytes() == example().to_bytes()
    assert "annotations" not in json.loads(example().to_bytes())


BOXES, POINTS = DECLARED.to_json()["boxes"], DECLARED.to_json()["keypoints"]


@pytest.mark.parametrize(
    "declared",
    [
        *({}, [], "many", None, {"masks": "mask.png"}, {"masks": [["mask.png"]]}, {"masks": ["jpg"]}, {"boxes": []}),
        {"polygons": {}},
        {"boxes": {**BOXES, "format": "yxyx"}},
        {"boxes": {**BOXES, "path": "a..b"}},
        {"boxes": {**BOXES, "fields": {"labels": 3}}},
        {"boxes": {**BOXES, "normalized": 1}},
        {"boxes": {**BOXES, "part": "jpg"}},
        {"keypoints": {**BOXES}},
        {"keypoints": {**POINTS, "flip_pairs": [[1, 2], [2, 3]]}},
        {"keypoints": {**POINTS, "flip_pairs": {"1": "2"}}},
    ],
    ids=str,
)
def test_a_wrong_entry_is_refused(declared: Any) -> None:
    """Entries in another form are refused even under a fingerprint that fits."""
    content = json.loads(example().to_bytes())
    with pytest.raises(ManifestError):
        manifest.from_bytes(fingerprinted({**content, "annotations": declared}))


@pytest.mark.parametrize(
    "text",
    ["json:boxes:xyxy", "json:objects[].bbox:xywh", "meta.json:[].box:cxcywh:normalized", "json:a b[][].ü:xyxy"],
)
def test_texts_and_boxes_are_the_same(text: str) -> None:
    """The text of a declaration says all of it but the per-box fields."""
    assert str(Boxes.parse(text)) == text
    assert Boxes.parse(text, BOXES["fields"]) == replace(Boxes.parse(text), fields=BOXES["fields"])
    assert Boxes.parse(text, BOXES["fields"]).fields == BOXES["fields"]
    for points in ("json:keypoints[]:xy:normalized", "json:k:xyv:flip=1-2,4-3", "json:k:xy:normalized:flip=0-11"):
        assert str(Keypoints.parse(points)) == points
    assert Keypoints.parse("json:k:xyv:flip=1-2,4-3") == Keypoints("json", "k", "xyv", flip_pairs=((1, 2), (4, 3)))


@pytest.mark.parametrize("pairs", ["1-2,2-3", "1-1", "1", "1-2-3", "-1-2", "", "a-b", "1-2:normalized"])
def test_wrong_flip_pairs(pairs: str) -> None:
    """Points that change places are pairs of different numbers from 0, each number once."""
    with pytest.raises(ConfigError, match="pairs"):
        Keypoints.parse(f"json:keypoints:xyv:flip={pairs}")
    for wrong in ([(0, True)], [(0, 1.0)], 3, "12", [[1]]):
        with pytest.raises(ConfigError, match="flip_pairs"):
            Keypoints("json", "keypoints", "xyv", flip_pairs=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *(
            ("", "expected PART:PATH:FORMAT"),
            ("json:boxes", "such as json:boxes:xyxy"),
            ("json::xyxy", "expected PART"),
        ),
        ("json:boxes:xyxy:pixels", "or PART:PATH:FORMAT:normalized"),
        ("json:boxes:xyhw", "format must be one of xyxy, xywh, cxcywh, found 'xyhw'"),
        ("jpg:boxes:xyxy", "'jpg' cannot hold them"),
        ("cls:boxes:xyxy", "'cls' cannot hold them"),
        ("json:a.[].b:xyxy", "must be keys"),
        ("json:a[0]:xyxy", r"path 'a\[0\]' must be keys"),
        ("json:" + ".".join("abcdefghijklmnopq") + ":xyxy", "has 17 steps; the limit is 16"),
    ],
)
def test_wrong_texts(text: str, said: str) -> None:
    """A text that is not a declaration is refused with the values that are allowed."""
    with pytest.raises(ConfigError, match=said):
        Boxes.parse(text)


@pytest.mark.parametrize("fields", [{"Labels": "a"}, {"": "a"}, {3: "a"}, {"labels": 3}, {"labels": "a:int"}])
def test_wrong_box_fields(fields: Any) -> None:
    """The name of a box field is made of a-z 0-9 _, and its path is one."""
    with pytest.raises(ConfigError, match=r"box field .*: a name must be|path 3 must be keys|found 'int'"):
        Boxes("json", "boxes", "xyxy", fields=fields)


def test_steps_of_paths() -> None:
    """A path is a list of keys, and `[]` for each element of a list."""
    assert path_steps("objects[].bbox") == ("objects", "[]", "bbox")
    assert path_steps("[]") == ("[]",)
    assert path_steps("a[][].b") == ("a", "[]", "[]", "b")
    assert field_path("objects[].area:float") == ("objects[].area", "float")


def test_masks_are_fields() -> None:
    """A mask becomes the field of its name; names that are no PNG, or another field's, are refused."""
    assert [mask_field(mask) for mask in DECLARED.masks] == ["mask", "depth"]
    for masks in (("mask.jpg",), ("image.png",), ("mask.png", "mask.png"), "mask.png", (".png",)):
        with pytest.raises(ConfigError, match="mask"):
            Annotations(masks=masks)  # type: ignore[arg-type]


def test_a_sample_lacks_what_is_declared() -> None:
    """The parts that a sample has not are named, in the order of the declaration; with all of them it lacks nothing."""
    assert DECLARED.missing(["jpg", "json", "depth.png"]) == "has no mask.png, pose.json, which is declared"
    assert DECLARED.missing(["depth.png", "mask.png", "json", "pose.json", "jpg"]) == ""
    assert Annotations().missing([]) == ""


def test_a_declaration_is_described() -> None:
    """Each kind that is declared is described by its text, and by its number where that is known."""
    assert DECLARED.describe({"masks": 1200, "boxes": 0, "images": 7}) == {
        "masks": "mask.png, depth.png; 1,200",
        "boxes": "json:objects[].bbox:xywh",
        "box fields": "area=objects[].area:float, labels=objects[].id",
        "keypoints": "pose.json:[].points:xyv:normalized:flip=1-2,4-3",
    }
    assert Annotations(masks=("a.png",)).describe() == {"masks": "a.png"}


def test_two_declarations_join() -> None:
    """Two declarations become one: the masks of both, and the boxes and keypoints of the second before the first's."""
    boxes = Boxes("json", "boxes", "xyxy")
    joined = DECLARED.joined(Annotations(masks=("mask.png", "edges.png"), boxes=boxes))
    assert joined == Annotations(
        masks=("mask.png", "depth.png", "edges.png"), boxes=boxes, keypoints=DECLARED.keypoints
    )
    assert joined.parts == ("mask.png", "depth.png", "edges.png", "json", "pose.json")
    assert not Annotations()
