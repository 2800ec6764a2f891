from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.errors import DecodeError, TooLargeError
from shardflow.formats.annotations import Annotations, Boxes
from shardflow.formats.coordinates import MAX_JSON_BYTES, move_coordinates, read_coordinates
from shardflow.formats.segments import Segment
from shardflow.geometry.crops import Crops
from shardflow.geometry.segment_masks import move_segment


def test_runs_are_those_of_cocos_api() -> None:
    """COCO's text of runs and its list of counts are one mask, as `pycocotools.mask` 2.0.11 decodes and encodes it."""
    mask = np.zeros((7, 9), np.uint8)
    mask[2:5, 3:8], mask[3, 5] = 1, 0
    counts = [23, 3, 4, 3, 4, 1, 1, 1, 4, 3, 4, 3, 9]
    assert Segment.of_mask(mask).to_json() == {"size": [7, 9], "counts": counts}
    noise = np.random.default_rng(5).integers(0, 2, (6, 8))
    for text, expected in (("g03400NM032005", mask), ("02301O02MO2OO0O0040N3NN", noise)):
        height, width = expected.shape
        found = Segment.parse({"size": [height, width], "counts": text}, (width, height))
        assert (found.run_mask() == expected).all()


@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_runs_are_the_mask(width: int, height: int, data: st.DataObject) -> None:
    """A mask becomes runs, these JSON, and this the mask again."""
    pixels = data.draw(st.lists(st.booleans(), min_size=width * height, max_size=width * height))
    mask = np.array(pixels).reshape(height, width)
    stored = json.loads(json.dumps(Segment.of_mask(mask).to_json()))
    assert (Segment.parse(stored, (width, height)).run_mask() == mask).all()


WRONG: list[tuple[Any, str]] = [
    ({"size": [4, 6], "counts": [2**40]}, "fill the image"),
    ({"size": [2**20, 2**20], "counts": [2**40]}, "size"),
    ({"size": [4, 6], "counts": [2**70, -(2**70) + 24]}, "0 or more"),
    ({"size": [4, 6], "counts": [24.0]}, "whole numbers"),
    ({"size": [4, 6], "counts": [True] * 24}, "whole numbers"),
    ({"size": [4, 6], "counts": "ooooooooo0"}, "35 bits"),
    ({"size": [4, 6], "counts": "oooooo1"}, "fill the image|0 or more"),
    ({"size": [4, 6], "counts": "o"}, "ends within"),
    ({"size": [4, 6], "counts": "é"}, "letters"),
    ({"size": [4, 6], "counts": " "}, "letters"),
    ({"size": [4, 6], "counts": ""}, "fill the image"),
    ({"size": [4, 6]}, "counts"),
    ({}, "size"),
    (3, "list of polygons"),
    ([1, 2, 3, 4, 5, 6], "list of polygons"),
    ([[1, 2, 3]], "in turn"),
    ([[1, 2, "3", 4]], "in turn"),
    ([[1, 2, True, 4]], "in turn"),
    ([[1, 2, float("nan"), 4]], "finite"),
    ([[1, 2, 10**400, 4]], "finite"),
]


@pytest.mark.parametrize(("value", "said"), WRONG)
def test_wrong_segments(value: Any, said: str) -> None:
    """A segment that is neither polygons nor runs which fill the image is refused before its pixels take memory."""
    with pytest.raises(ValueError, match=said):
        Segment.parse(value, (6, 4))
    declared = Annotations(boxes=Boxes("json", "boxes", "xyxy", fields={"masks": "segments:mask"}))
    part = json.dumps({"boxes": [[0, 0, 1, 1]], "segments": [value]}).encode()
    with pytest.raises(DecodeError, match=re.escape("segments")):
        read_coordinates(declared, {"json": part}.get, (6, 4))


def test_segments_of_a_sample_are_limited() -> None:
    """Masks of very many pixels together, and polygons of very many corners, are refused as too large."""
    declared = Annotations(boxes=Boxes("json", "boxes", "xyxy", fields={"masks": "segments:mask"}))
    side, number = 1 << 14, 70
    runs = {"size": [side, side], "counts": [side * side]}
    corners = [[0, 1] * 70_000] * 2
    for segments in ([runs] * number, [corners] * 2 + [[]] * (number - 2)):
        part = json.dumps({"boxes": [[0, 0, 1, 1]] * number, "segments": segments}).encode()
        assert len(part) < MAX_JSON_BYTES
        with pytest.raises(TooLargeError, match="segments"):
            read_coordinates(declared, {"json": part}.get, (side, side))


def test_segments_are_written_in_their_units() -> None:
    """Polygons are in the units of the boxes, pixels or fractions of the image; runs are of the new image."""
    fields = {"masks": "segments:mask"}
    for normalized, unit in ((False, 1.0), (True, 0.01)):
        declared = Annotations(boxes=Boxes("json", "boxes", "xyxy", normalized=normalized, fields=fields))
        polygon = [number * unit for number in (10, 20, 30, 20, 30, 40)]
        content = {"boxes": [[0, 0, unit, unit]] * 2, "segments": [[polygon], {"size": [100, 100], "counts": [10**4]}]}
        read_part = {"json": json.dumps(content).encode()}.get
        found = read_coordinates(declared, read_part, (100, 100)).box_fields["masks"]
        np.testing.assert_allclose(found[0].polygons[0], [[10, 20], [30, 20], [30, 40]])
        half = Crops.of([(100, 100)], resized=(50, 50))
        parts, _ = move_coordinates(
            declared,
            read_part,
            (100, 100),
            (50, 50),
            move_boxes=lambda boxes: boxes / 2,
            move_points=lambda points: points / 2,
            move_segment=lambda segment, half=half: move_segment(segment, half),
        )
        (moved,), runs = json.loads(parts["json"])["segments"]
        np.testing.assert_allclose(moved, polygon if normalized else [number / 2 for number in polygon])
        assert runs == {"size": [50, 50], "counts": [2500]}
