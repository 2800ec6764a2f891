from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.errors import DecodeError
from shardflow.formats.annotations import Annotations, Boxes, Keypoints
from shardflow.formats.coordinates import MAX_JSON_BYTES, Coordinates, move_coordinates, read_coordinates
from tests.helpers.examples import examples

SIZE = (200, 100)


def read(content: Any, boxes: Boxes | str | None = None, keypoints: str | None = None) -> Coordinates:
    """Read a JSON, or any value as JSON, in an image of 200x100 pixels."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    declared = Annotations(
        boxes=Boxes.parse(boxes) if isinstance(boxes, str) else boxes,
        keypoints=Keypoints.parse(keypoints) if keypoints else None,
    )
    return read_coordinates(declared, {"json": data}.get, SIZE)


@pytest.mark.parametrize(
    ("declared", "content"),
    [
        ("json:boxes:xyxy", {"boxes": [[20, 10, 60, 40.5]]}),
        ("json:objects[].bbox:xywh", {"objects": [{"bbox": [20, 10, 40, 30.5]}]}),
        ("json:[].b.c:cxcywh", [{"b": {"c": [40, 25.25, 40, 30.5]}}]),
        ("json:boxes:xyxy:normalized", {"boxes": [[0.1, 0.1, 0.3, 0.405]]}),
        ("json:boxes[]:cxcywh:normalized", {"boxes": [[0.2, 0.2525, 0.2, 0.305]]}),
        ("json:bbox:xywh", {"bbox": [20, 10, 40, 30.5]}),
    ],
)
def test_boxes_of_any_format_are_read_as_corners(declared: str, content: Any) -> None:
    """Boxes come out as float32 corners in pixels, whatever their format, units and place are."""
    boxes = read(content, declared).boxes
    assert boxes is not None
    assert boxes.dtype == np.float32
    np.testing.assert_allclose(boxes, [[20, 10, 60, 40.5]], rtol=1e-6)


def test_further_values_stay_beside_their_boxes() -> None:
    """Per-box fields are integers of 64 bits, or float32 where they are declared so, even where there are no boxes."""
    boxes = Boxes("json", "o[].b", "xyxy", fields={"labels": "o[].id", "area": "o[].a:float", "crowd": "o[].c"})
    objects = [{"b": [0, 0, 1, 1], "id": 2**60, "a": 0.5, "c": True}, {"b": [0, 0, 2, 2], "id": 3, "a": 4, "c": 0}]
    fields = read({"o": objects}, boxes).box_fields
    assert {name: (str(values.dtype), values.tolist()) for name, values in fields.items()} == {
        "labels": ("int64", [2**60, 3]),
        "area": ("float32", [0.5, 4]),
        "crowd": ("int64", [1, 0]),
    }
    empty = read({"o": []}, boxes)
    assert empty.boxes is not None
    assert empty.boxes.shape == (0, 4)
    assert [(str(values.dtype), values.shape) for values in empty.box_fields.values()] == [
        *(("int64", (0,)), ("float32", (0,)), ("int64", (0,)))
    ]
    single = read({"bbox": [1, 2, 3, 4], "id": 5}, Boxes("json", "bbox", "xyxy", fields={"labels": "id"}))
    assert single.box_fields["labels"].tolist() == [5]


@pytest.mark.parametrize(
    ("declared", "content", "expected"),
    [
        ("json:k:xy", {"k": [[1, 2], [3, 4]]}, [[1, 2], [3, 4]]),
        ("json:k:xy", {"k": [1, 2, 3, 4]}, [[1, 2], [3, 4]]),
        ("json:k:xyv:normalized", {"k": [[0.5, 0.5, 2]]}, [[100, 50, 2]]),
        ("json:k[]:xyv", {"k": [[[1, 2, 0], [3, 4, 1]], [[5, 6, 2], [7, 8, 2]]]}, None),
        ("json:o[].k:xyv", {"o": [{"k": [1, 2, 0, 3, 4, 1]}, {"k": [5, 6, 2, 7, 8, 2]}]}, None),
    ],
)
def test_keypoints(declared: str, content: Any, expected: Any) -> None:
    """Keypoints are [K, 2 or 3] for a sample, or [N, K, 2 or 3] for each element of a path, nested or in turn."""
    points = read(content, None, declared).keypoints
    assert points is not None
    expected = expected or [[[1, 2, 0], [3, 4, 1]], [[5, 6, 2], [7, 8, 2]]]
    assert (points.dtype, points.tolist()) == (np.float32, expected)


def test_no_keypoints_have_a_shape() -> None:
    """A sample without points has arrays without elements, of as many dimensions as any other."""
    for declared, shape in (("json:k:xy", (0, 2)), ("json:k[]:xyv", (0, 0, 3))):
        points = read({"k": []}, None, declared).keypoints
        assert points is not None
        assert points.shape == shape
    points = read({"k": [[], []]}, None, "json:k[]:xy:flip=0-1").keypoints
    assert points is not None
    assert points.shape == (2, 0, 2)
    assert _moved({"k": []}, Annotations(keypoints=Keypoints.parse("json:k:xy"))) == {"k": []}


LABELLED = Boxes("json", "boxes", "xyxy", fields={"labels": "labels"})
BOX = [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("boxes", "declared", "said"),
    [
        ([[10, 20, 30, 40]], "json:boxes:xyxy:normalized", "is not in fractions .*; declare pixels"),
        ([[10, 20, 30, 10]], "json:boxes:xywh:normalized", "is not in fractions .*; declare pixels"),
        ([[0.1, 0.2, 0.5, 0.6], [0, 0, 1, 1]], "json:boxes:xyxy", "within one pixel.*declare fractions .* :normalized"),
        ([[0.5, 0.5, 0.5, 0.6]], "json:boxes:cxcywh", "within one pixel.*declare fractions .* :normalized"),
        ([[-0.5, 0, 1.5, 2]], "json:boxes:xyxy:normalized", None),
        ([[0, 0, 1, 1]], "json:boxes:xyxy", None),
        ([[0.1, 0.2, 0.5, 0.6], [0, 0, 1, 2]], "json:boxes:xyxy", None),
    ],
)
def test_boxes_in_the_other_unit(boxes: Any, declared: str, said: str | None) -> None:
    """Pixels declared as fractions, and fractions declared as pixels, are refused when packing: all would be lost."""
    with contextlib.nullcontext() if said is None else pytest.raises(DecodeError, match=said):
        _moved({"boxes": boxes}, Annotations(boxes=Boxes.parse(declared)))
    if "normalized" in declared:  # in a tar that is read in place, too
        with contextlib.nullcontext() if said is None else pytest.raises(DecodeError, match=said):
            read({"boxes": boxes}, declared)


@pytest.mark.parametrize(
    ("points", "declared", "is_refused"),
    [
        ([[10, 20, 2], [0, 0, 0]], "json:k:xyv:normalized", True),
        ([[0.1, 0.2, 2], [90, 90, 0]], "json:k:xyv", True),
        ([[0.1, 0.2, 2], [90, 90, 0]], "json:k:xyv:normalized", False),
        ([[0, 0, 0], [0.5, 0.5, 0]], "json:k:xyv", False),
        ([[0.1, 0.2], [1.5, 0]], "json:k:xy", False),
    ],
)
def test_points_in_the_other_unit(points: Any, declared: str, is_refused: bool) -> None:
    """Points of another unit than is declared are refused too; those that are missing do not count."""
    with pytest.raises(DecodeError, match="normalized") if is_refused else contextlib.nullcontext():
        _moved({"k": points}, Annotations(keypoints=Keypoints.parse(declared)))


@pytest.mark.parametrize(
    ("content", "boxes", "keypoints", "said"),
    [
        (b"{", "json:boxes:xyxy", None, "part 'json' is not JSON: "),
        (b"\xff", "json:boxes:xyxy", None, "is not JSON: "),
        (b"[" * 100_000, "json:boxes:xyxy", None, "is not JSON: .*([Rr]ecursion|[Ss]tack overflow)"),
        (b" " * (MAX_JSON_BYTES + 1), "json:boxes:xyxy", None, "16,777,217 bytes; .* 16,777,216"),
        (
            {"box": []},
            "json:boxes:xyxy",
            None,
            "the whole part: expected an object with 'boxes', found an object with 'box'",
        ),
        ([1], "json:boxes:xyxy", None, r"expected an object with 'boxes', found \[1\]"),
        ({"o": {}}, "json:o[].bbox:xyxy", None, "'json': o: expected a list, found an object with nothing"),
        ({"o": [{"bbox": BOX}, {}]}, "json:o[].bbox:xyxy", None, r"o\[1\]: expected an object with 'bbox'"),
        ({"boxes": 3}, "json:boxes:xyxy", None, "boxes: expected 4 numbers, found 3"),
        ({"boxes": [BOX, [1, 2, 3]]}, "json:boxes:xyxy", None, r"boxes.*: expected 4 numbers, found \[1, 2, 3\]"),
        ({"boxes": [["1", 2, 3, 4]]}, "json:boxes:xyxy", None, "expected 4 numbers, found"),
        ({"boxes": [[True, 2, 3, 4]]}, "json:boxes:xyxy", None, "expected 4 numbers, found"),
        ({"boxes": [[None, 2, 3, 4]]}, "json:boxes:xyxy", None, "expected 4 numbers, found"),
        (b'{"boxes": [[NaN, 2, 3, 4]]}', "json:boxes:xyxy", None, "boxes: nan is not a finite 32-bit number"),
        (b'{"boxes": [[-Infinity, 2, 3, 4]]}', "json:boxes:xyxy", None, "boxes: -inf is not a finite 32-bit number"),
        ({"boxes": [[1e39, 2, 3, 4]]}, "json:boxes:xyxy", None, "boxes: 1e.39 is not a finite 32-bit number"),
        ({"boxes": [[10**400, 2, 3, 4]]}, "json:boxes:xyxy", None, "too large"),
        ({"boxes": [BOX, [9, 0, 5, 5]]}, "json:boxes:xyxy", None, r"side below 0 as xyxy; declare another format"),
        ({"boxes": [[9, 0, 5, 50]]}, "json:boxes:xyxy", None, "side below 0 as xyxy"),
        ({"boxes": [[9, 0, -1, 5]]}, "json:boxes:xywh", None, "side below 0 as xywh"),
        ({"boxes": [BOX], "labels": []}, LABELLED, None, "'labels' has 0 values at labels, but there are 1 boxes"),
        ({"boxes": [BOX], "labels": ["cat"]}, LABELLED, None, "labels: expected an integer, found 'cat'"),
        ({"boxes": [BOX], "labels": [0.5]}, LABELLED, None, "found 0.5; declare labels=labels:float"),
        ({"boxes": [BOX], "labels": [2**63]}, LABELLED, None, "labels: .*too (large|big)"),
        ({"k": 3}, None, "json:k:xy", "k: expected a list of points, found 3"),
        ({"k": [1, 2, 3]}, None, "json:k:xy", "k: expected a flat list of x, y, found 3 numbers"),
        ({"k": [[1, 2], [1, 2, 3]]}, None, "json:k[]:xy", r"k\[1\]: expected a flat list of x, y, found 3 numbers"),
        ({"k": [[1, 2, 3]]}, None, "json:k:xy", r"k\[0\]: expected 2 numbers, found \[1, 2, 3\]"),
        ({"k": [[[1, 2]], []]}, None, "json:k[]:xy", r"k\[1\]: 0 points, but 1 in the first list"),
        ({"k": [[[1, 2]] * 3]}, None, "json:k[]:xy:flip=0-3", "flip_pairs name point 3, but there are 3"),
        ({"boxes": [BOX], "k": []}, "json:boxes:xyxy", "json:k[]:xy", r"0 lists of keypoints at k\[\], but 1 boxes"),
    ],
)
def test_values_that_are_not_what_is_declared(content: Any, boxes: Any, keypoints: str | None, said: str) -> None:
    """What is wrong is named with its place and its value."""
    with pytest.raises(DecodeError, match=said):
        read(content, boxes, keypoints)


def test_a_repeated_name_is_refused() -> None:
    """A part that is packed has one meaning: of two boxes of one name, one would be lost."""
    with pytest.raises(DecodeError, match="part 'json' is not JSON: an object has 'boxes' twice"):
        move_coordinates(
            Annotations(boxes=LABELLED),
            {"json": b'{"boxes": [], "boxes": [[0, 0, 1, 1]], "labels": [1]}'}.get,
            SIZE,
            SIZE,
            move_boxes=lambda boxes: boxes,
            move_points=lambda points: points,
            move_segment=lambda segment: segment,
        )


def test_a_missing_part() -> None:
    """A sample without the declared part is an error, not a sample without boxes."""
    with pytest.raises(DecodeError, match=r"'json',.*declared"):
        read_coordinates(Annotations(boxes=LABELLED), {}.get, SIZE)


def _moved(content: Any, declared: Annotations) -> Any:
    read_part = {"json": json.dumps(content).encode(), "txt": b"x"}.get
    parts, was = move_coordinates(
        declared,
        read_part,
        SIZE,
        (100, 50),
        move_boxes=lambda boxes: boxes / 2,
        move_points=lambda points: points / 2,
        move_segment=lambda segment: segment,
    )
    assert set(parts) == {"json"}
    np.testing.assert_equal(was._asdict(), read_coordinates(declared, read_part, SIZE)._asdict())
    return json.loads(parts["json"])


def test_moved_coordinates_take_the_place_of_the_old_ones() -> None:
    """Numbers are written back in their own format and place; the rest of the JSON stays, half surrogates too."""
    content = {
        "who": "Ünï \ud800",
        "objects": [{"bbox": [20, 10, 40, 30], "pose": [8, 6, 2, 0, 0, 0], "id": 2**70, "boxes": [[1, 2, 3, 4]]}],
        "boxes": [[1, 2, 3, 4]],
    }
    declared = Annotations(
        boxes=Boxes.parse("json:objects[].bbox:xywh"), keypoints=Keypoints.parse("json:objects[].pose:xyv")
    )
    moved = _moved(content, declared)
    assert moved["objects"][0] == {**content["objects"][0], "bbox": [10, 5, 20, 15], "pose": [4, 3, 2, 0, 0, 0]}
    assert {**moved, "objects": None} == {**content, "objects": None}


NUMBERS = st.floats(-1000, 1000).map(lambda number: round(number, 3))
SIDES = st.floats(0, 1000).map(lambda number: round(number, 3))


@given(
    boxes=st.lists(st.tuples(NUMBERS, NUMBERS, SIDES, SIDES).map(list), max_size=5),
    text=st.sampled_from(["json:b:xywh", "json:b:cxcywh", "json:b:cxcywh:normalized"]),
    points=st.lists(
        st.lists(st.tuples(NUMBERS, NUMBERS, st.sampled_from([0, 1, 2])).map(list), min_size=2, max_size=2)
    ),
    flat=st.booleans(),
)
@examples(100)
def test_moved_coordinates_are_read_as_moved(boxes: Any, text: str, points: Any, flat: bool) -> None:
    """Reading after moving is moving after reading, in any format, to the digits that are written."""
    # Packing refuses coordinates that all lie within one pixel, as if they were fractions.
    boxes, points = [*boxes, [4, 4, 4, 4]], [*points, [[4, 4, 2]] * 2]
    if text.endswith("normalized"):
        boxes = [[number / 1000 for number in box] for box in boxes]
    stored = [[number for point in each for number in point] for each in points] if flat else points
    content = {"b": boxes, "k": stored}
    declared = Annotations(boxes=Boxes.parse(text))
    posed = Annotations(keypoints=Keypoints.parse("json:k[]:xyv"))
    for each in (declared, posed):
        before = read_coordinates(each, {"json": json.dumps(content).encode()}.get, SIZE)
        after = read_coordinates(each, {"json": json.dumps(_moved(content, each)).encode()}.get, (100, 50))
        if before.boxes is not None and after.boxes is not None:
            np.testing.assert_allclose(after.boxes, before.boxes / 2, atol=2e-3)
        if before.keypoints is not None and after.keypoints is not None:
            scale = np.where(before.keypoints[..., 2:] == 0, 1, 0.5)
            np.testing.assert_allclose(after.keypoints[..., :2], before.keypoints[..., :2] * scale, atol=1e-3)
            assert (after.keypoints[..., 2] == before.keypoints[..., 2]).all()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from("bkf"), inner, max_size=3),
    max_leaves=20,
)
ROWS = st.lists(st.lists(st.floats() | st.integers(), min_size=2, max_size=4), max_size=3)


@given(
    content=JSON | st.fixed_dictionaries({"b": ROWS | JSON, "k": ROWS | JSON | st.lists(ROWS, max_size=3), "f": JSON}),
    texts=st.sampled_from([("b", "k"), ("b[]", "k[]"), ("[].b", "[].k"), ("b[][]", "[]"), ("k", "k")]),
    form=st.sampled_from(["xyxy", "xywh", "cxcywh"]),
    normalized=st.booleans(),
)
@examples(300)
def test_any_json_is_read_or_refused(content: Any, texts: tuple[str, str], form: str, normalized: bool) -> None:
    """Any JSON is moved to finite numbers, or is refused with a DecodeError."""
    boxes = Boxes("json", texts[0], form, normalized, {"f": "f"} if texts[0] == "b" else {})
    for points in (None, Keypoints("json", texts[1], "xyv", normalized), Keypoints("json", texts[1], "xy")):
        try:
            moved = _moved(content, Annotations(boxes=boxes, keypoints=points))
        except DecodeError:
            continue
        again = read(moved, boxes).boxes
        assert again is not None
        assert np.isfinite(again).all()
